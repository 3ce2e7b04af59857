//! Which packets take the fast path: those that pass although the stages know no network any more.

use aya::maps::{HashMap, Map, MapData};
use contiv_abi::{Segment, SegmentEntry, maps::SEGMENTS};

use super::*;

/// Removes what the stages look up for every frame: a packet that takes the stages is dropped.
fn cut_stages(rig: &Rig) -> Result<()> {
    let pin = rig.node.datapath.maps_directory().join(SEGMENTS);
    let mut networks: HashMap<MapData, Segment, SegmentEntry> =
        Map::from_map_data(MapData::from_pin(pin)?)?.try_into()?;
    let all: Vec<Segment> = networks.keys().collect::<Result<_, _>>()?;
    ensure!(!all.is_empty(), "no networks");
    all.iter().try_for_each(|network| networks.remove(network))?;
    Ok(())
}

fn there(flags: u8) -> (Packet, Packet) {
    (between(HERE, VIP).tcp(4000, 80, flags), between(HERE, OTHER).tcp(4000, 8080, flags))
}

fn back(flags: u8) -> (Packet, Packet) {
    (between(OTHER, HERE).tcp(8080, 4000, flags), answer_of(OTHER, HERE).tcp(80, 4000, flags))
}

#[track_caller]
fn takes_stages(rig: &Rig, from: Endpoint, sent: &Packet) {
    assert_eq!(rig.give(from, sent).unwrap().0, Code::Shot, "{sent:?}");
}

#[test]
fn packets_of_established_local_flows_take_it() -> Result<()> {
    needs!(root());
    let rig = Rig::new("fast-all")?;
    open(&rig, 4000)?;
    let udp = between(HERE, OTHER).udp(5000, 6000);
    let answer = between(OTHER, HERE).udp(6000, 5000);
    for _ in 0..2 {
        rig.becomes(HERE, &udp, &udp);
        rig.becomes(OTHER, &answer, &answer);
    }
    cut_stages(&rig)?;
    let before = rig.counts(4000)?;
    let count = rig.repeat(HERE, |_| there(ACK));
    rig.repeat(OTHER, |_| back(ACK));
    rig.repeat(HERE, |n| (vary(udp.clone(), n), vary(udp.clone(), n)));
    rig.repeat(OTHER, |n| (vary(answer.clone(), n), vary(answer.clone(), n)));
    let after = rig.counts(4000)?;
    assert_eq!([0, 1].map(|side| after[side].0 - before[side].0), [count; 2]);
    Ok(())
}

#[test]
fn packets_of_ipv6_flows_take_it() -> Result<()> {
    needs!(root());
    let rig = Rig::at("fast-v6", VIP.ip6().into(), OTHER.ip6().into())?;
    let [.., a, b, c, d] = VIP.ip6().octets();
    let service_mac = [2, 2, a, b, c, d];
    let there = || {
        let sent = Packet::eth(service_mac, HERE.mac()).ipv6(HERE.ip6(), VIP.ip6()).udp(4000, 80);
        (sent, between6(HERE, OTHER).udp(4000, 8080))
    };
    let back = || {
        let arrives = Packet::eth(HERE.mac(), OTHER.mac()).ipv6(VIP.ip6(), HERE.ip6()).udp(80, 4000);
        (between6(OTHER, HERE).udp(8080, 4000), arrives)
    };
    for _ in 0..2 {
        rig.becomes(HERE, &there().0, &there().1);
        rig.becomes(OTHER, &back().0, &back().1);
    }
    cut_stages(&rig)?;
    rig.repeat(HERE, |n| (vary6(there().0, n), vary6(there().1, n)));
    rig.repeat(OTHER, |n| (vary6(back().0, n), vary6(back().1, n)));
    takes_stages(&rig, HERE, &Packet::eth(OTHER.mac(), HERE.mac()).ipv6(HERE.ip6(), VIP.ip6()).udp(4000, 80));
    Ok(())
}

#[test]
fn packets_that_may_change_a_flow_or_be_wrong_take_the_stages() -> Result<()> {
    needs!(root());
    let rig = Rig::new("fast-not")?;
    open(&rig, 4000)?;
    cut_stages(&rig)?;
    rig.becomes(HERE, &there(ACK).0, &there(ACK).1);
    for flags in [SYN, FIN, SYN | ACK, tcp_flags::RST, tcp_flags::RST | ACK, 0] {
        takes_stages(&rig, HERE, &there(flags).0);
        takes_stages(&rig, OTHER, &back(flags).0);
    }
    takes_stages(&rig, HERE, &there(ACK).0.ip_options(&[1, 1, 1, 1]));
    // To somebody else's Ethernet address, and from somebody else's addresses.
    let frame = |to: Endpoint, from: Endpoint, ip: Endpoint| {
        Packet::eth(to.mac(), from.mac()).ipv4(ip.ip(), VIP.ip()).tcp(4000, 80, ACK)
    };
    takes_stages(&rig, HERE, &frame(OTHER, HERE, HERE));
    takes_stages(&rig, HERE, &frame(VIP, OTHER, HERE));
    takes_stages(&rig, HERE, &frame(VIP, HERE, OTHER));
    takes_stages(&rig, OTHER, &there(ACK).0);
    // Longer than the packet says, a fragment, and another tuple.
    let bytes = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = there(ACK).0.build();
        change(&mut frame);
        rig.node.ns.run(|| rig.here.give(&frame)).unwrap().0
    };
    assert_eq!(bytes(&|frame| frame.extend([0; 6])), Code::Shot);
    assert_eq!(bytes(&|frame| frame[20] |= 0x20), Code::Shot);
    assert_eq!(bytes(&|frame| frame[21] |= 1), Code::Shot);
    assert_eq!(bytes(&|_| {}), Code::Redirect);
    takes_stages(&rig, HERE, &between(HERE, VIP).tcp(4001, 80, ACK));
    Ok(())
}

#[test]
fn changes_of_groups_and_endpoints_take_flows_to_the_stages() -> Result<()> {
    needs!(root());
    type Change = fn(&mut Rig) -> Result<()>;
    let changed: [(&str, Change); 4] = [
        ("rules", |rig| {
            rig.set(Object::Group(group(2, vec![rule("allow", Direction::In, Action::Allow, 1)])))
        }),
        ("mark", |rig| rig.set(Object::Group(Group { dscp: Some(Dscp::try_from(8)?), ..group(1, vec![]) }))),
        ("group", |rig| {
            rig.set(Object::Group(group(3, vec![])))?;
            let mut local = rig.second.local.clone();
            local.identity = Some(crate::policy::number(3));
            rig.set(Object::Local(local))
        }),
        ("address", |rig| {
            let mut local = rig.second.local.clone();
            local.addresses = (Endpoint(9).ip(), Some(OTHER.ip6())).into();
            rig.set(Object::Local(local))
        }),
    ];
    for (name, change) in changed {
        let mut rig = Rig::new(&format!("fast-{name}"))?;
        open(&rig, 4000)?;
        cut_stages(&rig)?;
        rig.becomes(HERE, &there(ACK).0, &there(ACK).1);
        change(&mut rig).context(name)?;
        takes_stages(&rig, HERE, &there(ACK).0);
    }
    Ok(())
}
