//! The destination Ethernet address of a packet is that of its destination IP address, in new flows and in established ones: rules
//! are selected by one and delivery by the other.

use anyhow::Result;
use contiv_abi::DropReason;
use contiv_model::service::Readiness;
use netplugin::datapath::Object;
use testkit::{
    needs,
    packet::{Packet, tcp_flags},
};

use super::{Endpoint, HERE, OTHER, Rig, VIP, between, tcp};
use crate::{flow_table, run::Code, services::service};

/// An endpoint that has no record.
const UNKNOWN: Endpoint = Endpoint(9);

/// A frame from `HERE` to the IP address of `to` with the Ethernet address of `mac`.
fn misaddressed(mac: Endpoint, to: Endpoint) -> Packet {
    Packet::eth(mac.mac(), HERE.mac()).ipv4(HERE.ip(), to.ip())
}

#[test]
fn a_new_flow_to_another_address_is_refused() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("ct-misaddressed")?;
    let ready = [(OTHER.ip().into(), Readiness::Ready)];
    rig.node.want(Object::Service(service(VIP.ip().into(), &ready)));
    rig.node.converge()?;
    let refused = [
        // To an endpoint: TCP, which begins a flow, UDP, a protocol without ports, and an error about an unknown flow.
        misaddressed(HERE, OTHER).tcp(1000, 80, tcp_flags::SYN),
        misaddressed(VIP, OTHER).udp(1000, 80),
        misaddressed(VIP, OTHER).icmp_echo_request(1, 1),
        // To a port of a service by the address of its backend, and to one that the service lacks: the guard precedes the
        // refusal.
        misaddressed(OTHER, VIP).tcp(1000, 80, tcp_flags::SYN),
        misaddressed(OTHER, VIP).udp(1000, 80),
        misaddressed(OTHER, VIP).tcp(1000, 81, tcp_flags::SYN),
        misaddressed(OTHER, VIP).icmp_echo_request(1, 1),
    ];
    for frame in &refused {
        rig.from(&rig.first, frame)?.assert_dropped(DropReason::AddressMismatch);
    }
    assert_eq!((flow_table::flows(&rig.node)?.len(), rig.event("made")), (0, 0));
    // An address without a record may be anywhere.
    let free = misaddressed(OTHER, UNKNOWN).udp(1000, 80);
    assert_eq!(rig.from(&rig.first, &free)?.code, Code::Redirect);
    Ok(())
}

#[test]
fn a_packet_of_a_flow_to_another_address_is_refused() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("ct-readdressed")?;
    let ready = [(OTHER.ip().into(), Readiness::Ready)];
    rig.node.want(Object::Service(service(VIP.ip().into(), &ready)));
    rig.node.converge()?;
    // Before and after the reply: the stages and the fast path.
    let (syn, ack) = (tcp_flags::SYN, tcp_flags::ACK);
    let (client, server) = ((HERE, 1000), (OTHER, 80));
    rig.exchange(&tcp(client, server, syn), &tcp(server, client, syn | ack))?;
    rig.exchange(&tcp(client, server, ack), &tcp(server, client, ack))?;
    let there = between(HERE, VIP).udp(1001, 80);
    assert_eq!(rig.from(&rig.first, &there)?.code, Code::Redirect);
    let before = flow_table::flows(&rig.node)?;
    for frame in [
        misaddressed(VIP, OTHER).tcp(1000, 80, ack),
        misaddressed(VIP, OTHER).tcp(1000, 80, syn),
        misaddressed(VIP, OTHER).tcp(1000, 80, tcp_flags::RST | ack),
        misaddressed(OTHER, VIP).udp(1001, 80),
    ] {
        rig.from(&rig.first, &frame)?.assert_dropped(DropReason::AddressMismatch);
    }
    assert_eq!(flow_table::flows(&rig.node)?, before);
    Ok(())
}
