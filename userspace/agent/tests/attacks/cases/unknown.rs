//! Addresses inside the network's subnets that no record knows: rules about peers fail closed, and the verdict follows the
//! record as soon as it arrives.

use testkit::packet::{BROADCAST, Packet, tcp_flags};

use crate::{
    attack::{Attack, OUTSIDE, Step, V4, V6},
    rules::{self, Attacker, FAR, PORT, Rules},
    scene::{PAYLOAD, Scene, Transport, ip},
};

pub(super) fn attacks() -> Vec<Attack> {
    let mut attacks: Vec<Attack> = Transport::ALL
        .into_iter()
        .map(|transport| {
            Attack::new("E6", format!("{transport:?} from an unknown address of the subnet"), move |s| {
                vec![s.send(&transport.after(s, s.ip()))]
            })
        })
        .collect();
    attacks.extend([
        Attack::new("E6", "broadcast from an unknown address of the subnet", |s| {
            vec![s.send(&s.udp(s.ip_to(BROADCAST, [255; 4].into())))]
        })
        .by(V4),
        Attack::new("E6", "unknown address with the MAC of a known endpoint", |s| {
            vec![s.send(&s.udp(ip(Packet::eth(s.victim.mac(), FAR.mac()), s.from(), s.to())))]
        }),
        Attack::new("E6", "echo request from the link-local address of no known endpoint", |s| {
            vec![s.send(&s.echo(s.eth().ipv6(s.attacker.link_local(), s.victim.link_local())))]
        })
        .by(V6),
        Attack::new("E6", "segment without SYN from an unknown address", |s| {
            vec![s.send(&s.ip().tcp(s.sport(), PORT, tcp_flags::ACK).payload(PAYLOAD))]
        }),
        // The flow is not judged once and for all while the record is on its way.
        Attack::new("E6", "record of a denied endpoint arrives later", |s| {
            let datagram = || s.send(&s.datagram());
            with_record(s, true, &[datagram(), datagram()], &[datagram()])
        })
        // Nor is it denied once and for all.
        .honest(|s| {
            let unknown = Attacker::Unknown.at(s.place);
            let headers = ip(Packet::eth(s.victim.mac(), unknown.mac()), unknown.address(s.family), s.to());
            let datagram = s.send(&s.udp(headers));
            with_record(s, false, &[datagram.clone().anything()], &[datagram.arrives()])
        })
        .control(Rules::DenyGroup),
    ]);
    let attacks = attacks.into_iter().map(|attack| attack.from(OUTSIDE).against(Rules::PEERS));
    attacks.map(|attack| attack.only(Attacker::Unknown)).collect()
}

/// Steps before and after the record of the unknown endpoint arrives; it is removed at the end, and those before follow again.
fn with_record(s: &Scene, is_named: bool, before: &[Step], after: &[Step]) -> Vec<Step> {
    let record = rules::record(s.net, is_named);
    let id = record.id();
    [before, &[Step::Set(record)], after, &[Step::Delete(id)], before].concat()
}
