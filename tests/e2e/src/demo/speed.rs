use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result};

use crate::{cluster::Pod, demo::report, traffic::Route};

/// TCP between two pods of one tenant.
#[derive(Debug)]
pub(super) struct Speed {
    kind: String,
    from: String,
    to: String,
    bits_per_second: f64,
    connections_per_second: f64,
}

/// Measures one pair of each kind: the datapaths of both ends, and whether they share a node.
pub(super) fn measure(pods: &[Pod], duration: Duration) -> Result<Vec<Speed>> {
    let mut seen = BTreeSet::new();
    let mut speeds = vec![];
    for from in pods {
        for to in pods {
            if from.name == to.name || from.tenant != to.tenant {
                continue;
            }
            if seen.insert((from.datapath, to.datapath, from.node == to.node)) {
                speeds.push(
                    measure_pair(from, to, duration)
                        .with_context(|| format!("{} -> {}", from.name, to.name))?,
                );
            }
        }
    }
    Ok(speeds)
}

fn measure_pair(from: &Pod, to: &Pod, duration: Duration) -> Result<Speed> {
    let place = if from.node == to.node { "same node" } else { "other node" };
    let route = Route::direct(from.netns(), to.netns(), to.ip.into());
    Ok(Speed {
        kind: format!("{} -> {}, {place}", from.datapath.name(), to.datapath.name()),
        from: from.name.clone(),
        to: to.name.clone(),
        bits_per_second: route.throughput(duration)?,
        connections_per_second: route.connections(1, duration)?.per_second(),
    })
}

pub(super) fn table(speeds: &[Speed]) -> String {
    let mut table = report::table();
    table.set_header(["TCP", "from", "to", "Mb/s", "connections/s"]);
    for speed in speeds {
        table.add_row([
            speed.kind.clone(),
            speed.from.clone(),
            speed.to.clone(),
            format!("{:.0}", speed.bits_per_second / 1e6),
            format!("{:.0}", speed.connections_per_second),
        ]);
    }
    table.to_string()
}
