//! Floods against the flow table of default size: pods that open as many connections as they can, and a flood of SYNs.
//! Connections of other pods go on, and they begin new ones.

use std::time::Instant;

use anyhow::Result;
use contiv_abi::maps::FROM_POD;
use contiv_model::service::Readiness;
use netplugin::datapath::{Datapath as _, Object};
use testkit::{
    needs,
    packet::{Packet, tcp_flags},
};

use crate::{
    flow_table,
    node::{Endpoint, Node, Pod, network, vxlan},
    run::{Code, Target},
    services::service,
};

const CLIENT: Endpoint = Endpoint(1);
const SERVER: Endpoint = Endpoint(2);
const HOGS: [Endpoint; 2] = [Endpoint(3), Endpoint(4)];
const VIP: Endpoint = Endpoint(250);
const SYN: u8 = tcp_flags::SYN;
const ACK: u8 = tcp_flags::ACK;
/// Connections of the client to the service, through the flood.
const CONNECTIONS: u16 = 10_000;
/// Connections that each hog opens, and the other answers: more than its share of the table.
const HOGGED: u16 = 30_000;
const SYNS: u32 = 100_000;
/// Flows that an endpoint may begin: a quarter of the table.
const QUOTA: usize = 65_536 / 4;
const FIRST_PORT: u16 = 10_000;

struct Rig {
    node: Node,
    /// The client, the server and the hogs.
    pods: Vec<Pod>,
    client: Target,
    server: Target,
    hogs: [Target; 2],
}

impl Rig {
    fn new() -> Result<Rig> {
        // On a slow machine the flood takes minutes; none of its flows may expire before its end.
        let mut node = Node::with("floods", |options| {
            let timeouts = &mut options.timeouts;
            (timeouts.tcp_opening, timeouts.unanswered) = (3600, 3600);
        })?;
        let n1 = network("n1.t", vxlan(10_001));
        node.want_network(&n1);
        let backends = [(SERVER.ip().into(), Readiness::Ready)];
        node.want(Object::Service(service(VIP.ip().into(), &backends)));
        let endpoints = [CLIENT, SERVER, HOGS[0], HOGS[1]];
        let pods: Vec<Pod> =
            endpoints.iter().map(|endpoint| node.pod(&n1, *endpoint)).collect::<Result<_>>()?;
        node.converge()?;
        let target = |pod: &Pod| Target::new(&node, FROM_POD, &pod.local.port);
        let [client, server] = [target(&pods[0])?, target(&pods[1])?];
        let hogs = [target(&pods[2])?, target(&pods[3])?];
        Ok(Rig { node, pods, client, server, hogs })
    }

    /// Sends one segment of the client's connection from this port, and checks that it arrives translated.
    fn ask(&self, port: u16, flags: u8) -> Result<()> {
        let sent = Packet::eth(VIP.mac(), CLIENT.mac()).ipv4(CLIENT.ip(), VIP.ip()).tcp(port, 80, flags);
        let arrives =
            Packet::eth(SERVER.mac(), CLIENT.mac()).ipv4(CLIENT.ip(), SERVER.ip()).tcp(port, 8080, flags);
        becomes(&self.client, &sent, &arrives)
    }

    /// The same of the server's answer.
    fn answer(&self, port: u16, flags: u8) -> Result<()> {
        let sent =
            Packet::eth(CLIENT.mac(), SERVER.mac()).ipv4(SERVER.ip(), CLIENT.ip()).tcp(8080, port, flags);
        let arrives =
            Packet::eth(CLIENT.mac(), SERVER.mac()).ipv4(VIP.ip(), CLIENT.ip()).tcp(80, port, flags);
        becomes(&self.server, &sent, &arrives)
    }

    fn connect(&self, port: u16) -> Result<()> {
        self.ask(port, SYN)?;
        self.answer(port, SYN | ACK)?;
        self.ask(port, ACK)
    }

    fn event(&self, name: &str) -> u64 {
        self.node.datapath.inspect()["flows"][name].as_u64().unwrap()
    }
}

#[track_caller]
fn becomes(target: &Target, sent: &Packet, arrives: &Packet) -> Result<()> {
    let (code, bytes) = target.give(&sent.build())?;
    assert_eq!((code, bytes), (Code::Redirect, arrives.build()), "left: received, right: expected");
    Ok(())
}

fn between(from: Endpoint, to: Endpoint, ports: (u16, u16), flags: u8) -> Vec<u8> {
    Packet::eth(to.mac(), from.mac()).ipv4(from.ip(), to.ip()).tcp(ports.0, ports.1, flags).build()
}

#[test]
fn connections_of_other_pods_survive_hogs_and_a_flood_of_syns() -> Result<()> {
    needs!(root());
    let rig = Rig::new()?;
    rig.node.ns.run(|| {
        let established = FIRST_PORT..FIRST_PORT + CONNECTIONS;
        for port in established.clone() {
            rig.connect(port)?;
        }
        let begin = Instant::now();
        for port in 0..HOGGED {
            for (hog, peer) in [(0, 1), (1, 0)] {
                let ports = (port, 7000 + hog as u16);
                rig.hogs[hog].give(&between(HOGS[hog], HOGS[peer], ports, SYN))?;
                rig.hogs[peer].give(&between(HOGS[peer], HOGS[hog], (ports.1, ports.0), SYN | ACK))?;
            }
        }
        let hogged = begin.elapsed();
        let begin = Instant::now();
        let mut new = FIRST_PORT + CONNECTIONS;
        for syn in 0..SYNS {
            let ports = (syn as u16, 9000 + (syn >> 16) as u16);
            rig.hogs[0].give(&between(HOGS[0], SERVER, ports, SYN))?;
            if syn % (SYNS / 100) == 0 {
                rig.connect(new)?;
                new += 1;
            }
        }
        println!(
            "{} connections of hogs in {hogged:?}, {SYNS} SYNs and 100 new connections in {:?}",
            2 * u32::from(HOGGED),
            begin.elapsed()
        );
        for port in established.chain(FIRST_PORT + CONNECTIONS..new) {
            rig.ask(port, ACK)?;
            rig.answer(port, ACK)?;
        }
        Ok(())
    })?;
    // The hogs have their share, and no more: a new flow is refused, or replaces one of the same hog's that may be evicted.
    // Nearly all of them may, so that refusals are rare, and say nothing.
    let flows = flow_table::flows(&rig.node)?;
    for hog in &rig.pods[2..] {
        let owner = rig.node.ifindex(&hog.local.port)?;
        let owned = flows.iter().filter(|flow| flow.halves[0].owner == owner).count();
        assert_eq!(owned, QUOTA, "evicted {}, refused {}", rig.event("evicted"), rig.event("over-quota"));
    }
    println!("evicted {}, refused {}", rig.event("evicted"), rig.event("over-quota"));
    assert_eq!(rig.node.drops()?, [].into());
    Ok(())
}
