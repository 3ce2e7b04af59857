//! Entries of connection tracking that packets of the agent create.

use std::net::{IpAddr, SocketAddr};

use contiv_model::{policy, service::Protocol};
use openflow_rs::Action;

use super::{
    family::{Family, address_bits},
    metadata::{Domain, service_slice, service_value},
    policy::{self as rules, Opener},
    service,
};

/// Records a connection of a client as rules evaluate it. `to` is the number and the port of the service that the client
/// sends to. `opener` is the client. `is_on_link` says that the other end is on the client's link.
pub(crate) fn accepted(
    domain: Domain,
    client: IpAddr,
    (protocol, port): (Protocol, u16),
    to: Option<(u32, u16)>,
    (opener, is_on_link): (Opener, bool),
) -> Vec<Action> {
    let protocol = match protocol {
        Protocol::Tcp => policy::TCP,
        Protocol::Udp => policy::UDP,
    };
    let service = to.map_or(0, |(number, port)| service_value(number, port));
    let opened = [Action::load(service, service_slice()), rules::opened_by(protocol, port)];
    opened.into_iter().chain(opener.sends()).chain([rules::commit(domain, client, is_on_link)]).collect()
}

/// Records the backend of a client's connection to a service.
pub(crate) fn chosen(domain: Domain, backend: SocketAddr) -> Vec<Action> {
    let family = Family::of(backend.ip());
    vec![
        Action::set(family.register(), address_bits(backend.ip())),
        service::remember(family, domain, service::mark(backend.port())),
    ]
}
