//! What a node reaches outside of the cluster.

use anyhow::{Result, bail};
use testkit::{Netns, needs, wait_until};

use super::{Fabric, Kind, SERVER, TIMEOUT, reaches};

/// Packets to such hosts would go to the pod: from the node, and from all that learn its route.
#[test]
fn a_pod_does_not_take_over_an_address_of_a_network_of_the_node() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let pod = Netns::new("poda")?;
    Fabric::run([Kind::Ovs; 2], async |fabric| {
        let node = fabric.one.namespace.clone();
        node.ip("link add mgmt type veth peer name wire")?;
        fabric.one.call("ADD", "a", &pod).await?;
        reaches(&pod, SERVER)?;
        let routed = [("10.9.0.1/32", "via 50.1.1.1"), ("2001:db8:9::1/128", "via 2001:db8:50:1::1")];
        fabric.leaf.expect_routes("one", &routed)?;

        node.ip("addr add 10.9.0.6/29 dev mgmt")?;
        fabric.leaf.expect_routes("one", &routed[1..])?;
        let why = "endpoint address 10.9.0.1 is not routed";
        wait_until(TIMEOUT, why, || {
            let degraded = fabric.one.degraded()?;
            if degraded.contains(why) { Ok(Some(())) } else { bail!("{degraded}") }
        })?;
        wait_until(TIMEOUT, "no route to the pod", || {
            let has_route = fabric.one.kernel()?.iter().any(|line| line.starts_with("2981: 10.9.0.1 "));
            Ok((!has_route).then_some(()))
        })?;

        node.ip("addr del 10.9.0.6/29 dev mgmt")?;
        fabric.leaf.expect_routes("one", &routed)?;
        reaches(&pod, SERVER)
    })
}
