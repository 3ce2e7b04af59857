//! Packets from the uplink of a VLAN.

use anyhow::{Result, ensure};
use contiv_abi::DropReason;
use contiv_model::policy::{Action, Direction};
use netplugin::datapath::{Object, ObjectId, Op};
use testkit::{needs, packet::Packet};

use super::{
    ACK, FIN, SYN, answer_of, between6,
    rig::{HERE, OTHER, Rig, TAG, VIP},
    vary, vary6,
};
use crate::{
    node::{Endpoint, network, vlan},
    policy::{group, pod, rule},
    run::Code,
};

fn tagged(tag: u16, to: Endpoint) -> Packet {
    Packet::eth(to.mac(), HERE.mac()).vlan(tag).ipv4(HERE.ip(), to.ip())
}

/// A packet to the service as its backend receives it, with the client's MAC address.
fn arrived() -> Packet {
    Packet::eth(OTHER.mac(), HERE.mac()).ipv4(HERE.ip(), OTHER.ip())
}

fn there(n: u32) -> (Packet, Packet) {
    (vary(tagged(TAG, VIP).tcp(4000, 80, ACK), n), vary(arrived().tcp(4000, 8080, ACK), n))
}

fn direct(n: u32) -> (Packet, Packet) {
    (vary(tagged(TAG, OTHER).udp(5000, 6000), n), vary(arrived().udp(5000, 6000), n))
}

fn rig(label: &str) -> Result<Rig> {
    Rig::on_wire(label, VIP.ip().into(), OTHER.ip().into())
}

/// A connection to the service and a direct one. Returns the number of
/// packets to the service.
fn open(rig: &Rig) -> Result<u64> {
    rig.becomes(HERE, &tagged(TAG, VIP).tcp(4000, 80, SYN), &arrived().tcp(4000, 8080, SYN));
    let answer = Packet::eth(HERE.mac(), OTHER.mac()).ipv4(OTHER.ip(), HERE.ip());
    let sent = answer.clone().tcp(8080, 4000, SYN | ACK);
    rig.becomes(OTHER, &sent, &answer_of(OTHER, HERE).tcp(80, 4000, SYN | ACK));
    let count = rig.repeat(HERE, there);
    rig.becomes(HERE, &direct(0).0, &direct(0).1);
    let answer = answer.udp(6000, 5000);
    rig.becomes(OTHER, &answer, &answer);
    rig.repeat(HERE, direct);
    Ok(count + 1)
}

#[test]
fn packets_of_a_flow_are_translated_alike() -> Result<()> {
    needs!(root());
    let rig = rig("cut-wire")?;
    let mut count = open(&rig)?;
    for n in 0..50 {
        let (sent, arrives) = there(n);
        rig.becomes(HERE, &sent, &arrives);
        count += 1;
    }
    // Each frame is counted once, without its tag.
    assert_eq!(rig.counts(4000)?[0].0, count);
    assert!(rig.node.drops()?.is_empty(), "{:?}", rig.node.drops()?);
    Ok(())
}

#[test]
fn ipv6_packets_of_a_flow_are_translated_alike() -> Result<()> {
    needs!(root());
    let rig = Rig::on_wire("cut-wire6", VIP.ip6().into(), OTHER.ip6().into())?;
    let [.., a, b, c, d] = VIP.ip6().octets();
    let vip_mac = [2, 2, a, b, c, d];
    let to_vip = || Packet::eth(vip_mac, HERE.mac()).vlan(TAG).ipv6(HERE.ip6(), VIP.ip6());
    let arrived = || Packet::eth(OTHER.mac(), HERE.mac()).ipv6(HERE.ip6(), OTHER.ip6());
    for (port, udp) in [(4000, false), (4001, true)] {
        let of = |packet: Packet, to, flags| {
            if udp { packet.udp(port, to) } else { packet.tcp(port, to, flags) }
        };
        rig.becomes(HERE, &of(to_vip(), 80, SYN), &of(arrived(), 8080, SYN));
        let (back, shown) =
            (between6(OTHER, HERE), Packet::eth(HERE.mac(), OTHER.mac()).ipv6(VIP.ip6(), HERE.ip6()));
        if udp {
            rig.becomes(OTHER, &back.udp(8080, port), &shown.udp(80, port));
        } else {
            rig.becomes(OTHER, &back.tcp(8080, port, SYN | ACK), &shown.tcp(80, port, SYN | ACK));
        }
        rig.repeat(HERE, |n| (vary6(of(to_vip(), 80, ACK), n), vary6(of(arrived(), 8080, ACK), n)));
    }
    Ok(())
}

#[test]
fn unusual_packets_are_translated() -> Result<()> {
    needs!(root());
    let rig = rig("cut-wodd")?;
    open(&rig)?;
    let (sent, arrives) = there(1);
    rig.becomes(HERE, &sent.clone().ip_options(&[1; 4]), &arrives.clone().ip_options(&[1; 4]));
    let fin = (tagged(TAG, VIP).tcp(4000, 80, FIN), arrived().tcp(4000, 8080, FIN));
    rig.becomes(HERE, &fin.0, &fin.1);
    Ok(())
}

/// Two networks may have the same addresses.
#[test]
fn flows_are_per_network() -> Result<()> {
    needs!(root());
    let mut rig = rig("cut-wtag")?;
    let n2 = network("n2.t", vlan(TAG + 1));
    let deny = rule("deny", Direction::In, Action::Deny, 10);
    rig.node.want_network(&n2).want(Object::Group(group(3, vec![deny])));
    let _other = pod(&mut rig.node, &n2, OTHER, 3)?;
    rig.node.converge()?;
    open(&rig)?;
    rig.repeat(HERE, direct);
    assert_eq!(rig.give(HERE, &tagged(TAG + 1, OTHER).udp(5000, 6000))?.0, Code::Shot);
    assert_eq!(rig.node.drops()?.get(&DropReason::Policy), Some(&1));
    // Frames of an unknown network go to the host unchanged.
    let strange = tagged(TAG + 2, OTHER).udp(5000, 6000);
    assert_eq!(rig.give(HERE, &strange)?, (Code::Next, strange.build()));
    Ok(())
}

#[test]
fn changes_apply_to_established_flows() -> Result<()> {
    needs!(root());
    let mut rig = rig("cut-wend")?;
    open(&rig)?;
    let deny = rule("deny", Direction::In, Action::Deny, 10);
    rig.set(Object::Group(group(2, vec![deny])))?;
    for packet in [there(0).0, direct(0).0] {
        assert_eq!(rig.give(HERE, &packet)?.0, Code::Shot);
    }
    assert_eq!(rig.node.drops()?.get(&DropReason::Policy), Some(&2));
    rig.set(Object::Group(group(2, vec![])))?;
    rig.repeat(HERE, there);
    rig.repeat(HERE, direct);
    let remove = |rig: &mut Rig, id: ObjectId| {
        rig.node.desired.remove(&id);
        let failed = rig.node.apply(&[Op::Delete(id)])?;
        ensure!(failed.is_empty(), "{failed:?}");
        Ok(())
    };
    // Without the service, its MAC address is unknown. Then the pod is deleted.
    remove(&mut rig, ObjectId::Service("web:t".into()))?;
    assert_eq!(rig.give(HERE, &there(0).0)?.0, Code::Shot);
    rig.becomes(HERE, &direct(0).0, &direct(0).1);
    let id = ObjectId::Local(rig.second.local.id.clone());
    remove(&mut rig, id)?;
    assert_eq!(rig.give(HERE, &direct(0).0)?.0, Code::Shot);
    assert_eq!(rig.node.drops()?.get(&DropReason::NotLocal), Some(&2));
    Ok(())
}
