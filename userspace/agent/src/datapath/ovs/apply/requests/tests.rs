//! Ports that ops change.

use std::path::PathBuf;

use contiv_abi::Timeouts;
use contiv_model::{
    group::Rate,
    mac::Mac,
    name::{EndpointId, NetworkId},
    tag::Encap,
};
use serde_json::json;

use super::*;
use crate::datapath::{Network, ovs::switch::drift};

/// A bond of two uplinks, and the port of an endpoint that was deleted.
fn bridge() -> Database {
    let owned = |name: &str, owner: &str, interfaces: serde_json::Value| {
        let external_ids = json!(["map", [["endpoint-id", owner]]]);
        json!({"new": {"name": name, "interfaces": interfaces, "external_ids": external_ids}})
    };
    let bond = json!(["set", [["uuid", "eth1"], ["uuid", "eth2"]]]);
    let mut database = Database::default();
    database.update(&json!({
        "Open_vSwitch": {"root": {"new": {"bridges": ["uuid", "bridge"]}}},
        "Bridge": {"bridge": {"new": {
            "name": "contivVlanBridge", "ports": ["set", [["uuid", "bond"], ["uuid", "pod"]]],
        }}},
        "Port": {
            "bond": owned("uplinkPort", "uplinkPort", bond),
            "pod": owned("vvport1", "deleted", json!(["uuid", "vvport1"])),
        },
        "Interface": {
            "eth1": {"new": {"name": "eth1"}},
            "eth2": {"new": {"name": "eth2"}},
            "vvport1": {"new": {"name": "vvport1"}},
        },
    }));
    database
}

#[test]
fn a_garbage_collection_does_not_hide_a_change_of_the_uplinks() {
    let uplinks = ["eth1", "eth2"].map(str::to_owned);
    let before = bridge();
    let own = ports_of_ops(&before, &FlowIndex::default(), &[Op::GarbageCollect], &uplinks);
    assert_eq!(own, BTreeSet::from(["vvport1".to_owned()]));

    let is_drift = |after: &Database| {
        drift::fingerprint_without(&before, &own) != drift::fingerprint_without(after, &own)
    };
    let mut after = before.clone();
    after.update(&json!({"Port": {"pod": {}}, "Interface": {"vvport1": {}}}));
    assert!(!is_drift(&after), "the agent itself has removed the port");
    after.update(&json!({"Interface": {"eth2": {"new": {"name": "eth2", "lacp_current": true}}}}));
    assert!(is_drift(&after));
}

/// The switch has rejected the flows of the endpoint at its port.
#[test]
fn a_change_of_limits_opens_no_port() {
    let options = Options {
        socket: PathBuf::new(),
        datapath_type: DatapathType::System,
        uplinks: vec![],
        vtep: None,
        control: None,
        announce: false,
        timeouts: Timeouts::default(),
        connections: Options::CONNECTIONS,
    };
    let id = NetworkId::new(&"net".parse().unwrap(), &"green".parse().unwrap());
    let network = Network::new(id, Encap::Vlan(100.try_into().unwrap()));
    let (id, ip) = (EndpointId::new(&network.id, "pod1"), std::net::Ipv4Addr::new(10, 1, 0, 1));
    let identity = Identity::try_from(7).unwrap();
    let local = Local::new(id, &network, "vvport1", Mac::of_endpoint(ip), ip);
    let object = Object::Local(Local { identity: Some(identity), ..local });
    let mut index = FlowIndex::default();
    let port = BridgePort { name: "vvport1".into(), number: 7 };
    index.insert(Installed { object: object.clone(), port: Some(port) });
    let rate = Some(Rate { bits_per_second: 4_000_000, burst_bytes: 125_000 });
    let ops = [Op::Set(Object::Group(Group { rate, ..Group::new(identity, []) }))];
    let mut database = bridge();
    for (tag, expected) in [(4095, 0), (100, 1)] {
        let port = json!({"name": "vvport1", "tag": tag, "interfaces": ["uuid", "vvport1"]});
        database.update(&json!({"Port": {"pod": {"new": port}}}));
        assert_eq!(of_ops(&database, &options, &index, &ops).len(), expected, "{tag}");
    }
    // ovs-vswitchd has not opened its port.
    index.insert(Installed { object, port: None });
    assert!(of_ops(&database, &options, &index, &ops).is_empty());
}
