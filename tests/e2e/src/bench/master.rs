use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::{Value, json};
use testkit::{etcd::Etcd, wait_until};

use super::{latency::Latency, memory::Memory, raw, report::Report};
use crate::{
    http::{Client, JSON},
    interrupt,
    master::{Master, Options as MasterOptions, Store},
    progress::step,
};

const TENANT: &str = "large";
/// Endpoints per network; an inspect lists all of them.
const PER_NETWORK: usize = 50_000;
const CLIENTS: usize = 64;
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a follower to load the store.
const LOAD_TIME: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Number of endpoints, in networks of 50,000
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    endpoints: u32,
    /// Number of rounds of each measurement
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { endpoints: 100_000, rounds: 5 }
    }
}

/// Results for a netmaster with a large store, on an etcd with fsync.
#[derive(Debug, Serialize)]
pub(super) struct Large {
    endpoints: usize,
    /// Number of keys below `/contiv.io/`.
    keys: usize,
    megabytes: f64,
    /// Reading all keys without processing: the lower bound of a start.
    bare_listing: Latency,
    /// From the start of the process until it responds as leader.
    start: Latency,
    /// Inspect of one network with all endpoints.
    inspect: Latency,
    inspected_endpoints: usize,
    inspect_megabytes: f64,
    /// From SIGTERM to the leader until the first write of a follower.
    hand_over: Latency,
    /// From SIGKILL of the leader until the first write of a follower.
    fail_over: Latency,
    leader_megabytes: Memory,
    follower_megabytes: Memory,
}

pub(super) fn measure(options: &Options) -> Result<Large> {
    let etcd = Etcd::options().fsync(true).argument("--quota-backend-bytes=8589934592").start()?;
    let store = Store::Etcd { endpoint: etcd.endpoint() };
    let mut first = Master::start(MasterOptions::alone(store.clone())?)?;
    let endpoints = usize::try_from(options.endpoints)?;
    let what = format!("{endpoints} endpoints");
    step(&what, || fill(first.client(), endpoints))?;
    let raw = raw::Store::connect(&etcd.endpoint())?;
    let series = |what: &str, round: &mut dyn FnMut() -> Result<Duration>| {
        let calls = step(what, || (0..options.rounds).map(|_| round()).collect::<Result<Vec<_>>>())?;
        Latency::of_series(calls).context("no round was measured")
    };
    let (mut keys, mut bytes) = (0, 0);
    let bare_listing = series("read the store", &mut || {
        let start = Instant::now();
        (keys, bytes) = raw.read_all("/contiv.io/")?;
        Ok(start.elapsed())
    })?;
    let mut inspected = Value::Null;
    let mut inspect_bytes = 0;
    let path = format!("/api/v1/inspect/networks/{TENANT}:net0/");
    let inspect = series("inspect", &mut || {
        let start = Instant::now();
        let response = first.client().get(&path)?;
        let took = start.elapsed();
        (inspect_bytes, inspected) = (response.body.len(), response.json()?["Oper"]["numEndpoints"].clone());
        Ok(took)
    })?;
    let start = series("start", &mut || {
        first.kill()?;
        let start = Instant::now();
        first.restart()?;
        Ok(start.elapsed())
    })?;
    let mut second = Master::start(MasterOptions::alone(store)?)?;
    let (leader_megabytes, follower_megabytes) =
        (Memory::of(first.process().pid())?, Memory::of(second.process().pid())?);
    let mut number = 0;
    // `first` leads at the start of a round.
    let mut changes = |what: &str, end: fn(&mut Master) -> Result<()>| {
        series(what, &mut || {
            number += 1;
            let start = Instant::now();
            let written = thread::scope(|scope| {
                let writer = scope.spawn(|| until_written(second.client(), &format!("after-{number}")));
                end(&mut first)?;
                writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })?;
            first.restart()?;
            wait_current(&first)?;
            std::mem::swap(&mut first, &mut second);
            Ok(written - start)
        })
    };
    let hand_over = changes("SIGTERM", Master::stop)?;
    let fail_over = changes("kill -9", Master::kill)?;
    Ok(Large {
        endpoints,
        keys,
        megabytes: bytes as f64 / 1e6,
        bare_listing,
        start,
        inspect,
        inspected_endpoints: usize::try_from(inspected.as_u64().unwrap_or_default())?,
        inspect_megabytes: inspect_bytes as f64 / 1e6,
        hand_over,
        fail_over,
        leader_megabytes,
        follower_megabytes,
    })
}

fn fill(client: &Client, endpoints: usize) -> Result<()> {
    client.post_json(&format!("/api/v1/tenants/{TENANT}/"), &json!({ "tenantName": TENANT }))?;
    for network in 0..endpoints.div_ceil(PER_NETWORK) {
        let body = json!({
            "tenantName": TENANT, "networkName": format!("net{network}"), "encap": "vxlan",
            "subnet": format!("10.{network}.0.0/16"),
        });
        client.post_json(&format!("/api/v1/networks/{TENANT}:net{network}/"), &body)?;
    }
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let work = || loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= endpoints {
                return anyhow::Ok(());
            }
            interrupt::check()?;
            client.post_json(
                "/plugin/createEndpoint",
                &endpoint(number / PER_NETWORK, &format!("e{number}")),
            )?;
        };
        let threads: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn endpoint(network: usize, id: &str) -> Value {
    json!({
        "TenantName": TENANT,
        "NetworkName": format!("net{network}"),
        "EndpointID": id,
        "ConfigEP": { "Container": id, "Host": format!("h{}", id.len()) },
    })
}

/// Waits until netmaster has loaded the store: it knows the other netmasters, which come late, plus a fixed time.
fn wait_current(master: &Master) -> Result<()> {
    wait_until(WRITE_TIMEOUT, "the netmasters to know each other", || {
        let info = master.client().get_json("/info")?;
        Ok((info["netmaster-nodes"].as_array().is_some_and(|nodes| !nodes.is_empty())).then_some(()))
    })?;
    thread::sleep(LOAD_TIME);
    Ok(())
}

/// Time when a write that began after the call was acknowledged.
fn until_written(client: &Client, id: &str) -> Result<Instant> {
    let body = endpoint(0, id).to_string();
    wait_until(WRITE_TIMEOUT, "a write", || {
        let response = client.send("POST", "/plugin/createEndpoint", Some(JSON), Some(&body))?;
        Ok((response.status == 200).then(Instant::now))
    })
}

impl Report for Large {
    fn title(&self) -> String {
        format!(
            "netmaster on a store of {} endpoints ({} keys, {:.0} MB); memory: leader {:.0} MB (peak {:.0}), \
             follower {:.0} MB (peak {:.0})",
            self.endpoints,
            self.keys,
            self.megabytes,
            self.leader_megabytes.resident,
            self.leader_megabytes.peak,
            self.follower_megabytes.resident,
            self.follower_megabytes.peak
        )
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_header(["operation", "rounds", "p50 ms", "p99 ms"]);
        let listed =
            format!("inspect, {} endpoints, {:.1} MB", self.inspected_endpoints, self.inspect_megabytes);
        for (what, latency) in [
            ("read the store (lower bound)", self.bare_listing),
            ("start", self.start),
            (listed.as_str(), self.inspect),
            ("SIGTERM of the leader to the next write", self.hand_over),
            ("SIGKILL of the leader to the next write", self.fail_over),
        ] {
            table.add_row([
                what.to_owned(),
                latency.count.to_string(),
                format!("{:.0}", latency.p50_ms),
                format!("{:.0}", latency.p99_ms),
            ]);
        }
        table
    }

    fn value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}
