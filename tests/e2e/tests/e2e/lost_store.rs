//! The store loses data while pods communicate; and netmaster deletes most of a cluster.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::{fs, path::PathBuf, time::Duration};

use e2e::{
    binaries::Binary,
    cluster::{Cluster, Datapath, Encap, Network, Node, Pod, Shape, StoreKind},
    master::Store,
};
use serde_json::json;
use testkit::{WindowedPinger, needs, wait_until};

const DEADLINE: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_millis(10);
const REGRESSED: &str = "contiv_store_regressed";

fn folder(cluster: &Cluster) -> PathBuf {
    match cluster.master.store() {
        Store::Embedded { folder, .. } => folder.clone(),
        Store::Etcd { .. } => unreachable!("the cluster has an embedded store"),
    }
}

fn wait_regressed(node: &Node, value: f64) {
    let what = format!("{REGRESSED} of {} is {value}", node.name);
    wait_until(DEADLINE, &what, || Ok((node.metric(REGRESSED)? == value).then_some(()))).unwrap();
}

fn netctl(cluster: &Cluster, words: &[&str]) -> String {
    let mut command = Binary::Netctl.command().unwrap();
    command.args(["--netmaster", &cluster.fabric.master_url()]).args(words);
    let output = cluster.fabric.netns().run(move || Ok(command.output()?)).unwrap();
    assert!(output.status.success(), "netctl {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn wait_replies(pingers: &[WindowedPinger], replies: usize) {
    for pinger in pingers {
        let wanted = pinger.answers() + replies;
        wait_until(DEADLINE, "more replies", || Ok((pinger.answers() >= wanted).then_some(()))).unwrap();
    }
}

#[test]
fn emptied_store_loses_no_ping_until_an_operator_accepts_it() {
    needs!(root(), binary("ovs-vswitchd"), binary("ethtool"), binary("ping"));
    let _machine = testkit::exclusive();
    let shape =
        Shape { datapaths: [Datapath::Ovs, Datapath::Ebpf], encap: Encap::Vxlan, store: StoreKind::Embedded };
    let mut cluster = Cluster::build(shape).unwrap();
    cluster.start_agents().unwrap();
    cluster.create_network(&Network::pods()).unwrap();
    let pods: Vec<Pod> = (cluster.nodes.iter())
        .map(|node| Pod::add(node, &Network::pods(), &format!("{}-pod", node.name)).unwrap())
        .collect();
    let mut pingers = vec![];
    for (from, to) in [(0, 1), (1, 0)] {
        for address in [pods[to].ip.into(), pods[to].ipv6.unwrap().into()] {
            wait_until(DEADLINE, "the pods reach each other", || {
                Ok((pods[from].netns().ping(address, 1, INTERVAL)?.received == 1).then_some(()))
            })
            .unwrap();
            pingers.push(WindowedPinger::start(pods[from].netns(), address, INTERVAL).unwrap());
        }
    }
    wait_replies(&pingers, 50);

    // Another folder, then the right one again, then the other folder for good.
    let (folder, aside) = (folder(&cluster), folder(&cluster).with_extension("aside"));
    let empty = folder.with_extension("empty");
    for (to, from, regressed) in
        [(&aside, None, 1.0), (&empty, Some(&aside), 0.0), (&aside, Some(&empty), 1.0)]
    {
        cluster.master.stop().unwrap();
        fs::rename(&folder, to).unwrap();
        if let Some(from) = from {
            fs::rename(from, &folder).unwrap();
        }
        cluster.master.restart().unwrap();
        for node in &cluster.nodes {
            wait_regressed(node, regressed);
        }
        wait_replies(&pingers, 100);
    }
    for node in &cluster.nodes {
        let ready = node.client().get("/readyz").unwrap();
        assert_eq!(ready.status, 200, "{}", ready.body);
        assert!(ready.body.contains("store-regressed"), "{}", ready.body);
        let refused = Pod::add(node, &Network::pods(), "late").unwrap_err();
        assert!(format!("{refused:#}").contains("store-regressed"), "{refused:#}");
    }
    wait_until(DEADLINE, "netctl node ls shows the reason of both nodes", || {
        Ok((netctl(&cluster, &["node", "ls"]).matches("store-regressed").count() == 2).then_some(()))
    })
    .unwrap();
    wait_replies(&pingers, 100);
    for pinger in pingers {
        let target = pinger.target();
        let ping = pinger.finish(DEADLINE).unwrap();
        assert!(ping.sent >= 100 && ping.lost() == 0, "to {target}: {ping:?}");
    }

    let told = netctl(&cluster, &["node", "accept-store", "--all"]);
    assert_eq!(told.lines().count(), 2, "{told}");
    // This store has reports of the first regression, until each agent has reported the present one.
    wait_until(DEADLINE, "every node follows the store", || {
        netctl(&cluster, &["node", "accept-store", "--all"]);
        for node in &cluster.nodes {
            if node.metric(REGRESSED)? != 0.0 {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
    .unwrap();
    for node in &cluster.nodes {
        let networks = || Ok((node.metric("contiv_state_networks")? == 0.0).then_some(()));
        wait_until(DEADLINE, "the node follows the empty store", networks).unwrap();
    }
    cluster.create_network(&Network::pods()).unwrap();
    Pod::add(&cluster.nodes[0], &Network::pods(), "new").unwrap();
}

#[test]
fn cluster_deleted_through_the_api_is_a_change_as_any_other() {
    needs!(root(), binary("ping"));
    let _machine = testkit::shared();
    let network = Network::pods();
    let cluster = Cluster::ebpf(Encap::Vxlan, &network).unwrap();
    let (client, tenant) = (cluster.client(), network.tenant.clone());
    let put = |path: &str, body: serde_json::Value| client.post_json(path, &body).unwrap();
    for policy in ["p1", "p2", "p3"] {
        put(
            &format!("/api/v1/policys/{tenant}:{policy}/"),
            json!({ "tenantName": tenant, "policyName": policy }),
        );
        put(
            &format!("/api/v1/rules/{tenant}:{policy}:1/"),
            json!({ "tenantName": tenant, "policyName": policy, "ruleId": "1", "priority": 1, "direction": "in",
                    "protocol": "tcp", "port": 80, "action": "allow" }),
        );
        put(
            &format!("/api/v1/endpointGroups/{tenant}:g{policy}/"),
            json!({ "tenantName": tenant, "groupName": format!("g{policy}"), "networkName": network.name,
                    "policies": [policy] }),
        );
    }
    for service in ["s1", "s2"] {
        put(
            &format!("/api/v1/serviceLBs/{tenant}:{service}/"),
            json!({ "tenantName": tenant, "serviceName": service, "networkName": network.name,
                    "ports": ["80:80:TCP"], "selectors": ["app=web"] }),
        );
    }
    // Each agent has the network's endpoints, because its node has some of them.
    for number in 0..4 {
        let node = &cluster.nodes[number % cluster.nodes.len()];
        let group = (number % 2 == 0).then_some("gp1");
        Pod::add_to(node, &network, group, &format!("pod{number}")).unwrap();
    }
    let wait = |metric: &str, value: f64| {
        for node in &cluster.nodes {
            wait_until(DEADLINE, &format!("{metric} of {} is {value}", node.name), || {
                assert_eq!(node.metric(REGRESSED)?, 0.0, "{}", node.client().get("/readyz")?.body);
                Ok((node.metric(metric)? == value).then_some(()))
            })
            .unwrap();
        }
    };
    wait("contiv_state_endpoints", 4.0);
    // All endpoints in one transaction.
    client.delete(&format!("/debug/epcleanup/tenant/{tenant}/net/{}", network.name)).unwrap();
    wait("contiv_state_endpoints", 0.0);
    for service in ["s1", "s2"] {
        client.delete(&format!("/api/v1/serviceLBs/{tenant}:{service}/")).unwrap();
    }
    for policy in ["p1", "p2", "p3"] {
        client.delete(&format!("/api/v1/endpointGroups/{tenant}:g{policy}/")).unwrap();
        client.delete(&format!("/api/v1/policys/{tenant}:{policy}/")).unwrap();
    }
    cluster.delete_network(&network).unwrap();
    wait("contiv_state_networks", 0.0);
    // The settings as well.
    client.delete("/api/v1/globals/global/").unwrap();
    std::thread::sleep(Duration::from_secs(1));
    wait("contiv_state_networks", 0.0);
}
