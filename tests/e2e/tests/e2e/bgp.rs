//! BGP sessions of an OVS node and an eBPF node with a leaf switch, from `netctl` to the routing table of BIRD.

use std::{net::IpAddr, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::{
    binaries::Binary,
    cluster::{Cluster, Datapath, Encap, Network, Pod, Shape, StoreKind},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{Bird, needs, scratch_dir, wait_until};

const DEADLINE: Duration = Duration::from_secs(60);
/// The leaf is where the masters are. It passes the routes of each node on to the other one.
const LEAF: &str = "log stderr all;
router id 10.77.0.1;
protocol device {}
protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; }
template bgp nodes {
    local 10.77.0.1 as 65001;
    passive on; error wait time 1, 2;
    graceful restart on;
    ipv4 { import all; export where source = RTS_BGP; next hop self; };
}
protocol bgp node1 from nodes { neighbor 10.77.0.11 as 65011; }
protocol bgp node2 from nodes { neighbor 10.77.0.12 as 65012; }
";

struct Site {
    cluster: Cluster,
    home: TempDir,
}

impl Site {
    fn netctl(&self, words: &[&str]) -> Result<String> {
        let mut command = Binary::Netctl.command()?;
        command.args(words).env("NETMASTER", self.cluster.fabric.master_url()).env("HOME", self.home.path());
        let output = self.cluster.fabric.netns().run(|| Ok(command.output()?))?;
        let stderr = String::from_utf8(output.stderr)?;
        ensure!(output.status.success(), "netctl {words:?}: {stderr}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Waits until a node has a session and exactly these prefixes in its routing table.
    fn expect_table(&self, node: &str, prefixes: &[&str]) -> Result<()> {
        wait_until(DEADLINE, &format!("the routes {prefixes:?} on {node}"), || {
            let answer: Value = serde_json::from_str(&self.netctl(&["bgp", "inspect", node])?)?;
            let oper = &answer["Oper"];
            let expected = match prefixes {
                [] => json!({ "adminStatus": "up", "neighborStatus": "established" }),
                _ => json!({
                    "adminStatus": "up",
                    "neighborStatus": "established",
                    "numRoutes": prefixes.len(),
                    "routes": prefixes,
                }),
            };
            if *oper == expected { Ok(Some(())) } else { bail!("{oper}") }
        })
    }
}

fn reaches(from: &Pod, to: IpAddr) -> Result<()> {
    wait_until(DEADLINE, &format!("{to} answers {} on {:?}", from.name, from.datapath), || {
        Ok((from.netns().ping(to, 1, Duration::from_millis(100))?.received == 1).then_some(()))
    })
}

#[test]
fn nodes_learn_the_routes_of_each_other_from_the_leaf() -> Result<()> {
    needs!(
        root(),
        binary("bird"),
        binary("birdc"),
        binary("ping"),
        binary("ethtool"),
        binary("ovs-vswitchd")
    );
    let _machine = testkit::shared();
    let shape =
        Shape { datapaths: [Datapath::Ovs, Datapath::Ebpf], encap: Encap::Vlan, store: StoreKind::Embedded };
    let mut cluster = Cluster::build(shape)?;
    let leaf = Bird::start(cluster.fabric.netns(), LEAF)?;
    cluster.start_agents()?;
    let site = Site { cluster, home: scratch_dir("netctl")? };
    site.netctl(&["global", "set", "--fwd-mode", "routing"])?;
    let network = Network::pods();
    site.cluster.create_network(&network)?;
    for (node, router, asn) in [("node1", "10.77.0.11/24", "65011"), ("node2", "10.77.0.12/24", "65012")] {
        let neighbor = ["--neighbor-as", "65001", "--neighbor", "10.77.0.1"];
        site.netctl(&[&["bgp", "create", node, "--router-ip", router, "--as", asn], &neighbor[..]].concat())?;
        site.expect_table(node, &[])?;
    }
    let listed = site.netctl(&["bgp", "ls"])?;
    ensure!(listed.contains("10.77.0.11/24") && listed.contains("65012"), "{listed}");

    let nodes = &site.cluster.nodes;
    let first = Pod::add(&nodes[0], &network, "ba")?;
    let second = Pod::add(&nodes[1], &network, "bb")?;
    let (one, two) = (format!("{}/32", first.ip), format!("{}/32", second.ip));
    leaf.expect_routes("node1", &[(&one, "via 10.77.0.11")])?;
    leaf.expect_routes("node2", &[(&two, "via 10.77.0.12")])?;
    for node in ["node1", "node2"] {
        site.expect_table(node, &[&one, &two])?;
    }
    // By the kernels of both nodes and of the leaf.
    site.cluster.fabric.netns().sysctl("net/ipv4/ip_forward", "1")?;
    for (from, to) in [(&first, &second), (&second, &first)] {
        reaches(from, to.ip.into())?;
        reaches(from, network.gateway.parse()?)?;
        reaches(from, "10.77.0.1".parse()?)?;
    }
    let answer = nodes[0].client().get_json("/inspect/bgp")?;
    let learnt =
        json!([{ "prefix": two, "next-hop": "10.77.0.1", "as-path": [65001, 65012], "stale": false }]);
    ensure!(answer["routes"] == learnt, "{answer}");

    second.remove(&nodes[1])?;
    leaf.expect_routes("node2", &[])?;
    site.expect_table("node1", &[&one])?;
    let deleted = site.netctl(&["bgp", "rm", "node1"])?;
    ensure!(deleted == "Deleting Bgp router config: node1\n", "{deleted}");
    leaf.expect_routes("node1", &[])?;
    let refused = site.netctl(&["bgp", "inspect", "node1"]).err().context("node1 has no settings")?;
    ensure!(refused.to_string().contains("Bgp not found"), "{refused:#}");
    first.remove(&nodes[0])?;
    drop(leaf);
    site.netctl(&["bgp", "rm", "node2"])?;
    site.cluster.shut_down()
}
