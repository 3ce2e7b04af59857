//! The plugin, a real netmaster and real agents with the eBPF datapath, driven by peers that others wrote: `cnitool`, which is
//! libcni, and containerd 2 through its CRI.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod cnitool;
mod containerd;
mod cri;
mod runtime;
mod tools;

use std::{net::IpAddr, time::Duration};

use e2e::cluster::{Cluster, Network, Node};
use serde_json::{Value, json};
use testkit::{Netns, wait_until};

const DEADLINE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);

/// The CNI configuration of a network for a node, with a standard plugin after ours.
fn configuration(node: &Node, network: &Network, name: &str, version: &str) -> Value {
    json!({
        "cniVersion": version,
        "name": name,
        "plugins": [
            {
                "type": "contivk8s",
                "socket": node.cni_socket(),
                "args": { "cni": { "labels": {
                    "io.contiv.tenant": network.tenant,
                    "io.contiv.network": network.name,
                } } },
            },
            { "type": "tuning", "sysctl": { "net.ipv4.conf.IFNAME.arp_ignore": "1" } },
        ],
    })
}

/// Addresses that netmaster has allocated in the network, the gateway's among them.
fn allocated(cluster: &Cluster) -> String {
    let inspected = cluster.client().get_json("/api/v1/inspect/networks/blue:pods/").unwrap();
    inspected["Oper"]["allocatedIPAddresses"].as_str().unwrap().to_owned()
}

/// Asserts that neither the node nor netmaster has anything of a pod.
#[track_caller]
fn assert_nothing_left(cluster: &Cluster) {
    assert_eq!(cluster.nodes[0].pod_links().unwrap(), Vec::<String>::new());
    assert_eq!(allocated(cluster), Network::pods().gateway, "only the gateway is allocated");
}

/// Waits until the address answers.
#[track_caller]
fn reaches(from: &Netns, to: IpAddr) {
    let answers = || Ok((from.ping(to, 1, PAUSE)?.received == 1).then_some(()));
    wait_until(DEADLINE, &format!("{} reaches {to}", from.name()), answers).unwrap();
}
