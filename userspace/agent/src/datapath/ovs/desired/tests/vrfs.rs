//! Routed networks with a VRF of their own: their addresses overlap those of another network of the tenant.

use super::*;

/// Its frames stay on the node, like those of a routed VLAN in the tenant's VRF.
#[test]
fn a_routed_vlan_with_its_own_vrf_stays_on_the_node() {
    let own = network(2, false, false);
    let (routed, bridged) = (own_subnet(2, false, false), subnet(2, (false, false), true, false));
    let (id, mac, ip) = endpoint(2, 4);
    let next_hop = NextHop::on(own.encap, None).unwrap();
    let remote = Object::Remote(Remote::new(id, &own, next_hop, mac, ip));
    // The second backend is on a network of the tenant's VRF.
    let backends = [2, 3].map(|n| Backend::on(encap(n, false), [10, n, 0, 1]));
    let service = Object::Service(Service {
        ports: vec!["53:5353:UDP".parse().unwrap()],
        backends: backends.into(),
        ..Service::new("dns:blue", Scope::network(&own), [10, 2, 0, 200])
    });
    let network = Object::Network(own.clone());
    let all = [network.clone(), routed.clone(), local(2, 1, (false, false)), remote, service.clone()];
    let mut model = SwitchModel::default();
    let mut batch = Batch::new(&mut model);
    batch.set_base_flows();
    for object in &all {
        batch.set(object.clone(), port_of(object)).unwrap();
    }
    batch.set_kernel_ports(KERNEL);
    batch.commit();
    let flows = |model: &SwitchModel, object: &Object, beginning: &str| -> Vec<String> {
        let flows = model.tables.vlan.flows_of(Cookie::of(&object.id())).iter().map(ToString::to_string);
        flows.filter(|flow| flow.starts_with(beginning)).collect()
    };
    // No frame enters from the uplinks, and packets that are not for an endpoint of the node go to its kernel.
    assert_eq!(flows(&model, &network, "table=1,"), [""; 0]);
    let leaving = flows(&model, &routed, "table=9,");
    assert!(matches!(&leaving[..], [flow] if flow.ends_with("output:300")), "{leaving:?}");
    let members = flows(&model, &service, "table=27, priority=100,");
    assert!(matches!(&members[..], [flow] if flow.contains("0xa020001")), "{members:?}");

    // It has the same zones as a bridged network.
    assert_eq!(model.numbers.vrfs.get(&own.vrf), None);
    let owner = format!("network {}", own.id);
    let zones = domain::zones(&model.index, &model.numbers);
    assert_eq!(zones, BTreeMap::from([(3, owner.clone()), (0x2003, owner)]));

    let desired: Desired = all.into_iter().collect();
    let (_, ports) = installed(&model);
    let base = BaseConfig { kernel: PerBridge { vxlan: None, ..KERNEL }, ..BaseConfig::default() };
    let restarted = expected(&desired, &ports, base, installed_numbers(&model.tables, &desired).unwrap());
    let differences = compare(&restarted, &model.tables, &desired);
    assert!(differences.out_of_sync.is_empty() && differences.orphans == 0, "{differences:?}");

    let mut batch = Batch::new(&mut model);
    batch.set(bridged, None).unwrap();
    batch.set_kernel_ports(PerBridge::default());
    batch.commit();
    assert_eq!(flows(&model, &network, "table=1,").len(), 1);
}
