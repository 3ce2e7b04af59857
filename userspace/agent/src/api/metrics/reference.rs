//! The metrics page of the reference. Families without a sample are not encoded, so each has one here.

use std::{
    convert::Infallible,
    fmt,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use contiv_bgp::{Counters as BgpCounters, Learnt, State, Status as BgpStatus};
use contiv_daemon::metrics_page;
use contiv_model::service::Protocol;

use super::{Condition, Measurements, Recorded, encode};
use crate::{
    attach::{
        Failure, Step, Verb,
        link::{AttachedPort, PodTraffic},
    },
    bgp::{Report, Running},
    datapath::{
        Kind, Observed, Op, Owner,
        telemetry::{Counters, ServiceCounters, ServicePort, Stats, TableUsage, Traffic},
    },
    reconcile::Status,
    sysctl::Tracking,
};

/// Markdown with a row per metric.
pub fn reference_page() -> Result<String, fmt::Error> {
    let (recorded, status, measurements) = sample(1);
    let (_, _, reader, _) = crate::state::new([]);
    let session = session();
    let text = encode(&recorded, &condition(&status, &session), &measurements, &reader)?;
    Ok(metrics_page::page("Metrics of netplugin", &text))
}

/// A failed ADD of 3 ms, and one sample of each family, but `rules` rules.
pub(super) fn sample(rules: usize) -> (Recorded, Status, Measurements) {
    let recorded = Recorded::default();
    let failed = Err::<(), _>(Failure::new(Step::Plug, "no namespace"));
    recorded.requests.record(Verb::Add, Duration::from_millis(3), &failed);
    recorded.reconciler.record_lag(Duration::ZERO);
    recorded.reconciler.record_observe(&Ok(Observed::default()), Duration::ZERO);
    recorded.reconciler.record_apply(&[Op::GarbageCollect], &Ok(vec![]), Duration::ZERO);
    let read = Ok::<(), contiv_store::Error>(());
    recorded.store.record(contiv_store::Operation::Get, &read, Duration::ZERO);
    let stats = Stats {
        drops: vec![("policy", 3)],
        flows: vec![("made", 4)],
        tables: vec![TableUsage { table: "ctv_fdb", entries: 2, capacity: 9 }],
        dsr_forwarded: vec![("xdp", 5)],
        announcements: vec![("sent", 6)],
        endpoint_announcements: vec![("sent", 8)],
        hooks: vec![("xdp", "native".to_owned())],
    };
    let traffic = |packets| Traffic { packets, bytes: packets * 100 };
    let web = ServicePort { service: "web:t".into(), protocol: Protocol::Tcp, port: 80 };
    let served = ServiceCounters { connections: 2, to_backends: traffic(12), to_clients: traffic(9) };
    let rule = |n: usize| (format!("rule-{n:04}").as_str().into(), traffic(1));
    let counters = Counters {
        rules: (0..rules).map(rule).collect(),
        services: vec![(web, served)],
        tables: vec![TableUsage { table: "ctv_flows", entries: 5, capacity: 8 }],
        drops: vec![],
    };
    let pods = vec![PodTraffic {
        port: AttachedPort { port: "vvport1".into(), endpoint: "n.t-c1".into(), owner: Owner::Pod },
        sent: traffic(7),
        received: traffic(8),
    }];
    let counters = recorded.series.read(|| Ok::<_, Infallible>(counters)).unwrap_or_default();
    let status = Status { writes: 7, ..Status::default() };
    (recorded, status, Measurements { stats, counters, pods, tracking: Some(Tracking { used: 10, max: 11 }) })
}

/// The condition of an agent with one degraded condition, and two unfinished attachments.
pub(super) fn condition<'a>(status: &'a Status, bgp: &'a Report) -> Condition<'a> {
    Condition {
        datapath: Kind::Ebpf,
        status,
        degraded: 1,
        unfinished: 2,
        bgp,
        regressed: false,
        store_connected: true,
    }
}

/// An established BGP session.
pub(super) fn session() -> Report {
    let status = BgpStatus {
        state: State::Established,
        established: None,
        failure: None,
        local_as: 65000,
        router_id: Ipv4Addr::new(50, 1, 1, 1),
        neighbor: IpAddr::from([50, 1, 1, 2]),
        neighbor_as: 65001,
        negotiated: None,
        received: 7,
        stale: 0,
        advertised: 6,
        counters: BgpCounters {
            established: 2,
            sent: 4,
            received: 3,
            updates_sent: 1,
            updates_received: 1,
            updates_malformed: 5,
            prefixes_ignored: 6,
        },
    };
    Report::Running(Box::new(Running {
        status,
        learnt: Learnt::default(),
        router: "50.1.1.1/24".parse().unwrap_or_default(),
        addresses: std::sync::Arc::default(),
        is_remembered: false,
    }))
}
