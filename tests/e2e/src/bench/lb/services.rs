//! Services of a benchmark: writes them to the store and waits for the node.

use std::{
    net::Ipv4Addr,
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use etcd_client::{Client as Store, Txn, TxnOp};
use serde_json::{Value, json};

use super::loading::{APPLY_TIMEOUT, BUSY, Loaded, PORTS, wait_for};
use crate::{
    bench::applied,
    cluster::{Node, Pod},
};

/// Backends per service.
pub(in crate::bench) const BACKENDS: usize = 4;
/// Keys per transaction; the limit of etcd is 128.
const PER_TRANSACTION: usize = 120;
/// Bytes per transaction; the limit of the store is 2 MB.
const MAX_TRANSACTION_BYTES: usize = 1_000_000;

pub(in crate::bench) fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Writes to the store in transactions like netmaster. Returns the revision of the last one.
pub(in crate::bench) fn put(
    node: &Node,
    runtime: &tokio::runtime::Runtime,
    store: &str,
    keys: &[(String, Value)],
) -> Result<i64> {
    transactions(
        node,
        runtime,
        store,
        keys.iter().map(|(key, value)| {
            let value = value.to_string();
            (value.len(), TxnOp::put(key.as_str(), value, None))
        }),
    )
}

/// Removes keys from the store. Returns the revision of the last transaction.
pub(in crate::bench) fn delete(
    node: &Node,
    runtime: &tokio::runtime::Runtime,
    store: &str,
    keys: &[String],
) -> Result<i64> {
    transactions(node, runtime, store, keys.iter().map(|key| (0, TxnOp::delete(key.as_str(), None))))
}

/// Operations with their size in bytes.
fn transactions(
    node: &Node,
    runtime: &tokio::runtime::Runtime,
    store: &str,
    operations: impl Iterator<Item = (usize, TxnOp)> + Send,
) -> Result<i64> {
    let mut operations = operations.peekable();
    node.netns().run(move || {
        runtime.block_on(async {
            let mut store = Store::connect([store], None).await.context("connect to the store")?;
            let mut revision = 0;
            while operations.peek().is_some() {
                let (mut transaction, mut bytes) = (vec![], 0);
                while transaction.len() < PER_TRANSACTION
                    && bytes < MAX_TRANSACTION_BYTES
                    && let Some((length, operation)) = operations.next()
                {
                    bytes += length;
                    transaction.push(operation);
                }
                let written =
                    store.txn(Txn::new().and_then(transaction)).await.context("write to the store")?;
                revision = written.header().context("a transaction has a revision")?.revision();
            }
            Ok(revision)
        })
    })
}

/// State of a service in the form that netmaster writes.
pub(in crate::bench) fn bodies(
    service: usize,
    ports: &[String],
    backends: &[Ipv4Addr],
) -> [(String, Value); 2] {
    let id = format!("s{service}:bench");
    let state = json!({"id": id, "servicename": format!("s{service}"), "tenantname": "bench",
        "subnet": "pods", "ports": ports, "selectors": {"a": "b"}, "ipaddress": vip(service),
        "providers": {}});
    let providers = json!({"id": id, "ServiceName": id, "Providers": backends});
    [
        (format!("/contiv.io/state/serviceLB/{id}"), state),
        (format!("/contiv.io/state/provider/{id}"), providers),
    ]
}

pub(super) fn vip(service: usize) -> Ipv4Addr {
    let first = u32::from(Ipv4Addr::new(10, 1, 128, 0));
    Ipv4Addr::from(first + service as u32)
}

/// Ports below 1000 are service ports.
pub(in crate::bench) fn target_port(service: usize) -> u16 {
    1000 + service as u16
}

pub(super) struct Bench<'a> {
    pub(super) node: &'a Node,
    /// Client, then backends.
    pub(super) pods: &'a [&'a Pod],
    pub(super) runtime: tokio::runtime::Runtime,
    pub(super) store: String,
}

impl Bench<'_> {
    /// Writes services, and waits until the node has applied them. Different target ports make all backends
    /// distinct.
    pub(super) fn load(&self, services: Range<usize>) -> Result<Loaded> {
        let (before, start) = (self.node.metric(BUSY)?, Instant::now());
        let revision = self.put(services.flat_map(|service| self.bodies(service, BACKENDS)).collect())?;
        let store = start.elapsed();
        applied::wait_for(self.node, revision)?;
        let behind = start.elapsed() - store;
        Ok(Loaded { store, behind, busy_s: self.node.metric(BUSY)? - before })
    }

    /// Writes or removes services, and waits until the node has applied the change.
    pub(super) fn resize(&self, before: usize, after: usize) -> Result<()> {
        self.put((before..after).flat_map(|service| self.bodies(service, BACKENDS)).collect())?;
        let gone = (after..before).flat_map(|service| self.bodies(service, BACKENDS));
        let gone: Vec<_> = gone.map(|(key, _)| key).collect();
        delete(self.node, &self.runtime, &self.store, &gone)?;
        wait_for(self.node, after)
    }

    fn bodies(&self, service: usize, backends: usize) -> [(String, Value); 2] {
        let ports: Vec<String> = match service {
            // Different target ports, so that one client port can be used for all.
            0 => (0..PORTS).map(|port| format!("{}:{}:TCP", 80 + port, 60_000 + port)).collect(),
            _ => vec![format!("80:{}:TCP", target_port(service))],
        };
        let addresses: Vec<Ipv4Addr> = self.pods[1..=backends].iter().map(|pod| pod.ip).collect();
        bodies(service, &ports, &addresses)
    }

    fn put(&self, keys: Vec<(String, Value)>) -> Result<i64> {
        put(self.node, &self.runtime, &self.store, &keys)
    }

    /// Map writes for the removal of a backend of the last service, and the time of the agent in milliseconds.
    pub(super) fn change(&self, services: usize) -> Result<(f64, f64)> {
        const WRITES: &str = "contiv_datapath_writes_total";
        const QUIET_TIME: Duration = Duration::from_millis(500);
        // Repeat if the periodic full resync of the agent ran meanwhile.
        const OBSERVED: &str = "contiv_datapath_resyncs_total";
        loop {
            thread::sleep(QUIET_TIME);
            let observed = self.node.metric(OBSERVED)?;
            let (before, busy) = (self.node.metric(WRITES)?, self.node.metric(BUSY)?);
            self.put(self.bodies(services - 1, BACKENDS - 1).to_vec())?;
            let start = Instant::now();
            while self.node.metric(WRITES)? == before {
                ensure!(start.elapsed() < APPLY_TIMEOUT, "a change was not applied to the maps");
                thread::sleep(Duration::from_millis(5));
            }
            thread::sleep(QUIET_TIME);
            let took = (self.node.metric(WRITES)? - before, (self.node.metric(BUSY)? - busy) * 1e3);
            let again = self.node.metric(OBSERVED)? != observed;
            self.put(self.bodies(services - 1, BACKENDS).to_vec())?;
            thread::sleep(QUIET_TIME);
            if !again {
                return Ok(took);
            }
        }
    }
}
