//! ICMP errors of pods.

use super::*;

/// No error is that long, and nothing of the later fragments is compared with a flow.
#[test]
fn icmp_errors_in_fragments_are_dropped() -> Result<()> {
    needs!(root());
    let rig = Rig::new("pod-errpiece")?;
    let request = Packet::eth(HERE.mac(), OTHER.mac()).ipv4(OTHER.ip(), HERE.ip()).udp(53, 4000);
    run(&rig.node, FROM_POD, &rig.second.local.port, &request.build())?.assert_sent_on(&request.build());
    let answer = Packet::eth(OTHER.mac(), HERE.mac()).ipv4(HERE.ip(), OTHER.ip());
    let about = Packet::bare().ipv4(OTHER.ip(), HERE.ip()).ip_id(7).udp(53, 4000).payload(b"four").build();
    let whole = answer.clone().icmp(3, 3, [0; 4]).payload(&about);
    rig.run(&whole)?.assert_sent_on(&whole.build());
    let first = answer.clone().fragment(9, 0, true).icmp(3, 3, [0; 4]).payload(&about);
    rig.run(&first)?.assert_dropped(DropReason::UnrelatedIcmpError);
    let later = answer.clone().fragment(9, 5, false).protocol(1).payload(b"more");
    rig.run(&later)?.assert_dropped(DropReason::UnknownFragment);
    // Fragments of other messages belong together.
    let first = answer.clone().fragment(10, 0, true).icmp_echo_request(1, 1).payload(&[0; 32]);
    rig.run(&first)?.assert_sent_on(&first.build());
    let later = answer.fragment(10, 5, false).protocol(1).payload(b"more");
    rig.run(&later)?.assert_sent_on(&later.build());
    Ok(())
}

/// A receiver reads a packet up to its end, and not the rest of the frame.
#[test]
fn bytes_behind_an_icmp_message_are_not_read() -> Result<()> {
    needs!(root());
    let rig = Rig::new("pod-errend")?;
    let answer = Packet::eth(OTHER.mac(), HERE.mac()).ipv4(HERE.ip(), OTHER.ip());
    let answer6 = Packet::eth(OTHER.mac(), HERE.mac()).ipv6(HERE.ip6(), OTHER.ip6());
    let ports = [Packet::bare().ipv4(OTHER.ip(), HERE.ip()), Packet::bare().ipv6(OTHER.ip6(), HERE.ip6())];
    let [about, about6] = ports.map(|packet| packet.udp(53, 4000).build());
    for sent in [&about, &about6] {
        let kind: [u8; 2] = if sent[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
        let frame = [&HERE.mac()[..], &OTHER.mac(), &kind, sent].concat();
        run(&rig.node, FROM_POD, &rig.second.local.port, &frame)?.assert_sent_on(&frame);
    }
    let error = answer.icmp(3, 3, [0; 4]);
    let error6 = answer6.icmpv6(1, 4, [0; 4]);
    for (error, quote, header) in [(&error, &about, 20), (&error6, &about6, 40)] {
        // The message, as much of the quote as is inside of the packet, and the rest of the quote.
        let behind = |inside: usize| {
            let mut frame = error.clone().payload(&quote[..inside]).build();
            frame.extend(&quote[inside..]);
            frame
        };
        for inside in [0, header - 1, header, header + 3] {
            rig.run_bytes(&behind(inside))?.assert_dropped(DropReason::UnrelatedIcmpError);
        }
        for inside in [header + 4, quote.len()] {
            rig.run_bytes(&behind(inside))?.assert_sent_on(&behind(inside));
        }
        // And a packet that ends before the message does.
        for missing in [1, 8] {
            let mut frame = error.build();
            let at = if header == 20 { 16 } else { 18 };
            let length = u16::from_be_bytes([frame[at], frame[at + 1]]) - missing;
            frame[at..at + 2].copy_from_slice(&length.to_be_bytes());
            frame.extend(quote);
            rig.run_bytes(&frame)?.assert_dropped(DropReason::Malformed);
        }
    }
    Ok(())
}

/// An error goes to the sender of a packet. Kernels do not compare the address of an ICMPv6 error with the packet in it, so one to
/// all nodes would tell each about a flow of its own.
#[test]
fn icmp_errors_to_groups_are_dropped() -> Result<()> {
    needs!(root());
    let rig = Rig::new("pod-errgroup")?;
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let about = Packet::bare().ipv6(OTHER.ip6(), FAR.ip6()).udp(53, 4000).payload(b"four").build();
    let about4 = Packet::bare().ipv4(OTHER.ip(), FAR.ip()).udp(53, 4000).payload(b"four").build();
    let six = |to: Ipv6Addr, mac| Packet::eth(mac, HERE.mac()).ipv6(HERE.ip6(), to);
    for to in [
        (all_nodes, mac("33:33:00:00:00:01")),
        (solicited_node(OTHER.ip6()), solicited_node_mac(OTHER.ip6())),
    ] {
        for (kind, code, rest) in [(1, 4, [0; 4]), (2, 0, [0, 0, 5, 0]), (100, 0, [0; 4])] {
            let error = six(to.0, to.1).icmpv6(kind, code, rest).payload(&about);
            rig.run(&error)?.assert_dropped(DropReason::UnrelatedIcmpError);
        }
        rig.run(&six(to.0, to.1).icmpv6(128, 0, [0; 4]).payload(b"ping"))?.assert_flooded();
    }
    let all_hosts = Packet::eth(mac("01:00:5e:00:00:01"), HERE.mac()).ipv4(HERE.ip(), [224, 0, 0, 1]);
    rig.run(&all_hosts.icmp(3, 3, [0; 4]).payload(&about4))?.assert_dropped(DropReason::UnrelatedIcmpError);
    Ok(())
}
