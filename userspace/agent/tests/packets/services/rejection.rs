//! Connections to services without backends, and to unknown ports.

use super::*;

#[test]
fn connections_to_a_service_without_backends_are_rejected() -> Result<()> {
    needs!(root());
    let rig = Rig::new("svc-none", &[])?;
    let refused = |outcome: Outcome, reason, answer: &Packet| {
        assert_eq!((outcome.code, &outcome.dropped[..]), (Code::Redirect, &[reason][..]));
        assert_eq!(outcome.bytes, answer.build());
    };
    let syn = between(HERE, VIP).tcp(4000, 80, SYN).sequence(u32::MAX, 0);
    let reset = |flags| between(VIP, HERE).ip_id(0).tcp(80, 4000, flags).window(0);
    let reset_ack = tcp_flags::RST | tcp_flags::ACK;
    refused(rig.from(HERE, &syn)?, DropReason::NoBackend, &reset(reset_ack).sequence(0, 0));
    // Payload of a SYN is acknowledged; a segment with ACK is reset with its acknowledgement number (RFC 9293,
    // section 3.10.7.1).
    let data = between(HERE, VIP).tcp(4000, 80, SYN).sequence(10, 0).payload(b"four");
    refused(rig.from(HERE, &data)?, DropReason::NoBackend, &reset(reset_ack).sequence(0, 15));
    let ack = between(HERE, VIP).tcp(4000, 80, ACK).sequence(10, 20).tcp_options(&[1, 1, 1, 1]);
    refused(rig.from(HERE, &ack)?, DropReason::NoBackend, &reset(tcp_flags::RST).sequence(20, 0));
    // A RST is not answered.
    rig.from(HERE, &between(HERE, VIP).tcp(4000, 80, tcp_flags::RST))?.assert_dropped(DropReason::NoBackend);

    let query = between(HERE, VIP).udp(4000, 80).payload(b"a query that is long enough");
    let quoted = &query.build()[14..14 + 28];
    let unreachable = between(VIP, HERE).ip_id(0).icmp(3, 3, [0; 4]).payload(quoted);
    refused(rig.from(HERE, &query)?, DropReason::NoBackend, &unreachable);
    // Another port, and another protocol.
    let query = between(HERE, VIP).udp(4000, 81).payload(b"q");
    let unreachable = between(VIP, HERE).ip_id(0).icmp(3, 3, [0; 4]).payload(&query.build()[14..14 + 28]);
    refused(rig.from(HERE, &query)?, DropReason::NoService, &unreachable);
    rig.from(HERE, &between(HERE, VIP).icmp_echo_request(1, 1))?.assert_dropped(DropReason::NoService);
    Ok(())
}

/// The record of a backend may be on its way: the client tries again.
#[test]
fn connections_to_a_backend_without_a_record_are_dropped() -> Result<()> {
    needs!(root());
    let rig = Rig::new("svc-strange", &[Endpoint(9)])?;
    for frame in [between(HERE, VIP).tcp(4000, 80, SYN), between(HERE, VIP).udp(4000, 80)] {
        rig.from(HERE, &frame)?.assert_dropped(DropReason::StrangeBackend);
    }
    Ok(())
}

#[test]
fn ipv6_connections_to_a_service_without_backends_are_rejected() -> Result<()> {
    needs!(root());
    let rig = Rig::with("svc-none6", service(VIP.ip6().into(), &[]))?;
    let [.., a, b, c, d] = VIP.ip6().octets();
    let vip_mac = [2, 2, a, b, c, d];
    let to_vip = || Packet::eth(vip_mac, HERE.mac()).ipv6(HERE.ip6(), VIP.ip6());
    let from_vip = || Packet::eth(HERE.mac(), vip_mac).ipv6(VIP.ip6(), HERE.ip6());
    let outcome = rig.from(HERE, &to_vip().tcp(4000, 80, SYN).sequence(41, 0))?;
    let reset = from_vip().tcp(80, 4000, tcp_flags::RST | tcp_flags::ACK).window(0).sequence(0, 42);
    assert_eq!((outcome.bytes, &outcome.dropped[..]), (reset.build(), &[DropReason::NoBackend][..]));
    let query = to_vip().udp(4000, 80).payload(b"a query that is long enough");
    let outcome = rig.from(HERE, &query)?;
    let unreachable = from_vip().icmpv6(1, 4, [0; 4]).payload(&query.build()[14..14 + 48]);
    assert_eq!((outcome.bytes, &outcome.dropped[..]), (unreachable.build(), &[DropReason::NoBackend][..]));
    Ok(())
}
