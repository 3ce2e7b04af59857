//! Outer headers of frames between nodes.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Result, anyhow, ensure};
use contiv_model::tag::Vni;
use netplugin::datapath::fake::{Delivery, Target};
use testkit::packet::{Packet, ethertype, protocol, verify};

use crate::node::topology::{NODE, VXLAN_PORT};

const ETHERNET: usize = 14;
/// Length of the outer headers up to the VXLAN header; the outer IP header has no options.
const TUNNEL: usize = ETHERNET + 20 + 8 + 8;

/// Encapsulates a frame from the node at `vtep` for the node under test.
pub(crate) fn encapsulated(macs: ([u8; 6], [u8; 6]), vtep: Ipv4Addr, vni: Vni, inner: &[u8]) -> Vec<u8> {
    let vxlan = [&[8, 0, 0, 0][..], &(vni.get() << 8).to_be_bytes()].concat();
    Packet::eth(macs.1, macs.0)
        .ipv4(vtep, NODE)
        .udp_unchecked(50_000, VXLAN_PORT)
        .payload(&[&vxlan, inner].concat())
        .build()
}

/// Decapsulates a frame that the node under test sent through a tunnel; `None` for other frames.
pub(crate) fn decapsulated(outer: &[u8]) -> Result<Option<Delivery>> {
    let field = |at: usize| Some(u16::from_be_bytes([*outer.get(at)?, *outer.get(at + 1)?]));
    let is_vxlan = field(12) == Some(ethertype::IPV4)
        && outer.get(ETHERNET + 9) == Some(&protocol::UDP)
        && field(ETHERNET + 22) == Some(VXLAN_PORT);
    if !is_vxlan {
        return Ok(None);
    }
    // The inner frame can be invalid on purpose; the outer headers must be valid.
    let total = field(ETHERNET + 2).map(usize::from);
    ensure!(total == Some(outer.len() - ETHERNET), "outer IP length {total:?} in {} bytes", outer.len());
    ensure!(outer[ETHERNET] == 0x45, "outer IP header with options");
    verify_outer(outer)?;
    let ip = |at: usize| Ipv4Addr::new(outer[at], outer[at + 1], outer[at + 2], outer[at + 3]);
    ensure!(ip(26) == NODE, "sent from {}, not from {NODE}", ip(26));
    ensure!(
        field(40) == Some(0),
        "outer UDP checksum {:#06x}: not every switch takes that",
        field(40).unwrap_or(0)
    );
    ensure!(outer[42..46] == [8, 0, 0, 0] && outer[49] == 0, "VXLAN header {:02x?}", &outer[42..50]);
    // VNI 0: a test frame of the userspace datapath (`datapath::ovs::switch::tunnel`).
    if outer[46..49] == [0; 3] {
        return Ok(None);
    }
    let vni = Vni::try_from(u32::from_be_bytes([0, outer[46], outer[47], outer[48]]))?;
    Ok(Some(Delivery {
        to: Target::Tunnel {
            vtep: IpAddr::V4(ip(30)),
            port: VXLAN_PORT,
            vni,
            dscp: outer[ETHERNET + 1] >> 2,
        },
        frame: outer[TUNNEL..].to_vec(),
    }))
}

fn verify_outer(outer: &[u8]) -> Result<()> {
    verify(outer).or_else(|complaint| {
        // The payload can be invalid on purpose.
        if complaint.starts_with("VXLAN payload") {
            Ok(())
        } else {
            Err(anyhow!("outer header: {complaint}"))
        }
    })
}
