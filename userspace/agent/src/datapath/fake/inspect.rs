//! The inside as JSON.

use serde_json::{Value, json};

use super::{Object, Switch};

pub(super) fn switch(switch: &Switch) -> Value {
    let objects = switch.objects();
    let objects: Vec<Value> = objects.iter().map(|(_, object)| self::object(object)).collect();
    json!({ "objects": objects, "debris": switch.debris() })
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
        Object::Remote(remote) => json!({
            "id": id,
            "network": remote.network,
            "encap": remote.encap.to_string(),
            "vtep": remote.vtep,
            "mac": remote.mac,
            "ip": remote.ip,
            "ip6": remote.ip6,
        }),
        Object::Local(local) => json!({
            "id": id,
            "network": local.network,
            "encap": local.encap.to_string(),
            "port": local.port,
            "mac": local.mac,
            "ip": local.ip,
            "ip6": local.ip6,
        }),
    }
}
