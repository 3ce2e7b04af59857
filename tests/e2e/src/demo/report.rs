//! Output of the demo.

use comfy_table::{Table, presets};

use crate::{
    binaries::Binary,
    cluster::{Cluster, Pod},
};

const BRIDGES: [&str; 2] = ["contivVlanBridge", "contivVxlanBridge"];

pub(super) fn table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY);
    table
}

pub(super) fn pods(pods: &[Pod]) -> String {
    let mut table = table();
    table.set_header(["pod", "node", "datapath", "tenant", "IP", "IPv6", "MAC"]);
    for pod in pods {
        table.add_row([
            pod.name.clone(),
            pod.node.clone(),
            pod.datapath.name().to_owned(),
            pod.tenant.clone(),
            pod.ip.to_string(),
            pod.ipv6.map(|address| address.to_string()).unwrap_or_default(),
            pod.mac.clone(),
        ]);
    }
    table.to_string()
}

/// Prints commands that inspect and stop the demo.
pub(super) fn print_commands(cluster: &Cluster, pods: &[Pod], name: &str) {
    let fabric = format!("nsenter --net={}", cluster.fabric.netns().path().display());
    let url = cluster.fabric.master_url();
    println!("\nThe demo keeps running. netmaster, from its namespace:");
    if let Ok(netctl) = Binary::Netctl.path() {
        println!("  {fabric} {} --netmaster {url} network ls --all", netctl.display());
    }
    println!("  {fabric} curl -s {url}/api/v1/networks/");
    for node in &cluster.nodes {
        println!("{} ({}):", node.name, node.datapath.name());
        println!("  {fabric} curl -s http://{}/metrics", node.client().server());
        if let Some(switch) = node.switch() {
            println!("  ovs-vsctl --db=unix:{} show", switch.socket().display());
            for bridge in BRIDGES {
                let socket = switch.directory().join(format!("{bridge}.mgmt"));
                println!("  ovs-ofctl -O OpenFlow13 dump-flows unix:{}", socket.display());
            }
        } else {
            println!("  find {} # pinned maps: bpftool map dump pinned PATH", node.pins().display());
        }
        println!("  nsenter --net={} ip link", node.netns().path().display());
    }
    if let [first, second, ..] = pods {
        println!("From a pod:");
        println!("  nsenter --net={} ping {}", first.netns().path().display(), second.ip);
    }
    println!("Stop the demo:\n  cargo xtask demo --stop {name}");
}

/// Prints the last lines of all daemons, after an error.
pub(super) fn logs(cluster: &Cluster) {
    for (name, tail) in cluster.tails() {
        eprintln!("--- last output of {name}:\n{tail}");
    }
}
