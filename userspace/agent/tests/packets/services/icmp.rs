//! ICMP errors about translated packets, and fragments.

use nix::errno::Errno;

use super::*;

/// The beginning of an IP packet, as an ICMP error quotes it.
fn quote(packet: &Packet, len: usize) -> Vec<u8> {
    let frame = packet.build();
    frame[14..frame.len().min(14 + len)].to_vec()
}

#[test]
fn icmp_errors_about_translated_packets_are_translated() -> Result<()> {
    needs!(root());
    let rig = Rig::new("svc-icmp", &[OTHER])?;
    let (sent, arrived) = (
        between(HERE, VIP).udp(4000, 80).payload(b"query"),
        between(HERE, OTHER).udp(4000, 8080).payload(b"query"),
    );
    rig.becomes(HERE, &sent, &arrived);
    // From the backend: port unreachable, and packet too big.
    for (kind, code, rest) in [(3, 3, [0; 4]), (3, 4, [0, 0, 5, 0x78])] {
        for len in [28, 200] {
            let error = between(OTHER, HERE).icmp(kind, code, rest).payload(&quote(&arrived, len));
            let shown = answer_of(OTHER, HERE).icmp(kind, code, rest).payload(&quote(&sent, len));
            rig.becomes(OTHER, &error, &shown);
        }
    }
    // From the client, about a reply.
    let (answer, shown) = (between(OTHER, HERE).udp(8080, 4000), answer_of(OTHER, HERE).udp(80, 4000));
    rig.becomes(OTHER, &answer, &shown);
    let error = between(HERE, VIP).icmp(3, 3, [0; 4]).payload(&quote(&shown, 28));
    let arrives = between(HERE, OTHER).icmp(3, 3, [0; 4]).payload(&quote(&answer, 28));
    rig.becomes(HERE, &error, &arrives);
    // TCP, with and without the checksum in the quoted packet.
    let (sent, arrived) = (between(HERE, VIP).tcp(4000, 80, SYN), between(HERE, OTHER).tcp(4000, 8080, SYN));
    rig.becomes(HERE, &sent, &arrived);
    for len in [28, 40] {
        let error = between(OTHER, HERE).icmp(3, 1, [0; 4]).payload(&quote(&arrived, len));
        rig.becomes(OTHER, &error, &answer_of(OTHER, HERE).icmp(3, 1, [0; 4]).payload(&quote(&sent, len)));
    }
    // What follows the packet in its frame is no part of it.
    let error = between(OTHER, HERE).icmp(3, 1, [0; 4]).payload(&quote(&arrived, 28));
    let shown = answer_of(OTHER, HERE).icmp(3, 1, [0; 4]).payload(&quote(&sent, 28));
    let padded = |packet: &Packet| [packet.build(), vec![7; 20]].concat();
    let outcome = run(&rig.node, FROM_POD, &rig.second.local.port, &padded(&error))?;
    outcome.assert_sent_on(&padded(&shown));
    // About an unknown flow.
    let unknown =
        between(OTHER, HERE).icmp(3, 3, [0; 4]).payload(&quote(&between(HERE, OTHER).udp(1, 2), 28));
    rig.from(OTHER, &unknown)?.assert_dropped(DropReason::UnrelatedIcmpError);
    Ok(())
}

#[test]
fn icmpv6_errors_about_translated_packets_are_translated() -> Result<()> {
    needs!(root());
    let rig = Rig::with("svc-icmp6", service(VIP.ip6().into(), &[(OTHER.ip6().into(), Readiness::Ready)]))?;
    let [.., a, b, c, d] = VIP.ip6().octets();
    let vip_mac = [2, 2, a, b, c, d];
    let sent = Packet::eth(vip_mac, HERE.mac()).ipv6(HERE.ip6(), VIP.ip6()).udp(4000, 80).payload(b"query");
    let arrived = between6(HERE, OTHER).udp(4000, 8080).payload(b"query");
    rig.becomes(HERE, &sent, &arrived);
    // Unreachable, and packet too big.
    for (kind, code, rest) in [(1, 4, [0; 4]), (2, 0, [0, 0, 5, 0])] {
        let error = between6(OTHER, HERE).icmpv6(kind, code, rest).payload(&quote(&arrived, 100));
        let shown = Packet::eth(HERE.mac(), OTHER.mac()).ipv6(VIP.ip6(), HERE.ip6());
        rig.becomes(OTHER, &error, &shown.icmpv6(kind, code, rest).payload(&quote(&sent, 100)));
    }
    Ok(())
}

#[test]
fn every_fragment_goes_to_the_same_backend() -> Result<()> {
    needs!(root());
    let rig = Rig::new("svc-frag", &[OTHER])?;
    // The UDP checksum covers the whole packet; the translation of the first fragment must update it.
    let whole =
        |from: Endpoint, to: Endpoint, port| between(from, to).udp(4000, port).payload(&[7; 48]).build();
    let (sent, arrives) = (whole(HERE, VIP, 80), whole(HERE, OTHER, 8080));
    let first = |to: Endpoint, whole: &[u8]| {
        between(HERE, to).fragment(9, 0, true).protocol(17).payload(&whole[34..34 + 32])
    };
    let last = |to: Endpoint, whole: &[u8]| {
        between(HERE, to).fragment(9, 4, false).protocol(17).payload(&whole[34 + 32..])
    };
    rig.from(HERE, &last(VIP, &sent))?.assert_dropped(DropReason::UnknownFragment);
    rig.becomes(HERE, &first(VIP, &sent), &first(OTHER, &arrives));
    rig.becomes(HERE, &last(VIP, &sent), &last(OTHER, &arrives));
    let other = between(HERE, VIP).fragment(10, 4, false).protocol(17).payload(b"anything");
    rig.from(HERE, &other)?.assert_dropped(DropReason::UnknownFragment);
    Ok(())
}

/// The kernel compares the checksum of the device with the fragment.
#[test]
fn checksum_complete_stays_valid_in_later_fragments() -> Result<()> {
    needs!(root());
    let v4 = Rig::new("svc-fragsum", &[OTHER])?;
    let backends = [(OTHER.ip6().into(), Readiness::Ready)];
    let v6 = Rig::with("svc-fragsum6", service(VIP.ip6().into(), &backends))?;
    let [.., a, b, c, d] = VIP.ip6().octets();
    let to6 = Packet::eth([2, 2, a, b, c, d], HERE.mac()).ipv6(HERE.ip6(), VIP.ip6());
    for (rig, to_vip) in [(&v4, between(HERE, VIP)), (&v6, to6)] {
        let first = to_vip.clone().fragment(9, 0, true).udp(4000, 80).payload(&[7; 24]);
        assert_eq!(rig.from(HERE, &first)?.code, Code::Redirect);
        let last = to_vip.fragment(9, 4, false).protocol(17).payload(b"the rest");
        let target = rig.target(HERE)?;
        match rig.node.ns.run(|| Ok(target.give_checksum_complete(&last.build())))? {
            Err(Errno::EINVAL) => testkit::skip!("this kernel runs no packet with a sum of its own"),
            result => assert_eq!(result, Ok(()), "{last:?}"),
        }
    }
    Ok(())
}
