//! Counters by name, and usage of tables.

use anyhow::{Context as _, Result};
use contiv_abi::maps::{FLOWS, FROM_POD, SERVICE_COUNTS};
use contiv_model::service::{Protocol, Readiness};
use netplugin::datapath::{
    Datapath as _, Object, ObjectId,
    telemetry::{Counters, ServiceCounters, ServicePort, Traffic},
};
use testkit::{
    needs,
    packet::{Packet, tcp_flags},
};

use crate::{
    flow_table::slots,
    node::{Endpoint, Node, Pod, network, vxlan},
    run::run,
    services::service,
};

const HERE: Endpoint = Endpoint(1);
const OTHER: Endpoint = Endpoint(2);
const VIP: Endpoint = Endpoint(250);

struct Rig {
    node: Node,
    client: Pod,
    server: Pod,
}

fn rig(label: &str) -> Result<Rig> {
    let mut node = Node::new(label)?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1);
    node.want(Object::Service(service(VIP.ip().into(), &[(OTHER.ip().into(), Readiness::Ready)])));
    let (client, server) = (node.pod(&n1, HERE)?, node.pod(&n1, OTHER)?);
    node.converge()?;
    Ok(Rig { node, client, server })
}

impl Rig {
    /// A connection with `rounds` packets in each direction.
    fn connect(&self, port: u16, rounds: usize) -> Result<()> {
        for round in 0..rounds {
            let (ask, answer) = if round == 0 {
                (tcp_flags::SYN, tcp_flags::SYN | tcp_flags::ACK)
            } else {
                (tcp_flags::ACK, tcp_flags::ACK)
            };
            let there = Packet::eth(VIP.mac(), HERE.mac()).ipv4(HERE.ip(), VIP.ip()).tcp(port, 80, ask);
            run(&self.node, FROM_POD, &self.client.local.port, &there.build())?;
            let back = Packet::eth(HERE.mac(), OTHER.mac()).ipv4(OTHER.ip(), HERE.ip());
            let back = back.tcp(8080, port, answer).payload(b"answer");
            run(&self.node, FROM_POD, &self.server.local.port, &back.build())?;
        }
        Ok(())
    }
}

fn entries(counters: &Counters, table: &str) -> usize {
    counters.tables.iter().find(|fill| fill.table == table).map_or(usize::MAX, |fill| fill.entries)
}

#[test]
fn service_counters_equal_those_of_its_flows() -> Result<()> {
    needs!(root());
    let mut rig = rig("count-svc")?;
    assert_eq!(rig.node.datapath.counters()?.services, []);
    rig.connect(4000, 3)?;
    rig.connect(4001, 1)?;
    let web = ServicePort { service: "web:t".into(), protocol: Protocol::Tcp, port: 80 };
    let traffic = |packets, len| Traffic { packets, bytes: packets * len };
    let served = ServiceCounters { connections: 2, to_backends: traffic(4, 54), to_clients: traffic(4, 60) };
    let counters = rig.node.datapath.counters()?;
    assert_eq!(counters.services, [(web.clone(), served)]);
    assert_eq!(entries(&counters, SERVICE_COUNTS), 1);
    assert_eq!(entries(&counters, FLOWS), 2);
    // The data behind `/svcstats`.
    let connections = rig.node.datapath.telemetry().context("no telemetry")?.connections()?;
    let sum = connections.iter().fold((0, 0), |(there, back), connection| {
        (there + connection.to_backend.bytes, back + connection.to_client.bytes)
    });
    assert_eq!(sum, (served.to_backends.bytes, served.to_clients.bytes));
    let inside = rig.node.datapath.inspect();
    assert_eq!(inside["services"]["web:t:TCP:80"]["connections"], 2);
    assert_eq!(inside["services"]["web:t:TCP:80"]["in"]["packets"], 4);
    assert_eq!(inside["entriesOfPackets"]["ctv_flows"], 2);

    // A new process continues the counters.
    rig.node.restart();
    rig.node.observe()?;
    rig.connect(4002, 1)?;
    assert_eq!(
        rig.node.datapath.counters()?.services,
        [(web, ServiceCounters { connections: 3, to_backends: traffic(5, 54), to_clients: traffic(5, 60) })]
    );
    // The counters are removed with the service; continuing flows create none.
    rig.node.desired.remove(&ObjectId::Service("web:t".into()));
    rig.node.converge()?;
    rig.connect(4000, 1)?;
    let counters = rig.node.datapath.counters()?;
    assert_eq!((counters.services, entries(&rig.node.datapath.counters()?, SERVICE_COUNTS)), (vec![], 0));
    Ok(())
}

#[test]
fn a_retransmitted_first_packet_opens_no_further_connection() -> Result<()> {
    needs!(root());
    let rig = rig("count-again")?;
    let there = Packet::eth(VIP.mac(), HERE.mac()).ipv4(HERE.ip(), VIP.ip()).tcp(4000, 80, tcp_flags::SYN);
    for _ in 0..3 {
        run(&rig.node, FROM_POD, &rig.client.local.port, &there.build())?;
    }
    let [(_, served)] = rig.node.datapath.counters()?.services[..] else { panic!("one service is used") };
    assert_eq!((served.connections, served.to_backends.packets), (1, 3));
    assert_eq!(rig.node.datapath.inspect()["flows"]["made"], 1);
    let tables = rig.node.datapath.counters()?;
    assert_eq!((entries(&tables, FLOWS), slots(&rig.node)?), (1, 2));
    rig.connect(4000, 2)?;
    let tables = rig.node.datapath.counters()?;
    assert_eq!((entries(&tables, FLOWS), slots(&rig.node)?), (1, 2));
    let connections = rig.node.datapath.telemetry().context("no telemetry")?.connections()?;
    assert_eq!(connections.iter().map(|connection| connection.to_backend.packets).sum::<u64>(), 5);
    Ok(())
}
