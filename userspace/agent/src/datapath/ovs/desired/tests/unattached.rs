//! Local endpoints without a port, and with a port on the bridge that their network has left.

use super::*;

/// The flows of an object on the bridge of a network.
fn flows(model: &SwitchModel, network: u8, id: &ObjectId) -> BTreeSet<String> {
    let (bridge, _) = pipeline::bridge_and_tag(encap(network, false));
    model.tables.get(bridge).flows_of(Cookie::of(id)).iter().map(ToString::to_string).collect()
}

fn of_table(flows: &BTreeSet<String>, table: u8) -> BTreeSet<&String> {
    let beginning = format!("table={table},");
    flows.iter().filter(|flow| flow.starts_with(&beginning)).collect()
}

/// The switch has lost the port, and its number may be reused. Without the record, other senders could use the endpoint's
/// addresses.
#[test]
fn an_endpoint_without_a_port_keeps_its_record() {
    for at in [0, 2] {
        let (network, local) = (Object::Network(network(at, false, false)), local(at, 1, (false, false)));
        let id = local.id();
        let mut model = SwitchModel::default();
        let mut batch = Batch::new(&mut model);
        batch.set_base_flows();
        for object in [&network, &local] {
            batch.set(object.clone(), port_of(object)).unwrap();
        }
        batch.commit();
        let attached = flows(&model, at, &id);

        let desired: Desired = [network, local.clone()].into_iter().collect();
        let (ports, base) = (BridgePorts::new(), BaseConfig::default());
        let restarted = expected(&desired, &ports, base, ObjectNumbers::default());
        let differences = compare(&restarted, &model.tables, &desired);
        assert!(differences.out_of_sync.contains(&id) && differences.orphans == 0, "{differences:?}");
        let mut model = SwitchModel { tables: model.tables, ..restarted };
        let mut batch = Batch::new(&mut model);
        batch.collect_garbage();
        batch.commit();
        let record = flows(&model, at, &id);
        // The owner flows of its addresses, and of its Ethernet address.
        for table in [35, 36] {
            assert_eq!(of_table(&record, table), of_table(&attached, table));
            assert!(!of_table(&record, table).is_empty());
        }
        let names_port = |flow: &String| flow.contains("in_port=") || flow.contains("output:");
        assert!(!record.iter().any(names_port), "{record:?}");

        let mut batch = Batch::new(&mut model);
        batch.set(local.clone(), port_of(&local)).unwrap();
        batch.commit();
        assert_eq!(flows(&model, at, &id), attached);
    }
}

/// The node answers for a service as soon as its speaker has a port.
#[test]
fn an_endpoint_that_gets_a_port_speaks_for_its_services() {
    let (network, local) = (network(2, false, false), local(2, 1, (false, false)));
    let service = Object::Service(Service {
        ports: vec!["53:5353:UDP".parse().unwrap()],
        backends: vec![Backend::on(network.encap, [10, 2, 0, 1])],
        ..Service::new("dns:blue", Scope::network(&network), [10, 2, 0, 200])
    });
    let objects = [Object::Network(network), service.clone(), local.clone()];
    let desired: Desired = objects.into_iter().collect();
    let (base, numbers) = (BaseConfig::default(), ObjectNumbers::default());
    let with = |ports: BridgePorts| expected(&desired, &ports, base.clone(), numbers.clone());
    let port = port_of(&local).unwrap();
    let complete = with([(local.id(), port.clone())].into());
    let mut model = with(BridgePorts::new());
    let of_service = |model: &SwitchModel| flows(model, 2, &service.id());
    assert_ne!(of_service(&model), of_service(&complete));
    let mut batch = Batch::new(&mut model);
    batch.set(local, Some(port)).unwrap();
    batch.commit();
    assert_eq!(of_service(&model), of_service(&complete));
}

/// The network has become a VLAN, and the switch rejects the endpoint's flows there: the port number belongs to the other
/// bridge.
#[test]
fn an_endpoint_on_the_former_bridge_is_no_receiver() {
    let (before, local) = (network(0, false, false), local(0, 1, (false, false)));
    let after = Network { encap: encap(2, false), ..before.clone() };
    let mut model = SwitchModel::default();
    let mut batch = Batch::new(&mut model);
    batch.set_base_flows();
    for object in [&Object::Network(before), &group(1, 1, false), &local] {
        batch.set(object.clone(), port_of(object)).unwrap();
    }
    batch.commit();
    let receivers = |model: &SwitchModel| -> Vec<u32> {
        let buckets = model.tables.vlan.groups().values().flat_map(|group| &group.buckets);
        buckets.filter_map(pipeline::receiver_port).collect()
    };
    let mut batch = Batch::new(&mut model);
    batch.set(Object::Network(after.clone()), None).unwrap();
    batch.commit();
    assert!(!model.index.has_rules(&after));
    assert!(receivers(&model).is_empty());
    assert_eq!(model.tables.vxlan.groups().keys().copied().collect::<Vec<_>>(), [peer_group(0)]);

    let Object::Local(local) = local else { unreachable!() };
    let port = BridgePort { name: local.port.clone(), number: 77 };
    let mut batch = Batch::new(&mut model);
    batch.set(Object::Local(Local { encap: after.encap, ..local }), Some(port)).unwrap();
    batch.commit();
    assert_eq!(receivers(&model), [77]);
}
