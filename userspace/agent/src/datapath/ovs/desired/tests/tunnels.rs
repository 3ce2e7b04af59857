//! Remote endpoints without a tunnel to their node.

use super::*;

fn remote_at(node: u8) -> Object {
    let blue = network(0, false, false);
    let (id, mac, ip) = endpoint(0, 4);
    let next_hop = NextHop::on(blue.encap, Some(vtep(node))).unwrap();
    Object::Remote(Remote::new(id, &blue, next_hop, mac, ip))
}

fn peer(node: u8) -> Object {
    Object::Peer(Peer::new(vtep(node), 4789))
}

/// Returns the contents for these objects. Objects that need a port have it.
fn model_of(objects: &[Object]) -> SwitchModel {
    let ports: BridgePorts =
        objects.iter().filter_map(|object| Some((object.id(), port_of(object)?))).collect();
    let desired: Desired = objects.iter().cloned().collect();
    expected(&desired, &ports, BaseConfig::default(), ObjectNumbers::default())
}

/// Returns the flows of an object on the VXLAN bridge.
fn flows(model: &SwitchModel, id: &ObjectId) -> BTreeSet<String> {
    model.tables.vxlan.flows_of(Cookie::of(id)).iter().map(|flow| format!("{flow:#}")).collect()
}

/// Neither a restart of the agent nor garbage collection removes the record. Without it, other nodes could send with the
/// endpoint's addresses. The endpoint is reachable as soon as there is a tunnel.
#[test]
fn an_endpoint_without_a_tunnel_keeps_its_record() {
    let (network, remote, peer) = (Object::Network(network(0, false, false)), remote_at(1), peer(1));
    let id = remote.id();
    let mut model = SwitchModel::default();
    let mut batch = Batch::new(&mut model);
    batch.set_base_flows();
    for object in [&network, &remote] {
        batch.set(object.clone(), None).unwrap();
    }
    batch.commit();
    let nowhere = flows(&model, &id);
    assert!(!nowhere.is_empty());

    // The switch cannot open the tunnel.
    let desired: Desired = [network.clone(), remote.clone(), peer.clone()].into_iter().collect();
    let restarted = expected(&desired, &BridgePorts::new(), BaseConfig::default(), ObjectNumbers::default());
    let differences = compare(&restarted, &model.tables, &desired);
    assert!(differences.out_of_sync.is_empty() && differences.orphans == 0, "{differences:?}");
    let mut model = SwitchModel { tables: model.tables, ..restarted };
    let mut batch = Batch::new(&mut model);
    batch.collect_garbage();
    batch.commit();
    assert_eq!(flows(&model, &id), nowhere);

    let mut batch = Batch::new(&mut model);
    batch.set(peer.clone(), port_of(&peer)).unwrap();
    batch.commit();
    let reached = model_of(&[network, remote, peer]);
    assert_eq!(flows(&model, &id), flows(&reached, &id));
    assert_ne!(flows(&model, &id), nowhere);
}

/// The node that the endpoint has left can no longer send with its addresses.
#[test]
fn an_endpoint_moves_to_a_node_without_a_tunnel() {
    let (network, moved) = (Object::Network(network(0, false, false)), remote_at(1));
    let id = moved.id();
    let mut model = model_of(&[network.clone(), peer(0), remote_at(0)]);
    let mut batch = Batch::new(&mut model);
    batch.set(moved.clone(), None).unwrap();
    batch.commit();
    assert_eq!(flows(&model, &id), flows(&model_of(&[network, moved]), &id));
}
