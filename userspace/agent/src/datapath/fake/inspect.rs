//! Debug dump as JSON.

use contiv_model::{
    group::{Dscp, GroupNumber},
    service::Port,
};
use serde_json::{Value, json};

use super::switch::Switch;
use crate::datapath::Object;

pub(super) fn switch(switch: &Switch) -> Value {
    let objects = switch.objects();
    let objects: Vec<Value> = objects.iter().map(|(_, object)| self::object(object)).collect();
    json!({ "objects": objects, "debris": switch.foreign_items() })
}

fn object(object: &Object) -> Value {
    let id = object.id().to_string();
    match object {
        Object::Peer(peer) => json!({ "id": id, "vtep": peer.vtep, "port": peer.port }),
        Object::Network(network) => {
            json!({
                "id": id,
                "encap": network.encap.to_string(),
                "arp": format!("{:?}", network.arp).to_lowercase(),
            })
        }
        Object::Group(group) => json!({
            "id": id,
            "dscp": group.dscp.map(Dscp::get),
            "bitsPerSecond": group.rate.map(|rate| rate.bits_per_second),
            "burstBytes": group.rate.map(|rate| rate.burst_bytes),
            "rules": group.rules.len(),
        }),
        Object::Service(service) => json!({
            "id": id,
            "network": service.scope.as_ref().map(|scope| &scope.network),
            "vip": service.vip,
            "ports": service.ports.iter().map(Port::to_string).collect::<Vec<_>>(),
            "backends": service.backends.iter().map(|backend| backend.ip).collect::<Vec<_>>(),
        }),
        Object::Remote(remote) => json!({
            "id": id,
            "network": remote.network,
            "encap": remote.encap.to_string(),
            "vtep": remote.vtep,
            "mac": remote.mac,
            "ip": remote.ip,
            "ip6": remote.ip6,
            "group": remote.group.map(GroupNumber::get),
        }),
        Object::Local(local) => json!({
            "id": id,
            "network": local.network,
            "encap": local.encap.to_string(),
            "port": local.port,
            "mac": local.mac,
            "ip": local.ip,
            "ip6": local.ip6,
            "group": local.group.map(GroupNumber::get),
        }),
    }
}
