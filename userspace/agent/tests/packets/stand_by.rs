//! Programs that stand by beside another datapath.

use anyhow::{Result, ensure};
use netplugin::datapath::{Datapath as _, Observed};
use testkit::needs;

use crate::node::Node;

/// Stands by beside a VXLAN device of this name, which has the UDP port of the tunnels. `is_freed` tells that it goes with the other
/// datapath.
fn stand_by(node: &mut Node, holder: &str, is_freed: bool) -> Result<Observed> {
    node.ns.ip(&format!("link add {holder} type vxlan external dstport 4789 nolearning udp6zerocsumrx"))?;
    drop(node.restart());
    node.datapath.stand_by();
    if is_freed {
        node.datapath.yield_tunnel_port();
    }
    node.observe()
}

#[test]
fn the_port_of_the_tunnels_is_missing_only_if_it_goes_with_the_other_datapath() -> Result<()> {
    needs!(root());
    let mut node = Node::fresh("beside-port", |_| {})?;
    stand_by(&mut node, "vxlan_sys_4789", true)?;
    ensure!(!node.ns.links()?.iter().any(|link| link == "contivvx0"));
    node.cleanup()?;
    node.ns.ip("link del vxlan_sys_4789")?;
    for (holder, is_freed, advice) in
        [("vxlan_sys_4789", false, "ovs-vsctl show"), ("foreign0", true, "ip -d link show type vxlan")]
    {
        let error = format!("{:#}", stand_by(&mut node, holder, is_freed).unwrap_err());
        ensure!(error.contains("create the VXLAN device contivvx0 on UDP port 4789"), "{holder}: {error}");
        ensure!(error.contains(advice), "{holder}: {error}");
        node.cleanup()?;
        node.ns.ip(&format!("link del {holder}"))?;
    }
    Ok(())
}
