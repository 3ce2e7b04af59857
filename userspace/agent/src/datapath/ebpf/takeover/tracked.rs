//! Flows of this datapath, for the one that replaces it.

use std::{collections::HashMap, net::IpAddr};

use contiv_abi::{
    Flow, FlowHalf, TCP, UDP, Verdict,
    tcp::{TcpState, sent},
};
use contiv_model::service::Protocol;

use crate::datapath::{
    Desired, Error, Network, Object, SequenceNumbers, TrackedConnection,
    ebpf::{
        device,
        forward::domains::Domains,
        kernel::encode::segment_of,
        maps::{flows::FlowTable, pins::Pins, writes::Writes},
    },
};

/// Ports of the endpoints of this node, by domain and address.
type Ports = HashMap<(u32, IpAddr), u32>;

/// Returns the connections of networks in `desired` that rules allow, except those of endpoints whose address now belongs
/// to another endpoint.
pub(in crate::datapath::ebpf) fn connections(
    pins: &Pins,
    desired: &Desired,
) -> Result<Vec<TrackedConnection>, Error> {
    let domains = Domains::open(pins, &Writes::default())?;
    let mut networks = HashMap::new();
    for (_, object) in desired.iter() {
        let Object::Network(network) = object else { continue };
        if let Some(domain) = domains.of_network(&network.vrf, segment_of(network.encap)) {
            networks.entry(domain.number()).or_insert(network);
        }
    }
    let ports = ports(&domains, desired);
    let flows = FlowTable::open(pins)?;
    let current = flows.read().filter(|flow| is_current(flow, &ports));
    Ok(current.filter_map(|flow| connection(&flow, networks.get(&flow.head.domain)?)).collect())
}

fn ports(domains: &Domains, desired: &Desired) -> Ports {
    let mut ports = Ports::new();
    for (_, object) in desired.iter() {
        let Object::Local(local) = object else { continue };
        let domain = domains.of_network(&local.vrf, segment_of(local.encap));
        let Some((domain, port)) = domain.zip(device::ifindex(&local.port)) else { continue };
        let addresses = local.addresses.iter().chain([local.mac.link_local().into()]);
        ports.extend(addresses.map(|ip| ((domain.number(), ip), port)));
    }
    ports
}

/// Reports whether the endpoint that opened the flow still has its address.
fn is_current(flow: &Flow, ports: &Ports) -> bool {
    let owner = flow.halves[0].owner;
    match ports.get(&(flow.head.domain, IpAddr::from(flow.client))) {
        _ if owner == 0 => true,
        Some(port) => owner == *port,
        None => owner & FlowHalf::RECEIVED != 0,
    }
}

/// Returns `None` for an unreplied or closed flow, and for one whose receiver sees another port or address of the client.
fn connection(flow: &Flow, network: &Network) -> Option<TrackedConnection> {
    let [original, reply] = &flow.halves;
    let is_kept = flow.nat_port == flow.client_port && flow.head.flags & Flow::HAIRPIN == 0;
    if !flow.is_replied() || Verdict(original.verdict).is_denied() || !is_kept {
        return None;
    }
    let (protocol, is_closing) = match (flow.head.protocol, TcpState::of(original.sent, reply.sent)) {
        (UDP, _) => (Protocol::Udp, false),
        (TCP, TcpState::Established | TcpState::SynReceived) => (Protocol::Tcp, false),
        (TCP, TcpState::FinWait | TcpState::CloseWait) => (Protocol::Tcp, true),
        _ => return None,
    };
    let numbers = numbers(original, reply).zip(numbers(reply, original)).map(|(own, other)| [own, other]);
    let backend = (flow.head.flags & Flow::NAT != 0).then(|| (flow.backend.into(), flow.backend_port.get()));
    Some(TrackedConnection {
        vrf: network.vrf.clone(),
        network: network.id.clone(),
        encap: network.encap,
        protocol,
        client: (IpAddr::from(flow.client), flow.client_port.get()).into(),
        destination: (IpAddr::from(flow.destination), flow.destination_port.get()).into(),
        backend: backend.map(|end: (IpAddr, u16)| end.into()),
        is_closing,
        numbers: numbers.filter(|_| protocol == Protocol::Tcp),
    })
}

/// Returns the last numbers of one end, as far as its segments or those of the other end have shown them. A flow that was
/// imported from another datapath has no numbers before its next segments.
fn numbers(own: &FlowHalf, other: &FlowHalf) -> Option<SequenceNumbers> {
    let acknowledged = acknowledged(own).or_else(|| next(other, own))?;
    Some(SequenceNumbers { next: next(own, other)?, acknowledged })
}

fn next(own: &FlowHalf, other: &FlowHalf) -> Option<u32> {
    let is_known = own.sent & (sent::SYN | sent::ACK) != 0;
    if is_known { Some(own.end) } else { acknowledged(other) }
}

fn acknowledged(half: &FlowHalf) -> Option<u32> {
    (half.sent & sent::ACK != 0).then_some(half.acknowledged)
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable as _;
    use contiv_abi::{Address, Be16, FlowHead};
    use contiv_model::tag::Encap;

    use super::*;

    fn half(sent: u8, end: u32, acknowledged: u32) -> FlowHalf {
        FlowHalf { sent, end, acknowledged, ..FlowHalf::zeroed() }
    }

    #[test]
    fn flows_of_a_predecessor_are_none_of_its_address() {
        let client = Address::v4([10, 1, 0, 1]);
        let ports = Ports::from([((7, IpAddr::from(client)), 12)]);
        let is_current = |domain, owner| {
            let half = FlowHalf { owner, ..FlowHalf::zeroed() };
            let head = FlowHead { domain, ..FlowHead::default() };
            is_current(&Flow { client, head, halves: [half; 2], ..Flow::zeroed() }, &ports)
        };
        let owners = [0, 12, 11, 12 | FlowHalf::RECEIVED];
        assert_eq!(owners.map(|owner| is_current(7, owner)), [true, true, false, false]);
        // No endpoint of this node has the address.
        assert_eq!(owners.map(|owner| is_current(8, owner)), [true, false, false, true]);
    }

    #[test]
    fn flows_become_connections() {
        const ESTABLISHED: u8 = sent::ANY | sent::ACK;
        let network = Network::new("blue.net", Encap::Vlan(100.try_into().unwrap()));
        let [client, service, backend] = [1, 200, 2].map(|last| Address::v4([10, 1, 0, last]));
        let flow = Flow {
            client,
            destination: service,
            backend,
            client_port: Be16::new(4000),
            destination_port: Be16::new(80),
            nat_port: Be16::new(4000),
            backend_port: Be16::new(8080),
            head: FlowHead { domain: 7, protocol: TCP, flags: Flow::NAT, generation: 1 },
            halves: [half(ESTABLISHED, 11, 22), half(sent::ANY | sent::SYN, 33, 0)],
        };
        let found = connection(&flow, &network).unwrap();
        assert_eq!(
            (found.client, found.destination),
            ("10.1.0.1:4000".parse().unwrap(), "10.1.0.200:80".parse().unwrap())
        );
        assert_eq!((found.backend, found.is_closing), (Some("10.1.0.2:8080".parse().unwrap()), false));
        // The receiver has acknowledged nothing yet.
        let numbers = [(11, 22), (33, 11)].map(|(next, acknowledged)| SequenceNumbers { next, acknowledged });
        assert_eq!(found.numbers, Some(numbers));

        let [mut plain, mut closing, mut unanswered, mut reset, mut denied, mut moved, mut own] = [flow; 7];
        (plain.head.flags, plain.destination, plain.destination_port) = (0, backend, Be16::new(8080));
        assert_eq!(connection(&plain, &network).unwrap().backend, None);
        closing.halves[0].sent |= sent::FIN;
        assert!(connection(&closing, &network).unwrap().is_closing);
        unanswered.halves[1].sent = 0;
        reset.halves[1].sent |= sent::RST;
        denied.halves.iter_mut().for_each(|half| half.verdict = Verdict::DENIED_IN);
        moved.nat_port = Be16::new(4001);
        own.head.flags |= Flow::HAIRPIN;
        for other in [unanswered, reset, denied, moved, own] {
            assert_eq!(connection(&other, &network), None);
        }
        let idle = Flow { halves: [half(sent::ANY, 0, 0); 2], ..flow };
        assert_eq!(connection(&idle, &network).unwrap().numbers, None);
    }

    #[test]
    fn one_end_tells_the_numbers_of_the_other() {
        let (idle, known) = (half(sent::ANY, 0, 0), half(sent::ANY | sent::ACK, 11, 22));
        let told = |next, acknowledged| Some(SequenceNumbers { next, acknowledged });
        assert_eq!((numbers(&idle, &idle), numbers(&known, &idle)), (None, told(11, 22)));
        assert_eq!(numbers(&idle, &known), told(22, 11));
        // Only a reply to its SYN would show what the other end has sent.
        let syn = half(sent::ANY | sent::SYN, 11, 0);
        assert_eq!((numbers(&syn, &idle), numbers(&idle, &syn)), (None, None));
    }
}
