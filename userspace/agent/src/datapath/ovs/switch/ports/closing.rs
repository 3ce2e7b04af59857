//! Ports that carry no frames, because the switch has lost the flows of their endpoints.

use contiv_model::name::EndpointId;
use serde_json::json;

use super::{RESERVED_VLAN, UPLINK_OWNER};
use crate::datapath::ovs::{
    bridge::BridgeKind,
    switch::ovsdb::{Database, OWNER_KEY, Operation, optional},
};

/// Returns the operations that move ports of the VLAN bridge to the VLAN that carries no frames: those of the endpoints for which
/// `selects` returns true. They are protected there, so that they do not reach each other.
pub(crate) fn closing(database: &Database, selects: impl Fn(EndpointId) -> bool) -> Vec<Operation> {
    let bridge = database.bridge(BridgeKind::Vlan.name());
    let ports = bridge.into_iter().flat_map(|(_, bridge)| database.ports_of(bridge));
    let open = ports.filter(|(_, port, interfaces)| {
        let owner = port.external_ids.get(OWNER_KEY).filter(|owner| *owner != UPLINK_OWNER);
        (port.tag != Some(RESERVED_VLAN) || !port.is_protected)
            && interfaces.iter().all(|(_, interface)| interface.interface_type.is_empty())
            && owner.is_some_and(|owner| selects(owner.as_str().into()))
    });
    let columns = || {
        json!({
            "tag": optional(Some(RESERVED_VLAN)),
            "vlan_mode": optional(Some("access")),
            "protected": true,
        })
    };
    open.map(|(uuid, _, _)| Operation::update("Port", uuid, columns())).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::KERNEL_OWNER, *};

    #[test]
    fn ports_of_endpoints_are_closed_on_the_vlan_bridge() {
        let port = |name: &str, owner: &str, tag: i64| {
            let external_ids = json!(["map", [[OWNER_KEY, owner]]]);
            json!({"new": {
                "name": name, "tag": tag, "interfaces": ["uuid", name], "external_ids": external_ids,
                "protected": tag == RESERVED_VLAN,
            }})
        };
        let interface = |kind: &str| json!({"new": {"type": kind}});
        let mut database = Database::default();
        database.update(&json!({
            "Open_vSwitch": {"root": {"new": {"bridges": ["set", [["uuid", "vlan"], ["uuid", "vxlan"]]]}}},
            "Bridge": {
                "vlan": {"new": {"name": "contivVlanBridge", "ports": ["set", [
                    ["uuid", "open"], ["uuid", "kept"], ["uuid", "closed"], ["uuid", "eth1"], ["uuid", "contivh0"],
                ]]}},
                "vxlan": {"new": {"name": "contivVxlanBridge", "ports": ["uuid", "other"]}},
            },
            "Port": {
                "open": port("open", "net.blue-pod1", 100),
                "kept": port("kept", "net.blue-pod2", 100),
                "closed": port("closed", "net.blue-pod3", RESERVED_VLAN),
                "eth1": port("eth1", UPLINK_OWNER, 0),
                "contivh0": port("contivh0", KERNEL_OWNER, 100),
                "other": port("other", "net.blue-pod4", 0),
            },
            "Interface": {
                "open": interface(""), "kept": interface(""), "closed": interface(""), "eth1": interface(""),
                "contivh0": interface("internal"), "other": interface(""),
            },
        }));
        let operations = closing(&database, |owner| owner.as_str() != "net.blue-pod2");
        let [operation] = &operations[..] else { panic!("{operations:?}") };
        let operation = operation.json();
        assert_eq!(operation["where"], json!([["_uuid", "==", ["uuid", "open"]]]));
        assert_eq!(operation["row"]["tag"], json!(["set", [RESERVED_VLAN]]));
        assert_eq!(operation["row"]["protected"], json!(true));
    }

    /// An earlier version has closed it.
    #[test]
    fn closed_ports_are_protected_from_each_other() {
        let external_ids = json!(["map", [[OWNER_KEY, "net.blue-pod1"]]]);
        let port = json!({
            "name": "pod", "tag": RESERVED_VLAN, "interfaces": ["uuid", "pod"], "external_ids": external_ids,
        });
        let mut database = Database::default();
        database.update(&json!({
            "Open_vSwitch": {"root": {"new": {"bridges": ["uuid", "vlan"]}}},
            "Bridge": {"vlan": {"new": {"name": "contivVlanBridge", "ports": ["uuid", "pod"]}}},
            "Port": {"pod": {"new": port}},
            "Interface": {"pod": {"new": {"type": ""}}},
        }));
        let operations = closing(&database, |_| true);
        let [operation] = &operations[..] else { panic!("{operations:?}") };
        assert_eq!(operation.json()["row"]["protected"], json!(true));
    }
}
