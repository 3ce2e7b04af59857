//! Counters by name, and usage of tables.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use aya::maps::{HashMap, Map, MapData};
use contiv_abi::{
    Address, Be16, Flow, FlowKey, PolicyVerdict, Segment, TCP, TimedFlow, Tuple, bpf_timer,
    maps::{FLOWS, FROM_POD, NEW_FLOWS, SERVICE_COUNTS},
};
use contiv_model::service::{Protocol, Readiness};
use netplugin::datapath::{
    Datapath as _, Object, ObjectId,
    telemetry::{Counters, ServiceCounters, ServicePort, Traffic},
};
use testkit::{
    needs,
    packet::{Packet, tcp_flags},
    wait_until,
};

use crate::{
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
    // Packets of the flow cache are counted within two seconds.
    let counters = wait_until(Duration::from_secs(10), "all packets in the counts", || {
        let counters = rig.node.datapath.counters()?;
        Ok((counters.services == [(web.clone(), served)]).then_some(counters))
    })?;
    assert_eq!(entries(&counters, SERVICE_COUNTS), 1);
    // Each flow has two entries: the flow and its forward NAT entry.
    assert_eq!((entries(&counters, FLOWS), entries(&counters, NEW_FLOWS)), (4, 0));
    // The data behind `/svcstats`.
    let connections = rig.node.datapath.telemetry().context("no telemetry")?.connections()?;
    let sum = connections.iter().fold((0, 0), |(there, back), connection| {
        (there + connection.to_backend.bytes, back + connection.to_client.bytes)
    });
    assert_eq!(sum, (served.to_backends.bytes, served.to_clients.bytes));
    let inside = rig.node.datapath.inspect();
    assert_eq!(inside["services"]["web:t:TCP:80"]["connections"], 2);
    assert_eq!(inside["services"]["web:t:TCP:80"]["in"]["packets"], 4);
    assert_eq!(inside["entriesOfPackets"]["ctv_ct"], 4);

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
    // One entry, by the service address: the connection is unreplied.
    assert_eq!((entries(&tables, FLOWS), entries(&tables, NEW_FLOWS)), (0, 1));
    rig.connect(4000, 2)?;
    let tables = rig.node.datapath.counters()?;
    assert_eq!((entries(&tables, FLOWS), entries(&tables, NEW_FLOWS)), (2, 0));
    let connections = rig.node.datapath.telemetry().context("no telemetry")?.connections()?;
    assert_eq!(connections.iter().map(|connection| connection.to_backend.packets).sum::<u64>(), 5);
    Ok(())
}

/// A synthetic flow, distinct for each number.
fn stranger(number: u32) -> (FlowKey, TimedFlow) {
    let tuple = Tuple {
        source: Address::v4(number.to_be_bytes()),
        destination: Address::v4([10, 1, 1, 2]),
        source_port: Be16::new(number as u16),
        destination_port: Be16::new(80),
        protocol: TCP,
        zero: [0; 3],
    };
    let flow = Flow {
        packets: [0; 2],
        bytes: [0; 2],
        nat_ip: Address::default(),
        nat_port: Be16::new(0),
        nat_client_port: Be16::new(0),
        seen: 0,
        made: 0,
        service: 0,
        outward: PolicyVerdict::default(),
        inward: PolicyVerdict::default(),
        flags: 0,
        origin_is_low: 0,
        tcp: [0; 2],
        groups: [0; 2],
    };
    let timed = TimedFlow { flow, timer: bpf_timer::default() };
    (FlowKey::new(Segment::vxlan(99), &tuple, FlowKey::FLOW), timed)
}

#[test]
fn the_size_of_a_large_flow_table_is_estimated() -> Result<()> {
    needs!(root());
    const FLOWS_THERE: usize = 100_000;
    let rig = rig("count-many")?;
    let pin = rig.node.datapath.maps_directory().join(FLOWS);
    let mut map: HashMap<MapData, FlowKey, TimedFlow> =
        Map::from_map_data(MapData::from_pin(pin)?)?.try_into()?;
    for number in 0..FLOWS_THERE {
        let (key, value) = stranger(number as u32);
        map.insert(key, value, 0)?;
        // Up to the sample size, the count is exact.
        if number == 9_999 {
            assert_eq!(entries(&rig.node.datapath.counters()?, FLOWS), 10_000);
        }
    }
    let started = Instant::now();
    let counted = entries(&rig.node.datapath.counters()?, FLOWS);
    println!("{counted} of {FLOWS_THERE} flows counted in {:?}", started.elapsed());
    // Seven standard deviations.
    assert!(counted.abs_diff(FLOWS_THERE) < FLOWS_THERE * 7 / 128, "{counted}");
    Ok(())
}
