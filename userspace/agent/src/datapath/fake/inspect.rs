//! Debug dump as JSON.

use std::net::IpAddr;

use contiv_model::{addresses::Addresses, group::Dscp, policy::Identity, route::NextHop, service::Port};
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
        Object::Peer(peer) => {
            json!({ "id": id, "vtep": peer.vtep, "port": peer.port, "networks": peer.networks.keys().collect::<Vec<_>>() })
        }
        Object::Network(network) => {
            json!({
                "id": id,
                "vrf": network.vrf.to_string(),
                "encap": network.encap.to_string(),
                "arp": format!("{:?}", network.arp).to_lowercase(),
            })
        }
        Object::Subnet(subnet) => json!({
            "id": id,
            "vrf": subnet.vrf.to_string(),
            "prefix": subnet.prefix,
            "gateway": subnet.gateway.map(|gateway| gateway.ip),
            "gatewayMac": subnet.gateway.and_then(|gateway| gateway.mac).map(|mac| mac.to_string()),
        }),
        Object::Route(route) => json!({
            "id": id,
            "nextHops": route.next_hops.iter().map(NextHop::to_string).collect::<Vec<_>>(),
        }),
        Object::Group(group) => json!({
            "id": id,
            "dscp": group.dscp.map(Dscp::get),
            "bitsPerSecond": group.rate.map(|rate| rate.bits_per_second),
            "burstBytes": group.rate.map(|rate| rate.burst_bytes),
            "rules": group.rules.len(),
        }),
        Object::Service(service) => json!({
            "id": id,
            "vrf": service.scope.vrf.to_string(),
            "network": service.scope.network.as_ref().map(|network| &network.id),
            "vip": service.vip,
            "ports": service.ports.iter().map(Port::to_string).collect::<Vec<_>>(),
            "backends": service.backends.iter().map(|backend| backend.ip).collect::<Vec<_>>(),
        }),
        Object::Remote(remote) => json!({
            "id": id,
            "network": remote.network,
            "vrf": remote.vrf.to_string(),
            "encap": remote.encap.to_string(),
            "nextHop": remote.next_hop.to_string(),
            "mac": remote.mac,
            "addresses": addresses(&remote.addresses),
            "identity": remote.identity.map(Identity::get),
        }),
        Object::Local(local) => json!({
            "id": id,
            "network": local.network,
            "vrf": local.vrf.to_string(),
            "encap": local.encap.to_string(),
            "port": local.port,
            "mac": local.mac,
            "addresses": addresses(&local.addresses),
            "identity": local.identity.map(Identity::get),
        }),
    }
}

fn addresses(addresses: &Addresses) -> Vec<IpAddr> {
    addresses.iter().collect()
}
