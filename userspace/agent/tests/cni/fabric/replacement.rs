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
