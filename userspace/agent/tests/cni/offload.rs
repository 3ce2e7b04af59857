//! TX checksum offload of interfaces that were made for another datapath.

use std::path::Path;

use testkit::{Netns, needs, ovs::Switch};

use crate::crash::{Site, TIMEOUT};

#[test]
fn started_agent_disables_the_offload_of_interfaces_that_were_made_with_it() {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"), binary("ethtool"));
    let mut switch = None;
    let start = |node: &Netns, _: &Path| {
        let started = switch.insert(Switch::start(node).unwrap());
        let ovsdb = format!("unix:{}", started.socket().display());
        ["--mode", "cni", "--ovs-datapath-type", "netdev", "--ovsdb", &ovsdb].map(str::to_owned).to_vec()
    };
    let pod = Netns::new("pod").unwrap();
    Site::run(start, async |site| {
        let mut agent = site.agent(None).await;
        site.request("ADD", "c1", &pod.path().display().to_string()).await.unwrap();
        agent.terminate(TIMEOUT).unwrap();
        // As an agent with the kernel's datapath makes the interfaces of a pod and of the node.
        pod.output("ethtool", &["-K", "eth0", "tx", "on"]).unwrap();
        site.node.ip("link add vvport9 type veth peer name infra0").unwrap();
        site.node.ip("link set dev vvport9 alias n.t-infra").unwrap();
        let features = |netns: &Netns, name| netns.output("ethtool", &["-k", name]).unwrap();
        assert!(features(&pod, "eth0").contains("tx-checksumming: on"));

        let mut agent = site.agent(None).await;
        for (netns, name) in [(&pod, "eth0"), (&site.node, "infra0")] {
            let features = features(netns, name);
            assert!(features.contains("tx-checksumming: off"), "{name}: {features}");
        }
        site.request("DEL", "c1", "").await.unwrap();
        agent.terminate(TIMEOUT).unwrap();
        site.node.ip("link del vvport9").unwrap();
    });
    switch.unwrap().stop().unwrap();
}
