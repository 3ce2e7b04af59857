//! VLAN networks for which the node is the gateway, while the kernel has no port.

use super::*;

/// Another datapath has the interface of the kernel, or the switch could not open it. The service of the tenant was
/// installed before.
#[test]
fn a_routed_vlan_lacks_only_the_port_of_the_kernel() {
    let [network, subnet] = [Object::Network(network(2, false, true)), subnet(2, (false, true), true, false)];
    let ports = vec!["53:5353:UDP".parse().unwrap()];
    let vrf = Vrf::Tenant("blue".parse().unwrap());
    let service =
        Object::Service(Service { ports, ..Service::new("dns:blue", Scope::vrf(vrf), [10, 9, 9, 9]) });
    let flows = |model: &SwitchModel, object: &Object| -> Vec<String> {
        model.tables.vlan.flows_of(Cookie::of(&object.id())).iter().map(ToString::to_string).collect()
    };
    let mut model = SwitchModel::default();
    let mut batch = Batch::new(&mut model);
    batch.set_base_flows();
    for object in [&network, &service] {
        batch.set(object.clone(), None).unwrap();
    }
    batch.set_kernel_ports(PerBridge::default());
    batch.commit();
    assert_eq!(flows(&model, &service), [""; 0]);
    let mut batch = Batch::new(&mut model);
    batch.set(subnet.clone(), None).unwrap();
    batch.set_kernel_ports(PerBridge::default());
    batch.commit();
    assert_ne!(flows(&model, &service), [""; 0]);
    // Packets for the kernel are not flooded to the pods of the network.
    let to_kernel = "dl_dst=00:00:11:11:11:11,nw_src=10.2.0.0/24 actions=";
    let leaving = |model: &SwitchModel| -> Vec<String> {
        let all = flows(model, &subnet).into_iter().filter(|flow| flow.starts_with("table=9,"));
        all.filter_map(|flow| Some(flow.split_once(to_kernel)?.1.to_owned())).collect()
    };
    assert_eq!(leaving(&model), ["drop"]);

    let all: Desired = [network, subnet.clone(), service.clone()].into_iter().collect();
    let with = |kernel| {
        let numbers = installed_numbers(&model.tables, &all).unwrap();
        let base = BaseConfig { kernel, ..BaseConfig::default() };
        expected(&all, &BridgePorts::new(), base, numbers)
    };
    let differences = compare(&with(PerBridge::default()), &model.tables, &all);
    assert!(differences.out_of_sync.is_empty() && differences.orphans == 0, "{differences:?}");
    let kernel = PerBridge { vxlan: None, ..KERNEL };
    let complete = with(kernel);
    assert_eq!(compare(&complete, &model.tables, &all).out_of_sync, BTreeSet::from([subnet.id()]));
    assert_eq!(leaving(&complete), ["set_field:02:00:11:11:11:11->eth_dst,output:300"]);

    let mut batch = Batch::new(&mut model);
    batch.delete(&subnet.id());
    batch.set_kernel_ports(PerBridge::default());
    batch.commit();
    assert_eq!(flows(&model, &service), [""; 0]);
}
