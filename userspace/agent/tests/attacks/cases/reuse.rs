//! Addresses that pass to an endpoint of another group: what was judged for the first one does not count for the second.

use testkit::packet::{Packet, tcp_flags};

use crate::{
    attack::{Attack, OUTSIDE, POD, Place, Step},
    rules::{self, Attacker, FAR_HANDOVER, HANDOVER, HEIR, Membership, PORT, Rules, Station},
    scene::{PAYLOAD, Scene, ip},
};

pub(super) fn attacks() -> Vec<Attack> {
    let mut attacks = vec![];
    for (place, name) in [(POD, "pod"), (OUTSIDE, "endpoint on another node")] {
        attacks.extend(
            [
                Attack::new("new", format!("{name} of a denied group takes an address, and answers"), |s| {
                    let question = s.ip_of_victim(predecessor(s)).udp(PORT, s.sport()).payload(PAYLOAD);
                    let before =
                        vec![s.send_by(s.victim, &question), s.send_by(predecessor(s), &datagram(s))];
                    handed_over(s, Membership::None, Membership::Named, before)
                })
                .against(&[Rules::DenyGroup])
                .only(Attacker::Named),
                Attack::new(
                    "new",
                    format!("{name} without a group takes a friend's address, and goes on"),
                    |s| {
                        let answer = s.ip_of_victim(predecessor(s)).udp(PORT, s.sport()).payload(PAYLOAD);
                        let before =
                            vec![s.send_by(predecessor(s), &datagram(s)), s.send_by(s.victim, &answer)];
                        handed_over(s, Membership::Friends, Membership::None, before)
                    },
                )
                .against(&[Rules::FriendsOnly])
                .only(Attacker::Plain),
            ]
            .map(|attack| attack.from(place)),
        );
    }
    attacks
}

fn predecessor(s: &Scene) -> Station {
    if s.place == Place::Pod { HANDOVER } else { FAR_HANDOVER }
}

/// Of an endpoint on another node, the node here sees no interface.
fn successor(s: &Scene) -> Station {
    if s.place == Place::Pod { HEIR } else { FAR_HANDOVER }
}

fn headers(s: &Scene) -> Packet {
    let from = predecessor(s);
    ip(Packet::eth(s.victim.mac(), from.mac()), from.address(s.family), s.to())
}

fn datagram(s: &Scene) -> Packet {
    s.udp(headers(s))
}

/// The address passes from one group to another after these steps, and back at the end.
fn handed_over(s: &Scene, first: Membership, second: Membership, before: Vec<Step>) -> Vec<Step> {
    let (old, new) = (predecessor(s), successor(s));
    let replaced = |from: Station, to: Station, group| {
        let object = |station, group| rules::with_group(s.net, station, group);
        vec![Step::Delete(object(from, Membership::None).id()), Step::Set(object(to, group))]
    };
    let syn = headers(s).tcp(s.sport(), PORT, tcp_flags::SYN);
    // The second one is sent after the first may have ended the flow.
    let after = [datagram(s), datagram(s), syn].map(|packet| s.send_by(new, &packet).not_at_victim());
    let steps = [replaced(old, old, first), before, replaced(old, new, second), after.to_vec()];
    [steps.concat(), replaced(new, old, Membership::None)].concat()
}
