//! Converts connections of another datapath to flows. State that the other datapath does not provide is unknown: TCP
//! sequence numbers, which the next segment of each direction sets, and the verdict, which is evaluated for the next
//! packet.

use std::net::SocketAddr;

use bytemuck::Zeroable as _;
use contiv_abi::{
    Address, Be16, Flow, FlowHalf, FlowHead, FlowImport, ImportOperation, ImportResult, NeighEntry, NeighKey,
    ServiceKey, TCP, UDP, tcp::sent,
};
use contiv_model::service::Protocol;

use crate::datapath::{
    Error, TrackedConnection,
    ebpf::{
        kernel::{encode::segment_of, tables::Kernel},
        programs::{import::Importer, migration::Moved},
        telemetry::events::since_boot,
    },
};

/// Inserts the connections. Flows that packets have created meanwhile are kept.
pub(super) fn import(
    importer: &mut Importer,
    kernel: &Kernel,
    connections: &[TrackedConnection],
) -> Result<Moved, Error> {
    let now = since_boot().as_secs() as u32;
    let flows: Vec<Flow> = connections.iter().filter_map(|it| flow(kernel, it, now)).collect();
    let import =
        |flow: &Flow| FlowImport { flow: *flow, operation: ImportOperation::MERGE, ..FlowImport::zeroed() };
    let results = importer.run(&flows.iter().map(import).collect::<Vec<_>>())?;
    let lost =
        results.iter().filter(|result| **result <= ImportResult::TAKEN && **result != ImportResult::KEPT);
    let lost = connections.len() - flows.len() + lost.count();
    Ok(Moved { flows: connections.len() - lost, lost })
}

/// Returns `None` for a connection of a network, or to a service, that the node no longer has.
fn flow(kernel: &Kernel, connection: &TrackedConnection, now: u32) -> Option<Flow> {
    let TrackedConnection { vrf, encap, client, destination, backend, .. } = connection;
    let domain = kernel.domains.of_network(vrf, segment_of(*encap))?;
    let protocol = match connection.protocol {
        Protocol::Tcp => TCP,
        Protocol::Udp => UDP,
    };
    let address = |of: &SocketAddr| Address::from(of.ip());
    let port = |of: &SocketAddr| Be16::new(of.port());
    let number = match backend {
        None => 0,
        Some(_) => {
            let key = ServiceKey::new(domain, address(destination), port(destination), protocol);
            kernel.services.number(&key)?
        }
    };
    let receiver = backend.as_ref().unwrap_or(destination);
    let nat = if backend.is_some() { Flow::NAT } else { 0 };
    let hairpin = if backend.is_some() && receiver.ip() == client.ip() { Flow::HAIRPIN } else { 0 };
    let ends =
        [client, receiver].map(|end| kernel.vips.neighbours().get(&NeighKey::new(domain, address(end))));
    Some(Flow {
        client: address(client),
        destination: address(destination),
        backend: address(receiver),
        client_port: port(client),
        destination_port: port(destination),
        nat_port: port(client),
        backend_port: port(receiver),
        head: FlowHead { domain: domain.number(), protocol, flags: nat | hairpin, generation: 0 },
        halves: halves(ends, number, connection.is_closing, now),
    })
}

/// Returns both directions. `ends` are the records of client and receiver.
fn halves(ends: [Option<&NeighEntry>; 2], service: u32, is_closing: bool, now: u32) -> [FlowHalf; 2] {
    let here = ends.map(|end| end.filter(|end| end.ifindex != 0));
    let of_both = |sent: u8, other: u8| FlowHalf {
        groups: here.map(|end| end.map_or(0, |end| end.group as u16)),
        identities: ends.map(|end| end.map_or(FlowHalf::UNKNOWN, |end| end.group as u16)),
        owner: match here {
            [Some(client), _] => client.ifindex,
            [None, Some(receiver)] => receiver.ifindex | FlowHalf::RECEIVED,
            [None, None] => 0,
        },
        service,
        seen: now,
        made: now,
        sent,
        other,
        ..FlowHalf::zeroed()
    };
    // The timeout does not depend on which end has sent its FIN.
    let [client, receiver] = match is_closing {
        true => [sent::ANY | sent::FIN, sent::ANY | sent::ACKED_FIN],
        false => [sent::ANY; 2],
    };
    [of_both(client, receiver), of_both(receiver, client)]
}

#[cfg(test)]
mod tests {
    use contiv_abi::tcp::TcpState;

    use super::*;

    #[test]
    fn a_connection_has_the_groups_of_its_ends() {
        let end = |ifindex, group| NeighEntry { mac: [2; 6], flags: 0, ifindex, group };
        let (here, there) = (end(7, 3), end(0, 4));
        let [original, reply] = halves([Some(&there), Some(&here)], 9, false, 100);
        for half in [original, reply] {
            assert_eq!((half.groups, half.identities), ([0, 3], [4, 3]));
            assert_eq!((half.service, half.seen, half.made), (9, 100, 100));
            assert_eq!(half.owner, 7 | FlowHalf::RECEIVED);
        }
        let state = |halves: [FlowHalf; 2]| TcpState::of(halves[0].sent, halves[1].sent);
        assert_eq!(state([original, reply]), TcpState::Established);
        let closing = halves([None, Some(&there)], 0, true, 100);
        assert_eq!((closing[0].identities, closing[0].owner), ([FlowHalf::UNKNOWN, 4], 0));
        assert_eq!(closing[0].both_sent(false), closing[1].both_sent(true));
        assert_eq!(state(closing), TcpState::CloseWait);
    }
}
