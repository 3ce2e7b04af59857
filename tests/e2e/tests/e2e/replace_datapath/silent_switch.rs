//! A switch that does not respond after eBPF has been stopped for it.

use e2e::cluster::{Datapath, Encap};
use testkit::{needs, wait_until};

use super::{DEADLINE, Site};

impl Site {
    /// Changes the first node to OVS by an agent that is killed when eBPF has stopped.
    fn stop_programs(&mut self) {
        for step in 1.. {
            let name = self.cluster.nodes[0].replace_datapath_until(Datapath::Ovs, step).unwrap();
            if name.unwrap().contains("has stopped") {
                return;
            }
        }
    }
}

#[test]
fn stopped_programs_go_on_until_the_switch_responds() {
    needs!(root(), binary("ovs-vswitchd"), binary("ip"), binary("ethtool"));
    let _machine = testkit::shared();
    // VLANs do not need the switch.
    let mut site = Site::build(Encap::Vlan).unwrap();
    site.cluster.nodes[0].replace_datapath(Datapath::Ebpf).unwrap();
    site.wait_pings();
    site.stop_programs();
    let node = &mut site.cluster.nodes[0];
    let file = node.cni_socket().with_extension("stopped");
    let switch = node.switch_mut().unwrap();
    switch.kill_vswitchd().unwrap();
    switch.kill_database().unwrap();
    for _ in 0..2 {
        let agent = site.cluster.nodes[0].agent_with(&[("--etcd", "http://127.0.0.1:1")], &[]).unwrap();
        wait_until(DEADLINE, "the programs to go on", || {
            Ok(agent.log().contains("Open vSwitch does not respond; the ebpf datapath").then_some(()))
        })
        .unwrap();
        site.wait_pings();
        assert!(file.exists(), "the next start decides");
    }

    // The change is repeated.
    let node = &mut site.cluster.nodes[0];
    let switch = node.switch_mut().unwrap();
    switch.start_database().unwrap();
    switch.start_vswitchd().unwrap();
    node.replace_datapath(Datapath::Ovs).unwrap();
    site.wait_datapath("ovs");
    site.wait_pings();
    wait_until(DEADLINE, "the end of the change", || Ok((!file.exists()).then_some(()))).unwrap();
    site.shut_down().unwrap();
}
