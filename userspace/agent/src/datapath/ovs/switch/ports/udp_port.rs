//! The UDP port of the tunnels, which the kernel datapath has once for all bridges of the switch.

use crate::datapath::ovs::{
    bridge::BridgeKind,
    switch::ovsdb::{Bridge, Database},
};

/// UDP port of a tunnel without `dst_port` (ovs-vswitchd.conf.db(5)).
const DEFAULT_PORT: u16 = 4789;

/// Whether the removal of both bridges frees the UDP port: they have VXLAN tunnels on it, and other bridges have none.
pub(crate) fn frees_tunnel_port(database: &Database, port: u16) -> bool {
    let bridges = database.bridges.iter().filter(|(uuid, _)| database.root.contains(uuid));
    let with_tunnels = bridges.map(|(_, bridge)| bridge).filter(|bridge| has_tunnel(database, bridge, port));
    let is_own = |bridge: &&Bridge| BridgeKind::ALL.iter().any(|kind| kind.name() == bridge.name);
    let (own, others): (Vec<&Bridge>, Vec<&Bridge>) = with_tunnels.partition(is_own);
    !own.is_empty() && others.is_empty()
}

fn has_tunnel(database: &Database, bridge: &Bridge, port: u16) -> bool {
    let mut interfaces = database.ports_of(bridge).flat_map(|(_, _, interfaces)| interfaces);
    interfaces.any(|(_, interface)| {
        let used = interface.options.get("dst_port").map(|port| port.parse::<u16>());
        interface.interface_type == "vxlan" && used.unwrap_or(Ok(DEFAULT_PORT)) == Ok(port)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_port_is_freed_if_no_other_bridge_has_it() {
        let interface =
            |kind: &str, options: &[[&str; 2]]| json!({"new": {"type": kind, "options": ["map", options]}});
        let frees = |own: &str, other: &str| {
            let mut database = Database::default();
            database.update(&json!({
                "Open_vSwitch": {"root": {"new": {"bridges": ["set", [["uuid", "own"], ["uuid", "other"]]]}}},
                "Bridge": {
                    "own": {"new": {"name": "contivVxlanBridge", "ports": ["uuid", own]}},
                    "other": {"new": {"name": "br-int", "ports": ["uuid", other]}},
                },
                "Port": {
                    "none": {"new": {"name": "none", "interfaces": ["uuid", "none"]}},
                    "vxlan": {"new": {"name": "vxlan", "interfaces": ["uuid", "vxlan"]}},
                    "default": {"new": {"name": "default", "interfaces": ["uuid", "default"]}},
                    "elsewhere": {"new": {"name": "elsewhere", "interfaces": ["uuid", "elsewhere"]}},
                },
                "Interface": {
                    "none": interface("internal", &[]),
                    "vxlan": interface("vxlan", &[["remote_ip", "192.0.2.2"], ["dst_port", "4789"]]),
                    "default": interface("vxlan", &[["remote_ip", "192.0.2.3"]]),
                    "elsewhere": interface("vxlan", &[["dst_port", "8472"]]),
                },
            }));
            frees_tunnel_port(&database, 4789)
        };
        assert!(frees("vxlan", "none") && frees("default", "none") && frees("vxlan", "elsewhere"));
        assert!(!frees("none", "none") && !frees("elsewhere", "none"), "it is not theirs");
        assert!(!frees("vxlan", "default") && !frees("none", "vxlan"), "another bridge has it, too");
    }
}
