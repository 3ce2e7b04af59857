//! Checks of addresses with the records of endpoints. The flows are the same for all endpoints.
//!
//! ```text
//!  14 ─ 37 Ethernet source ─ 38 from its place? ─ 15
//!  15 ─ 35 IP source, ARP sender ─ 36 same endpoint? ─ 39 ─┬─ IP ──▶ 16
//!                                                          └─ ARP ─ 37 Ethernet address in the message ─ 42 ─ 36, 43 ─▶ 17
//!  16 ─ 35 IP destination ─ 36 same endpoint? ─ 40 ─▶ 3
//!  17 ─ 35 ND target ─ 36 same endpoint? ─ 41 ─ 37 Ethernet address in the message ─ 42 ─ 36, 43 ─▶ 3
//! ```

use contiv_model::mac::Mac;
use openflow_rs::{Action, Field, Flow, Match};

use super::{
    GROUP_BIT, advertisement, pass,
    record::{
        Place, clear, compare, find_owner, find_station, take_for_owner, with_owner_at, with_same,
        with_station_at, with_unknown_station, without_owner,
    },
    solicitation,
};
use crate::datapath::ovs::pipeline::{
    family::Family,
    metadata::{self, match_from},
    table::{self, priority, priority::check},
};

/// Returns the flows that exist for any desired state.
pub(super) fn base() -> Vec<Flow> {
    [stations(), claims(), targets(), discovery(), names()].concat()
}

/// Returns the flows of a port that leads to endpoints: for their frames, and for packets that the router of their node
/// sends.
pub(crate) fn port(number: u32) -> Vec<Flow> {
    let place = Place::of(Some(number));
    let from = || Match::new().in_port(number.into());
    let station = with_station_at(from(), place);
    let mut flows = vec![next(Flow::new(table::STATION_CHECK, priority::MATCH, station), table::CLAIM)];
    flows.extend(Family::ALL.map(|family| {
        let unicast = from().eth_src(Mac::ROUTER.0).masked(Field::EthDst, 0u8, GROUP_BIT);
        let routed = with_owner_at(family.packets(unicast), place);
        next(Flow::new(table::CLAIM_CHECK, check::OTHER, routed), table::TARGET)
    }));
    flows
}

/// Completes a flow whose frames continue in another table.
fn next(flow: Flow, table: u8) -> Flow {
    flow.apply(clear()).apply([Action::resubmit(table)])
}

/// Completes a flow whose frames have passed the checks.
fn passed(flow: Flow) -> Flow {
    pass(flow.apply(clear()))
}

fn stations() -> Vec<Flow> {
    let check = |m| Flow::new(table::STATION_CHECK, priority::MATCH, m);
    vec![
        Flow::new(table::STATION, priority::MISS, Match::new())
            .apply(find_station(Field::EthSrc))
            .apply([Action::resubmit(table::STATION_CHECK)]),
        next(check(with_unknown_station(Match::new())), table::CLAIM),
        next(check(with_station_at(Match::new(), Place::Anywhere)), table::CLAIM),
    ]
}

/// Checks that an address of an endpoint comes from the endpoint's Ethernet address, and that no address of a local
/// endpoint comes from outside.
fn claims() -> Vec<Flow> {
    let claim = |m| Flow::new(table::CLAIM, check::UNKNOWN, m);
    let check = |priority, m| Flow::new(table::CLAIM_CHECK, priority, m);
    let find = |flow: Flow, family, address| {
        let flow = flow.apply(find_owner(family, address)).apply(compare(Field::EthSrc));
        flow.apply([Action::resubmit(table::CLAIM_CHECK)])
    };
    let arp = || Match::new().arp();
    let mut flows = vec![
        find(claim(arp()), Family::V4, Field::ArpSpa),
        check(check::FORM, with_owner_at(Match::new(), Place::Here)),
        named_by_owner(check(check::CLAIMED_BY_OWNER, with_same(arp())), Field::ArpSha),
        named(check(check::UNKNOWN, without_owner(arp())), Field::ArpSha),
    ];
    for family in Family::ALL {
        let packets = || family.packets(Match::new());
        flows.extend([
            find(claim(packets()), family, family.source()),
            next(check(check::CLAIMED_BY_OWNER, with_same(packets())), table::TARGET),
            next(check(check::UNKNOWN, without_owner(packets())), table::TARGET),
        ]);
    }
    flows
}

/// Checks that packets to an address go to the Ethernet address of its endpoint, because rules evaluate the former and
/// delivery uses the latter. The kernel of a pod also accepts packets for its address from multicast frames.
fn targets() -> Vec<Flow> {
    let check = |priority, m| passed(Flow::new(table::TARGET_CHECK, priority, m));
    let target = |family: Family| {
        Flow::new(table::TARGET, check::OTHER, family.packets(Match::new()))
            .apply(find_owner(family, family.destination()))
            .apply(compare(Field::EthDst))
            .apply([Action::resubmit(table::TARGET_CHECK)])
    };
    let mut flows: Vec<Flow> = Family::ALL.map(target).into();
    flows.extend([
        check(check::CLAIMED_BY_OWNER, with_same(Match::new())),
        check(check::UNKNOWN, without_owner(Match::new())),
    ]);
    flows
}

/// Checks the contents of ND messages from outside.
fn discovery() -> Vec<Flow> {
    let message = |m| Flow::new(table::LINK, check::UNKNOWN, m);
    let check = |priority, m| Flow::new(table::ADVERTISED_CHECK, priority, m);
    let from_outside = || match_from(metadata::OUTSIDE);
    let advertised = || advertisement(Match::new());
    let without_option = with_same(advertised()).field(Field::NdTll, 0u8);
    vec![
        named(message(solicitation(from_outside())), Field::NdSll),
        message(advertisement(from_outside()))
            .apply(find_owner(Family::V6, Field::NdTarget))
            .apply(compare(Field::EthSrc))
            .apply([Action::resubmit(table::ADVERTISED_CHECK)]),
        check(check::FORM, with_owner_at(Match::new(), Place::Here)),
        passed(check(check::CLAIMED_BY_OWNER + 1, without_option)),
        named_by_owner(check(check::CLAIMED_BY_OWNER, with_same(advertised())), Field::NdTll),
        named(check(check::UNKNOWN, without_owner(advertised())), Field::NdTll),
    ]
}

/// Checks that the message of an endpoint has the endpoint's own Ethernet address.
fn named_by_owner(flow: Flow, address: Field) -> Flow {
    flow.apply(compare(address)).apply([Action::resubmit(table::NAME_CHECK)])
}

/// Checks that a message with an Ethernet address of an endpoint comes from that endpoint.
fn named(flow: Flow, address: Field) -> Flow {
    flow.apply(find_station(address)).apply([Action::resubmit(table::NAME)])
}

fn names() -> Vec<Flow> {
    let known = Flow::new(table::NAME, priority::MISS, Match::new())
        .apply(take_for_owner())
        .apply(compare(Field::EthSrc))
        .apply([Action::resubmit(table::NAME_CHECK)]);
    let mut flows = vec![known];
    for (table, valid) in
        [(table::NAME, with_unknown_station as fn(Match) -> Match), (table::NAME_CHECK, with_same)]
    {
        let check = |m| Flow::new(table, priority::MATCH, valid(m));
        flows.extend([next(check(Match::new().arp()), table::LINK), passed(check(Match::new().ipv6()))]);
    }
    flows
}
