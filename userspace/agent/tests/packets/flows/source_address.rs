//! Source addresses of pods, and headers in front of them.

use std::net::Ipv6Addr;

use anyhow::Result;
use contiv_abi::{DropReason, maps::FROM_POD};
use contiv_model::mac::Mac;
use testkit::{
    needs,
    packet::{BROADCAST, Packet, mac},
};

use super::{FAR, HERE, OTHER, Rig};
use crate::run::run;

#[test]
fn a_pod_sends_only_with_its_own_addresses() -> Result<()> {
    needs!(root());
    let rig = Rig::new("spoof")?;
    let dropped = |frame: Packet, reason| -> Result<()> {
        rig.from(&rig.first, &frame)?.assert_dropped(reason);
        Ok(())
    };
    let (spoofed_mac, spoofed_ip) = (DropReason::SpoofedMac, DropReason::SpoofedIp);
    dropped(Packet::eth(FAR.mac(), OTHER.mac()).ipv4(HERE.ip(), FAR.ip()).udp(1, 2), spoofed_mac)?;
    dropped(Packet::eth(FAR.mac(), HERE.mac()).ipv4(OTHER.ip(), FAR.ip()).udp(1, 2), spoofed_ip)?;
    dropped(Packet::eth(FAR.mac(), HERE.mac()).ipv6(OTHER.ip6(), FAR.ip6()).udp(1, 2), spoofed_ip)?;
    dropped(Packet::eth(FAR.mac(), HERE.mac()).ipv4([0, 0, 0, 0], FAR.ip()).udp(1, 2), spoofed_ip)?;
    let foreign: Ipv6Addr = "fe80::1".parse()?;
    dropped(Packet::eth(FAR.mac(), HERE.mac()).ipv6(foreign, FAR.ip6()).udp(1, 2), spoofed_ip)?;
    dropped(
        Packet::eth(FAR.mac(), HERE.mac()).ipv6(foreign, FAR.ip6()).icmpv6_echo_request(1, 1),
        spoofed_ip,
    )?;
    // The address that the pod's kernel forms.
    let link_local = Mac(HERE.mac()).link_local();
    // ARP requests and replies with the address of another endpoint.
    dropped(Packet::arp_request(HERE.mac(), OTHER.ip(), FAR.ip()), spoofed_ip)?;
    dropped(Packet::arp_reply(HERE.mac(), OTHER.ip(), FAR.mac(), FAR.ip()), spoofed_ip)?;
    dropped(
        Packet::eth(BROADCAST, HERE.mac()).arp(2, (OTHER.mac(), HERE.ip()), (FAR.mac(), FAR.ip())),
        spoofed_ip,
    )?;
    // ND with the address of another endpoint.
    let claim =
        Packet::neighbour_advertisement((FAR.mac(), FAR.ip6()), (HERE.mac(), OTHER.ip6()), HERE.mac(), 0);
    dropped(claim, spoofed_ip)?;
    let claim =
        Packet::neighbour_advertisement((FAR.mac(), FAR.ip6()), (HERE.mac(), HERE.ip6()), HERE.mac(), 0)
            .build();
    let outcome = run(&rig.node, FROM_POD, &rig.first.local.port, &claim)?;
    outcome.assert_sent_on(&claim);
    let mut claim = claim;
    claim[62..78].copy_from_slice(&OTHER.ip6().octets());
    run(&rig.node, FROM_POD, &rig.first.local.port, &claim)?.assert_dropped(spoofed_ip);
    // Packets of a stack without an address: broadcasts, and link-local ICMPv6.
    let ask = Packet::eth(BROADCAST, HERE.mac()).ipv4([0, 0, 0, 0], [255, 255, 255, 255]).udp(68, 67);
    rig.from(&rig.first, &ask)?.assert_flooded();
    let report =
        Packet::eth(mac("33:33:00:00:00:16"), HERE.mac()).ipv6(link_local, "ff02::16".parse::<Ipv6Addr>()?);
    rig.from(&rig.first, &report.icmpv6(143, 0, [0; 4]))?.assert_flooded();
    // One that has no address at all reports its groups, and sends nothing else but neighbour discovery.
    let unspecified = || {
        Packet::eth(mac("33:33:00:00:00:16"), HERE.mac())
            .ipv6(Ipv6Addr::UNSPECIFIED, Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16))
            .protocol(0)
    };
    for kind in [131, 132, 143] {
        let report = unspecified().payload(&[58, 0, 5, 2, 0, 0, 1, 0]).icmpv6(kind, 0, [0; 4]);
        rig.from(&rig.first, &report)?.assert_flooded();
    }
    for kind in [1, 128, 130, 135, 200] {
        dropped(unspecified().payload(&[58, 0, 5, 2, 0, 0, 1, 0]).icmpv6(kind, 0, [0; 4]), spoofed_ip)?;
    }
    dropped(unspecified().payload(&[17, 0, 5, 2, 0, 0, 1, 0]).udp(1, 2), spoofed_ip)?;
    let ping = Packet::eth(FAR.mac(), HERE.mac()).ipv6(link_local, FAR.ip6()).icmpv6_echo_request(1, 1);
    rig.from(&rig.first, &ping)?.assert_sent_on(&ping.build());
    Ok(())
}

#[test]
fn extension_headers_are_parsed_up_to_a_limit() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ext")?;
    let chain = |count: usize| {
        let udp = Packet::bare().ipv6(HERE.ip6(), OTHER.ip6()).udp(1, 2).build();
        let mut payload = vec![];
        for left in (0..count).rev() {
            payload.extend([if left > 0 { 60 } else { 17 }, 0, 1, 4, 0, 0, 0, 0]);
        }
        payload.extend(&udp[40..]);
        let next = if count > 0 { 60 } else { 17 };
        Packet::eth(OTHER.mac(), HERE.mac()).ipv6(HERE.ip6(), OTHER.ip6()).protocol(next).payload(&payload)
    };
    for count in 0..=4 {
        rig.from(&rig.first, &chain(count))?.assert_sent_on(&chain(count).build());
    }
    assert_eq!(rig.unreplied()?, 1, "all of them are the same flow");
    rig.from(&rig.first, &chain(5))?.assert_dropped(DropReason::TooManyHeaders);
    Ok(())
}
