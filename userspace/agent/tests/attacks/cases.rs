//! The list of attacks.

mod arp;
mod broadcast;
mod dhcp;
mod ethernet;
mod fragments;
mod headers;
mod icmp;
mod nd;
mod reuse;
mod services;
mod source;
mod state;
mod tunnel;
mod unknown;

use crate::attack::Attack;

pub(crate) fn all() -> Vec<Attack> {
    [
        ethernet::attacks(),
        broadcast::attacks(),
        source::attacks(),
        arp::attacks(),
        nd::attacks(),
        dhcp::attacks(),
        fragments::attacks(),
        headers::attacks(),
        icmp::attacks(),
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
