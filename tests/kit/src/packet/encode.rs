//! Encodes layers to bytes, innermost first.

use super::{Ipv4, Ipv6, Layer, Tcp, checksum::Addresses, ethertype, internet_checksum, protocol};

const VXLAN_VNI_VALID: u8 = 0x08;

pub(super) fn encode(layers: &[Layer]) -> Vec<u8> {
    let mut bytes = vec![];
    for (at, layer) in layers.iter().enumerate().rev() {
        let (outer, inner) = (&layers[..at], layers.get(at + 1));
        bytes = wrap(layer, outer, inner, bytes);
    }
    bytes
}

fn wrap(layer: &Layer, outer: &[Layer], inner: Option<&Layer>, payload: Vec<u8>) -> Vec<u8> {
    let head = match layer {
        Layer::Bytes(bytes) => bytes.clone(),
        Layer::Eth { dst, src } => [&dst[..], &src[..], &ethertype_of(inner).to_be_bytes()].concat(),
        Layer::Vlan { tag } => [tag.to_be_bytes(), ethertype_of(inner).to_be_bytes()].concat(),
        Layer::Vxlan { vni } => {
            let [_, a, b, c] = vni.to_be_bytes();
            vec![VXLAN_VNI_VALID, 0, 0, 0, a, b, c, 0]
        }
        Layer::Arp { operation, sender, target } => {
            let mut arp = vec![0, 1, 8, 0, 6, 4];
            arp.extend(operation.to_be_bytes());
            for (mac, ip) in [sender, target] {
                arp.extend(mac);
                arp.extend(ip.octets());
            }
            arp
        }
        Layer::Ipv4(ip) => ipv4(ip, inner, payload.len()),
        Layer::Ipv6(ip) => ipv6(ip, inner, payload.len()),
        Layer::Icmp { kind, code, rest } => {
            let mut message = [&[*kind, *code, 0, 0], &rest[..], &payload].concat();
            let checksum = internet_checksum(&[&message]);
            message[2..4].copy_from_slice(&checksum.to_be_bytes());
            return message;
        }
        Layer::Icmpv6 { kind, code, rest } => {
            let message = [&[*kind, *code, 0, 0], &rest[..], &payload].concat();
            return with_checksum(message, 2, outer, protocol::ICMPV6);
        }
        Layer::Udp { source, destination, checksum } => {
            let length = (8 + payload.len()) as u16;
            let mut datagram: Vec<u8> =
                [source, destination, &length, &0].iter().flat_map(|field| field.to_be_bytes()).collect();
            datagram.extend(payload);
            return if *checksum { with_checksum(datagram, 6, outer, protocol::UDP) } else { datagram };
        }
        Layer::Tcp(tcp) => {
            let segment = [tcp_header(tcp), payload].concat();
            return with_checksum(segment, 16, outer, protocol::TCP);
        }
    };
    [head, payload].concat()
}

fn ethertype_of(inner: Option<&Layer>) -> u16 {
    match inner {
        Some(Layer::Vlan { .. }) => ethertype::VLAN,
        Some(Layer::Arp { .. }) => ethertype::ARP,
        Some(Layer::Ipv4(_)) => ethertype::IPV4,
        Some(Layer::Ipv6(_)) => ethertype::IPV6,
        // The first of the two numbers that IEEE keeps for experiments.
        _ => 0x88b5,
    }
}

fn protocol_of(inner: Option<&Layer>) -> u8 {
    match inner {
        Some(Layer::Icmp { .. }) => protocol::ICMP,
        Some(Layer::Icmpv6 { .. }) => protocol::ICMPV6,
        Some(Layer::Udp { .. }) => protocol::UDP,
        Some(Layer::Tcp(_)) => protocol::TCP,
        Some(Layer::Ipv4(_)) => 4,
        Some(Layer::Ipv6(_)) => 41,
        // The first of the two numbers that RFC 3692 keeps for experiments.
        _ => 253,
    }
}

fn ipv4(ip: &Ipv4, inner: Option<&Layer>, payload: usize) -> Vec<u8> {
    let length = 20 + ip.options.len();
    let fragment =
        u16::from(ip.dont_fragment) << 14 | u16::from(ip.more_fragments) << 13 | ip.offset & 0x1fff;
    let mut header = vec![0x40 | (length / 4) as u8, ip.tos];
    header.extend(((length + payload) as u16).to_be_bytes());
    header.extend(ip.id.to_be_bytes());
    header.extend(fragment.to_be_bytes());
    header.extend([ip.ttl, ip.protocol.unwrap_or_else(|| protocol_of(inner)), 0, 0]);
    header.extend(ip.src.octets());
    header.extend(ip.dst.octets());
    header.extend(&ip.options);
    let checksum = internet_checksum(&[&header]);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

fn ipv6(ip: &Ipv6, inner: Option<&Layer>, payload: usize) -> Vec<u8> {
    let next = ip.protocol.unwrap_or_else(|| protocol_of(inner));
    let extension = ip.fragment.map(|(offset, more, id)| {
        let mut extension = vec![next, 0];
        extension.extend((offset << 3 | u16::from(more)).to_be_bytes());
        extension.extend(id.to_be_bytes());
        extension
    });
    let first = if extension.is_some() { protocol::FRAGMENT } else { next };
    let extension = extension.unwrap_or_default();
    let start = 6 << 28 | u32::from(ip.traffic_class) << 20 | ip.flow_label & 0xf_ffff;
    let mut header = start.to_be_bytes().to_vec();
    header.extend(((extension.len() + payload) as u16).to_be_bytes());
    header.extend([first, ip.hop_limit]);
    header.extend(ip.src.octets());
    header.extend(ip.dst.octets());
    header.extend(extension);
    header
}

fn tcp_header(tcp: &Tcp) -> Vec<u8> {
    let length = 20 + tcp.options.len();
    let mut header = [tcp.source.to_be_bytes(), tcp.destination.to_be_bytes()].concat();
    header.extend(tcp.sequence.to_be_bytes());
    header.extend(tcp.acknowledgement.to_be_bytes());
    header.extend([((length / 4) << 4) as u8, tcp.flags]);
    header.extend(tcp.window.to_be_bytes());
    header.extend([0; 4]);
    header.extend(&tcp.options);
    header
}

/// Fills in the checksum at `at`; leaves it zero without an outer IP header.
fn with_checksum(mut segment: Vec<u8>, at: usize, outer: &[Layer], protocol: u8) -> Vec<u8> {
    let addresses = outer.iter().rev().find_map(|layer| match layer {
        Layer::Ipv4(ip) => Some(Addresses::V4(ip.src, ip.dst)),
        Layer::Ipv6(ip) => Some(Addresses::V6(ip.src, ip.dst)),
        _ => None,
    });
    if let Some(addresses) = addresses {
        let checksum = match addresses.checksum(protocol, &segment) {
            // In UDP zero means "no checksum"; 0xffff is sent instead.
            0 if protocol == protocol::UDP => 0xffff,
            checksum => checksum,
        };
        segment[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
    segment
}
