//! Delivery by IP address: the Ethernet address of a packet follows from its destination.

use std::net::IpAddr;

use contiv_model::{addresses::Addresses, mac::Mac};
use openflow_rs::{Action, Field, Flow, matching::mac_bits};

use super::{
    guard,
    metadata::network_match,
    policy,
    table::{self, priority},
};

/// Returns the flows of an endpoint's addresses.
pub(super) fn endpoint(tag: u32, mac: Mac, addresses: &Addresses) -> impl Iterator<Item = Flow> {
    addresses.iter().map(move |ip| to(tag, mac, ip))
}

/// Returns the flows of the addresses of the local endpoint at `port`, which may reach itself.
pub(super) fn local(tag: u32, port: u32, mac: Mac, addresses: &Addresses) -> impl Iterator<Item = Flow> {
    addresses.iter().flat_map(move |ip| {
        let mut own = to(tag, mac, ip);
        own.priority = priority::OWN_ADDRESS;
        own.matching = own.matching.in_port(port.into());
        // Where the pod sent it is where it comes from.
        let from = [policy::mark_returning(), Action::copy(Field::EthDst, Field::EthSrc)];
        own.instructions.apply.splice(0..0, from);
        [to(tag, mac, ip), own]
    })
}

fn to(tag: u32, mac: Mac, ip: IpAddr) -> Flow {
    let set = Action::set(Field::EthDst, mac_bits(mac.0));
    Flow::new(table::IP, priority::MATCH, guard::destination(network_match(tag), ip))
        .apply([set, Action::resubmit(table::DESTINATION_GROUP)])
}
