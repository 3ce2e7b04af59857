//! A node that changes its datapath.

use anyhow::{Result, ensure};
use testkit::{Netns, needs};

use super::{Fabric, Kind, SERVER, TIMEOUT, reaches};

/// The BGP speaker of the next agent has no routes, and the leaf switch sends it none.
#[test]
fn learnt_routes_stay_when_the_datapath_is_replaced() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let pod = Netns::new("poda")?;
    Fabric::run([Kind::Ovs; 2], async |mut fabric| {
        fabric.one.call("ADD", "a", &pod).await?;
        reaches(&pod, SERVER)?;
        let learnt = |fabric: &Fabric| -> Result<Vec<String>> {
            Ok(fabric.one.kernel()?.into_iter().filter(|line| line.starts_with("2982:")).collect())
        };
        let before = learnt(&fabric)?;
        ensure!(before.iter().any(|line| line.starts_with("2982: default via 50.1.1.2")), "{before:#?}");

        fabric.one.agent()?.terminate(TIMEOUT)?;
        // Its kernel keeps the routes to the pods.
        fabric.leaf.process.kill()?;
        fabric.one.kind = Kind::Ebpf;
        let endpoint = fabric.endpoint.clone();
        fabric.one.start_agent_with(&endpoint, &["--replace-datapath"])?;
        let after = learnt(&fabric)?;
        ensure!(before.iter().all(|line| after.contains(line)), "{after:#?} instead of {before:#?}");
        reaches(&pod, SERVER)
    })
}

/// ovs-vswitchd keeps its bridges without its database, so both datapaths would forward.
#[test]
fn a_datapath_is_not_replaced_while_its_database_is_away() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let pod = Netns::new("poda")?;
    Fabric::run([Kind::Ovs; 2], async |mut fabric| {
        fabric.one.call("ADD", "a", &pod).await?;
        reaches(&pod, SERVER)?;
        fabric.one.agent()?.terminate(TIMEOUT)?;
        fabric.one.switch()?.kill_database()?;
        fabric.one.kind = Kind::Ebpf;
        let endpoint = fabric.endpoint.clone();
        let mut refused = fabric.one.spawn_agent_with(&endpoint, &["--replace-datapath"])?;
        ensure!(!refused.wait(TIMEOUT)?.success(), "{}", refused.tail());
        let log = refused.log();
        ensure!(log.contains("Open vSwitch does not respond") && log.contains("start ovsdb-server"), "{log}");

        fabric.one.switch()?.start_database()?;
        let bridges = fabric.one.switch()?.vsctl(&["list-br"])?;
        ensure!(bridges.contains("contivVlanBridge"), "{bridges}");
        fabric.one.start_agent_with(&endpoint, &["--replace-datapath"])?;
        let bridges = fabric.one.switch()?.vsctl(&["list-br"])?;
        ensure!(bridges.trim().is_empty(), "{bridges}");
        reaches(&pod, SERVER)
    })
}
