//! Rate limit of a group: rates that its pods reach with TCP and UDP, in both directions, on one node and between nodes.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::{Value, json};
use testkit::{Load, throughput};

use super::report::Report;
use crate::{
    cluster::{Cluster, Encap, Network, Node, Pod},
    interrupt,
    progress::step,
};

/// MTU of pods on VXLAN over Ethernet, in bytes.
const MTU: usize = 1450;
const APPLY_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct Options {
    /// Bandwidths of the group in the format of network profiles, comma-separated
    #[arg(long, value_delimiter = ',', default_values_t = ["1 mbps", "10 mbps", "100 mbps", "1 gbps"].map(str::to_owned))]
    bandwidths: Vec<String>,
    /// Burst of the group in kilobits
    #[arg(long, default_value_t = 1000)]
    burst: u32,
    /// Duration of each measurement in seconds
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

impl Default for Options {
    fn default() -> Options {
        let bandwidths = ["1 mbps", "10 mbps", "100 mbps", "1 gbps"].map(str::to_owned).to_vec();
        Options { bandwidths, burst: 1000, seconds: 5 }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Reached {
    seconds: u64,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    bandwidth: String,
    bits_per_second: u64,
    /// Location of the other pod.
    other: &'static str,
    load: &'static str,
    /// Fractions of the rate that the pod of the group sends and receives.
    sends: f64,
    receives: f64,
}

pub(super) fn measure(options: &Options) -> Result<Reached> {
    let network = Network::bench();
    let cluster = step("start the cluster", || Cluster::ebpf(Encap::Vxlan, &network))?;
    let profile = |bandwidth: &str| {
        let body = json!({
            "tenantName": "bench", "profileName": "p", "bandwidth": bandwidth, "burst": options.burst,
        });
        cluster.client().post_json("/api/v1/netprofiles/bench:p/", &body).map(drop)
    };
    profile("1 gbps")?;
    let body = json!({ "tenantName": "bench", "groupName": "g", "networkName": "pods", "netProfile": "p" });
    cluster.client().post_json("/api/v1/endpointGroups/bench:g/", &body)?;
    let [here, there] = &cluster.nodes[..] else { anyhow::bail!("a cluster has two nodes") };
    let limited = Pod::add_to(here, &network, Some("g"), "limited")?;
    let others = [
        ("same node", Pod::add(here, &network, "near")?, here),
        ("other node", Pod::add(there, &network, "far")?, there),
    ];
    let time = Duration::from_secs(options.seconds);
    let mut rows = vec![];
    for bandwidth in &options.bandwidths {
        let start = Instant::now();
        profile(bandwidth)?;
        let rate = wait(here, bandwidth, start)?;
        for (place, other, _) in &others {
            for (name, load) in [("TCP", Load::Tcp), ("UDP", Load::Udp { offered: rate * 2, mtu: MTU })] {
                interrupt::check()?;
                // Twice the time in which traffic above the rate uses up the burst.
                let burst = Duration::from_secs_f64(f64::from(options.burst) * 2e3 / rate as f64);
                let part = |from: &Pod, to: &Pod| -> Result<f64> {
                    let address = to.ip.into();
                    let reached = throughput(
                        from.netns(),
                        to.netns(),
                        address,
                        load,
                        burst + Duration::from_secs(1),
                        time,
                    )?;
                    Ok(reached / rate as f64)
                };
                let [sends, receives] = step(&format!("{bandwidth}, {place}, {name}"), || {
                    Ok::<_, anyhow::Error>([part(&limited, other)?, part(other, &limited)?])
                })?;
                rows.push(Row {
                    bandwidth: bandwidth.clone(),
                    bits_per_second: rate,
                    other: place,
                    load: name,
                    sends,
                    receives,
                });
            }
        }
    }
    for (_, other, node) in others {
        other.remove(node)?;
    }
    limited.remove(here)?;
    cluster.shut_down()?;
    Ok(Reached { seconds: options.seconds, rows })
}

/// Waits until the node applies the bandwidth; returns it in bits per second.
fn wait(node: &Node, bandwidth: &str, start: Instant) -> Result<u64> {
    let wanted = bits(bandwidth)?;
    let expected = tc_rate(wanted);
    loop {
        interrupt::check()?;
        // The interface does not exist before the first pod with a rate.
        let class = node.netns().output("tc", &["class", "show", "dev", "contivq0"]).unwrap_or_default();
        if class.contains(&expected) {
            return Ok(wanted);
        }
        ensure!(start.elapsed() < APPLY_TIMEOUT, "{bandwidth} is not applied ({expected}): {class}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Formats a rate as `tc` does: divided by 1000 while the remainder is zero or the number has six digits.
fn tc_rate(bits: u64) -> String {
    let (mut number, mut units) = (bits, ["", "K", "M", "G", "T"].iter());
    let mut unit = units.next();
    while number >= 1000 && (number % 1000 == 0 || number >= 1_000_000) {
        number /= 1000;
        unit = units.next();
    }
    format!(" rate {number}{}bit ", unit.unwrap_or(&""))
}

/// Parses a bandwidth as the original does: powers of 1024, in units of 1000 bits.
fn bits(bandwidth: &str) -> Result<u64> {
    let (number, unit) = bandwidth.split_once(' ').context("expected a bandwidth such as `10 mbps`")?;
    let power = match unit {
        "kbps" => 1,
        "mbps" => 2,
        "gbps" => 3,
        _ => anyhow::bail!("{bandwidth}: expected kbps, mbps or gbps"),
    };
    Ok(number.parse::<u64>()? * 1024_u64.pow(power) / 1000 * 1000)
}

impl Report for Reached {
    fn title(&self) -> String {
        format!(
            "What a pod of a group with a rate gets through, as a part of the rate: bits of frames, over {} s",
            self.seconds
        )
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_header([
            "bandwidth",
            "bits/s",
            "other pod",
            "",
            "sends",
            "is sent",
        ]);
        for row in &self.rows {
            table.add_row([
                row.bandwidth.clone(),
                row.bits_per_second.to_string(),
                row.other.to_owned(),
                row.load.to_owned(),
                format!("{:.3}", row.sends),
                format!("{:.3}", row.receives),
            ]);
        }
        table
    }

    fn value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_as_tc_shows_them() {
        let shown = ["1 mbps", "10 mbps", "100 mbps", "1 gbps"].map(|text| tc_rate(bits(text).unwrap()));
        assert_eq!(shown, [" rate 1048Kbit ", " rate 10485Kbit ", " rate 104857Kbit ", " rate 1073Mbit "]);
    }
}
