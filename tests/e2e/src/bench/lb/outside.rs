//! A client on a VLAN outside of the cluster, and a service with backends on another node.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use aya::programs::Xdp;
use testkit::{packet::Packet, wait_until};

use super::{
    services::{self, put, runtime},
    wire::{End, Wire},
};
use crate::{
    bench::pinned,
    cluster::{Cluster, Encap, Network, Node, Pod},
};

pub(super) const PROGRAM: &str = "ctv_xdp";
pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 200, 1);
/// Offset of the UDP source port in a tagged frame.
pub(super) const SOURCE_PORT: i16 = 38;
const UPLINK: &str = "uplink0";
const SERVICE: usize = 0;
const PORT: u16 = 80;
const CLIENT_MAC: [u8; 6] = [2, 0x99, 0, 0, 0, 1];
/// Payload bytes of the smallest Ethernet frame, without frame check sequence.
const PAYLOAD: [u8; 14] = [0; 14];
/// VLAN id of the first network.
const TAG: u16 = 1;
/// Maximum number of clients to try until one has a backend on the other node.
const CLIENTS: u32 = 64;
const APPLY_TIMEOUT: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Outside {
    pub(super) wire: Wire,
    /// Pin of our program.
    pub(super) program: PathBuf,
    /// Frame of a client with a backend on the other node.
    pub(super) frame: Vec<u8>,
    _end: Xdp,
    _pods: Vec<Pod>,
    _cluster: Cluster,
}

impl Outside {
    /// Builds the setup. A program that drops frames replaces the other node after its pods are known. `None` if the agent does
    /// not have the program.
    pub(super) fn build(drop: &Path, sender: &Path) -> Result<Option<Outside>> {
        let network = Network::bench();
        let mut cluster = Cluster::ebpf(Encap::Vlan, &network)?;
        let mut pods = vec![];
        for node in &mut cluster.nodes {
            if pinned::find(node.pins(), PROGRAM).is_err() {
                return Ok(None);
            }
            // By default the agent does not use native XDP on veth: XDP_TX requires a program at the other end.
            node.restart_agent_with(&["--xdp", "native"])?;
            for number in 0..2 {
                pods.push(Pod::add(node, &network, &format!("{}-{number}", node.name))?);
            }
        }
        let backends: Vec<Ipv4Addr> = pods.iter().map(|pod| pod.ip).collect();
        let keys = services::bodies(SERVICE, &[format!("{PORT}:8080:UDP")], &backends);
        put(&cluster.nodes[0], &runtime()?, &cluster.fabric.store_endpoint(), &keys)?;
        let announcing = wait_until(APPLY_TIMEOUT, "a node announces the service", || {
            let sent = |node: &Node| node.metric(r#"contiv_datapath_announcements_total{outcome="sent"}"#);
            let sent: Vec<f64> = cluster.nodes.iter().map(sent).collect::<Result<_>>()?;
            Ok(sent.iter().position(|sent| *sent > 0.0))
        })?;
        // The node that answers for the service is the first one.
        cluster.nodes.swap(0, announcing);
        let [first, second] = &mut cluster.nodes[..] else { bail!("a cluster has two nodes") };
        second.kill_agent()?;
        second.clean_up()?;
        let [client, node] =
            [&*second, &*first].map(|node| End { netns: node.netns().clone(), link: UPLINK.to_owned() });
        let end = client.attach(drop)?;
        let wire = Wire { sender: client, node };
        let frame = relayed(first, &wire, sender)?;
        let program = pinned::find(first.pins(), PROGRAM)?;
        Ok(Some(Outside { wire, program, frame, _end: end, _pods: pods, _cluster: cluster }))
    }
}

/// Finds a client with a backend on the other node, and returns its frame. The backend does not depend on the port.
fn relayed(node: &Node, wire: &Wire, sender: &Path) -> Result<Vec<u8>> {
    const SOME: u32 = 100;
    let start = Instant::now();
    loop {
        for number in 0..CLIENTS {
            let frame = frame(Ipv4Addr::from(u32::from(CLIENT) + number));
            let flood = wire.flood(sender, &frame, SOME)?;
            if flood.back == u64::from(SOME) {
                return Ok(frame);
            }
        }
        if start.elapsed() > APPLY_TIMEOUT {
            let inspected = node.client().get("/inspect/driver")?.body;
            bail!("no frame of {CLIENTS} clients is forwarded to the other node: {inspected}");
        }
        thread::sleep(PAUSE);
    }
}

/// Frame from an outside client to the MAC address of the service.
pub(super) fn ethernet() -> [u8; 12] {
    let [a, b, c, d] = services::vip(SERVICE).octets();
    let mut bytes = [2, 2, a, b, c, d, 0, 0, 0, 0, 0, 0];
    bytes[6..].copy_from_slice(&CLIENT_MAC);
    bytes
}

pub(super) fn frame(client: Ipv4Addr) -> Vec<u8> {
    let to = ethernet();
    let destination = [to[0], to[1], to[2], to[3], to[4], to[5]];
    Packet::eth(destination, CLIENT_MAC)
        .vlan(TAG)
        .ipv4(client, services::vip(SERVICE))
        .udp(1024, PORT)
        .payload(&PAYLOAD)
        .build()
}
