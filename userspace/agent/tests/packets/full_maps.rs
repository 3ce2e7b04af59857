//! Objects of which a part is written when a map is full.

use std::net::IpAddr;

use anyhow::Result;
use aya::maps::{HashMap, Map, MapData};
use contiv_abi::{
    Domain, FdbEntry, FdbKey, NeighEntry, NeighKey, Port, Segment,
    maps::{FDB, NEIGH, PORTS},
};
use contiv_model::service::Readiness;
use netplugin::datapath::{Object, ObjectId, Op};
use testkit::needs;

use crate::{
    node::{Endpoint, Node, Pod, network, vtep, vxlan},
    services::service,
};

/// Endpoints that the maps have room for, with three addresses each.
const ENDPOINTS: u32 = 4;
const SEGMENT: Segment = Segment::vxlan(10_001);
const HERE: Endpoint = Endpoint(1);
const VIP: Endpoint = Endpoint(250);

/// Whether the maps of ports, of Ethernet addresses and of IP addresses have the pod.
fn found(node: &Node, pod: &Pod) -> Result<[bool; 3]> {
    let map =
        |name: &str| anyhow::Ok(Map::HashMap(MapData::from_pin(node.datapath.maps_directory().join(name))?));
    let ports: HashMap<MapData, u32, Port> = map(PORTS)?.try_into()?;
    let fdb: HashMap<MapData, FdbKey, FdbEntry> = map(FDB)?.try_into()?;
    let neighbours: HashMap<MapData, NeighKey, NeighEntry> = map(NEIGH)?.try_into()?;
    let address = NeighKey::new(Domain::of_segment(SEGMENT), IpAddr::from(HERE.ip()).into());
    Ok([
        ports.get(&node.ifindex(&pod.local.port)?, 0).is_ok(),
        fdb.get(&FdbKey::new(SEGMENT, HERE.mac()), 0).is_ok(),
        neighbours.get(&address, 0).is_ok(),
    ])
}

#[test]
fn an_endpoint_of_which_a_part_is_written_is_deleted_as_a_whole() -> Result<()> {
    needs!(root());
    let mut node = Node::with("full", |options| options.sizes.endpoints = ENDPOINTS)?;
    let n1 = network("n1.t", vxlan(10_001));
    let remotes = [Endpoint(11), Endpoint(12), Endpoint(13)];
    node.want_network(&n1).want_peer(2);
    for endpoint in remotes {
        node.want(Object::Remote(endpoint.remote(&n1, Some(vtep(2)))));
    }
    // It has an IP address and is not in the forwarding database, so the pod has room in that one only.
    let backend = (IpAddr::from(remotes[0].ip()), Readiness::Ready);
    node.want(Object::Service(service(VIP.ip().into(), &[backend])));
    node.converge()?;

    let pod = node.pod(&n1, HERE)?;
    let set = Op::Set(Object::Local(pod.local.clone()));
    let failed = node.apply(std::slice::from_ref(&set))?;
    assert_eq!(failed.len(), 1);
    let error = failed[0].error.to_string();
    assert!(error.contains(&format!("{NEIGH}, which is full")), "{error}");
    assert_eq!(found(&node, &pod)?, [true; 3]);
    assert!(node.apply(&[Op::Delete(ObjectId::Local(pod.local.id.clone()))])?.is_empty());
    assert_eq!(found(&node, &pod)?, [false; 3]);

    // The next attempt, when there is room.
    let gone = remotes[2].remote(&n1, Some(vtep(2))).id;
    assert!(node.apply(&[Op::Delete(ObjectId::Remote(gone)), set])?.is_empty());
    assert_eq!(found(&node, &pod)?, [true; 3]);
    Ok(())
}
