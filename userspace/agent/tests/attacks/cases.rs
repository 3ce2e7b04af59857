//! The list of attacks.

mod addresses;
mod arp;
mod broadcast;
mod dhcp;
mod ethernet;
mod fragments;
mod headers;
mod icmp;
mod misread;
mod nd;
mod reuse;
mod services;
mod source;
mod state;
mod tunnel;
mod unknown;

use crate::attack::Attack;

/// Attacks on what the oracle leaves out (`fake::traffic`): fragments, the end of connections, translated replies, TCP sequence
/// numbers, the node's own address, and the review of connections whose peer has changed.
const BEYOND_THE_ORACLE: [&str; 11] = [
    "fragment",
    "SYN with the ports of a connection that ended",
    "through a service",
    "destination options behind the fragment header",
    "that is not on the way, in the name of the connection's end",
    "pod speaks VXLAN to the node",
    "of a denied group takes an address, and answers",
    "overlapping",
    "ends before the header",
    "NA in two",
    "Fragment",
];

/// The attacks that the oracle has to withstand.
pub(crate) fn of_the_oracle() -> Vec<Attack> {
    let mut attacks = all();
    attacks.retain(|attack| !BEYOND_THE_ORACLE.iter().any(|part| attack.name.contains(part)));
    attacks
}

pub(crate) fn all() -> Vec<Attack> {
    [
        addresses::attacks(),
        ethernet::attacks(),
        broadcast::attacks(),
        source::attacks(),
        arp::attacks(),
        nd::attacks(),
        dhcp::attacks(),
        fragments::attacks(),
        headers::attacks(),
        icmp::attacks(),
        misread::attacks(),
        tunnel::attacks(),
        state::attacks(),
        services::attacks(),
        reuse::attacks(),
        unknown::attacks(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
