//! Property test: a model depends only on its objects, not on the order of the changes.

mod foreign_groups;
mod routed_vlans;
mod tunnels;
mod unattached;
mod vrfs;

use contiv_model::{
    global::ArpMode,
    mac::Mac,
    name::EndpointId,
    policy::{Action, Direction, Identity, Peer as Peers, PortRange, Rule, TCP, Tier},
    route::NextHop,
    tag::Encap,
    vrf::Vrf,
};
use proptest::{collection::vec, prelude::*};

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use contiv_model::name::NetworkId;
use openflow_rs::{Change, Flow};

use super::{
    batch::groups_of,
    compare::compare,
    model::{installed_numbers, vrf_numbers},
    *,
};
use crate::datapath::{
    Backend, Gateway, Group, Local, Network, ObjectId, Peer, Remote, Route, RouteId, Scope, Subnet,
    ovs::{
        bridge::{BridgeKind, PerBridge},
        pipeline::{MAX_BUCKETS, peer_group},
        tables::{
            cookie::Cookie,
            edit::{Edit, Tables},
            ids::Owner as _,
            index::BridgePort,
        },
        telemetry::FlowCounters,
    },
};

/// Port numbers of the node's kernel.
const KERNEL: PerBridge<Option<u32>> = PerBridge { vlan: Some(300), vxlan: Some(301) };

fn network_id(n: u8) -> NetworkId {
    NetworkId::new(&format!("net{n}").parse().unwrap(), &"blue".parse().unwrap())
}

/// Networks 0 and 1 are VXLANs, the others VLANs. The variant has another tag, as if the network was deleted and created
/// again.
fn encap(network: u8, variant: bool) -> Encap {
    let tag = u16::from(network) + 1 + 10 * u16::from(variant);
    match network {
        0 | 1 => Encap::Vxlan { vni: u32::from(tag).try_into().unwrap(), local: tag.try_into().unwrap() },
        _ => Encap::Vlan(tag.try_into().unwrap()),
    }
}

fn vtep(n: u8) -> IpAddr {
    [192, 168, 0, n].into()
}

fn endpoint(network: u8, n: u8) -> (EndpointId, Mac, std::net::Ipv4Addr) {
    let ip = [10, network, 0, n].into();
    (EndpointId::new(&network_id(network), &format!("pod{n}")), Mac::of_endpoint(ip), ip)
}

/// Network, which may be routed to the others of its tenant.
fn network(n: u8, variant: bool, routed: bool) -> Network {
    let network = Network::new(network_id(n), encap(n, variant));
    match routed {
        true => Network { vrf: Vrf::Tenant("blue".parse().unwrap()), ..network },
        false => network,
    }
}

/// Subnets of a network in its own VRF have a router on the network as their gateway.
fn subnet(n: u8, (variant, routed): (bool, bool), has_gateway: bool, v6: bool) -> Object {
    let Network { id, vrf, encap, .. } = network(n, variant, routed);
    let (prefix, ip): (_, IpAddr) = match v6 {
        true => (format!("2001:db8:{n}::/64"), format!("2001:db8:{n}::fe").parse().unwrap()),
        false => (format!("10.{n}.0.0/24"), [10, n, 0, 254].into()),
    };
    let mac = routed.then_some(Mac::ROUTER);
    let gateway = has_gateway.then_some(Gateway { ip, mac });
    Object::Subnet(Subnet { network: id, vrf, encap, prefix: prefix.parse().unwrap(), gateway })
}

/// Subnet of a network in its own VRF, for which the node is the gateway.
fn own_subnet(n: u8, variant: bool, v6: bool) -> Object {
    let Object::Subnet(subnet) = subnet(n, (variant, false), true, v6) else { unreachable!() };
    let gateway = subnet.gateway.map(|gateway| Gateway { mac: Some(Mac::ROUTER), ..gateway });
    Object::Subnet(Subnet { gateway, ..subnet })
}

fn local(at: u8, n: u8, (variant, routed): (bool, bool)) -> Object {
    let (id, mac, ip) = endpoint(at, n);
    let port = format!("vvport{at}{n}");
    let network = network(at, variant, routed);
    Object::Local(Local { identity: identity(n), ..Local::new(id, &network, port, mac, ip) })
}

/// Endpoints 0 and 4 have no identity.
fn identity(n: u8) -> Option<Identity> {
    Identity::try_from(u32::from(n) % 4).ok()
}

/// A group without rules, or with rules that need a conjunction.
fn group(n: u8, rules: u8, dscp: bool) -> Object {
    let rule = |n: u8| {
        let peers = [1, 2].map(|n| Identity::try_from(n).unwrap()).into_iter().collect();
        Rule {
            peer: Peers { identities: Some(peers), ..Peers::any() },
            protocol: Some(TCP),
            ports: PortRange::new(1000, 2000 + u16::from(n)),
            ..Rule::new(format!("{n}"), Direction::In, Action::Deny, Tier::try_from(n + 1).unwrap())
        }
    };
    let identity = Identity::try_from(u32::from(n)).unwrap();
    let dscp = dscp.then(|| 46.try_into().unwrap());
    Object::Group(Group { dscp, ..Group::new(identity, (0..rules).map(rule).collect::<Vec<_>>()) })
}

fn service(at: u8, n: u8, backends: u8, (variant, routed): (bool, bool)) -> Object {
    let network = network(at, variant, routed);
    let backends = (0..backends).map(|n| Backend::on(network.encap, [10, at, 0, n])).collect();
    let ports = vec!["53:5353:UDP".parse().unwrap()];
    let id = format!("service{at}{n}:blue");
    Object::Service(Service {
        ports,
        backends,
        ..Service::new(id, Scope::network(&network), [10, at, 0, 200 + n])
    })
}

/// Host access of the tenant, or of a network that is its own VRF.
fn route(vrf: u8, variant: bool) -> Object {
    let vrf = match vrf {
        0 => Vrf::Tenant("blue".parse().unwrap()),
        n => Vrf::Network(network_id(n - 1)),
    };
    let subnet = if variant { "172.19.0.0/16" } else { "172.20.0.0/16" }.parse().unwrap();
    let id = RouteId { vrf, prefix: "0.0.0.0/0".parse().unwrap() };
    Object::Route(Route { id, next_hops: NextHop::Host { subnet }.into() })
}

fn object() -> impl Strategy<Value = Object> {
    prop_oneof![
        (0u8..3, any::<bool>()).prop_map(|(vrf, variant)| route(vrf, variant)),
        (0u8..3).prop_map(|n| Object::Peer(Peer::new(vtep(n), 4789))),
        (0u8..4, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(n, variant, routed, flood)| {
            let arp = if flood { ArpMode::Flood } else { ArpMode::Proxy };
            Object::Network(Network { arp, ..network(n, variant, routed) })
        }),
        (0u8..4, any::<(bool, bool)>(), any::<bool>(), any::<bool>())
            .prop_map(|(n, kind, has_gateway, v6)| subnet(n, kind, has_gateway, v6)),
        (0u8..4, any::<bool>(), any::<bool>()).prop_map(|(n, variant, v6)| own_subnet(n, variant, v6)),
        (0u8..4, 0u8..4, any::<(bool, bool)>()).prop_map(|(network, n, kind)| local(network, n, kind)),
        (0u8..4, 4u8..8, 0u8..3, any::<(bool, bool)>()).prop_map(|(at, n, node, (variant, routed))| {
            let (id, mac, ip) = endpoint(at, n);
            let network = network(at, variant, routed);
            let next_hop = NextHop::on(network.encap, Some(vtep(node))).unwrap();
            let identity = identity(n);
            Object::Remote(Remote { identity, ..Remote::new(id, &network, next_hop, mac, ip) })
        }),
        (1u8..4, 0u8..3, any::<bool>()).prop_map(|(n, rules, dscp)| group(n, rules, dscp)),
        (0u8..4, 0u8..2, 0u8..3, any::<(bool, bool)>())
            .prop_map(|(network, n, backends, kind)| service(network, n, backends, kind)),
    ]
}

/// Returns the port of an object, with a unique number that depends only on the object.
fn port_of(object: &Object) -> Option<BridgePort> {
    let number = match object {
        Object::Peer(peer) => match peer.vtep {
            IpAddr::V4(ip) => 200 + u32::from(ip.octets()[3]),
            IpAddr::V6(_) => return None,
        },
        Object::Local(local) => {
            let [_, network, _, n] = local.addresses.v4().next()?.octets();
            10 * u32::from(network) + u32::from(n) + 1
        }
        _ => return None,
    };
    Some(BridgePort { name: format!("port{number}"), number })
}

/// Returns the contents without retained groups.
fn expected(desired: &Desired, ports: &BridgePorts, base: BaseConfig, numbers: ObjectNumbers) -> SwitchModel {
    super::expected(desired, ports, base, numbers, PerBridge::default())
}

fn sorted(tables: &Tables) -> (Vec<String>, Vec<String>) {
    let empty = Tables::default();
    let mut flows: Vec<_> = tables.difference(&empty).map(|flow| format!("{flow:#}")).collect();
    flows.sort();
    (flows, tables.groups().values().map(ToString::to_string).collect())
}

#[derive(Clone, Debug)]
enum Step {
    Set(Object),
    Delete(Object),
    /// The switch rejects the batch.
    Reject,
    /// The changes are computed before the end of the batch.
    Compute,
    CollectGarbage,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => object().prop_map(Step::Set),
        3 => object().prop_map(Step::Delete),
        1 => Just(Step::Reject),
        2 => Just(Step::Compute),
        1 => Just(Step::CollectGarbage),
    ]
}

/// Returns the installed objects as the desired model, with their ports.
fn installed(model: &SwitchModel) -> (Desired, BridgePorts) {
    let all: Vec<_> = model.index.ids().filter_map(|id| model.index.get(id)).cloned().collect();
    let ports = all.iter().filter_map(|entry| Some((entry.object.id(), entry.port.clone()?))).collect();
    (all.into_iter().map(|entry| entry.object).collect(), ports)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changes_lead_to_the_expected_model(rounds in vec(vec(step(), 1..8), 1..8)) {
        let mut model = SwitchModel::default();
        let mut first = Batch::new(&mut model);
        first.set_base_flows();
        first.commit();
        let counters = FlowCounters::default();
        counters.follow(vec![], &model);
        for round in rounds {
            let before = BridgeKind::ALL.map(|bridge| sorted(model.tables.get(bridge)));
            let mut batch = Batch::new(&mut model);
            let mut rejected = false;
            for step in round {
                match step {
                    Step::Set(object) => batch.set(object.clone(), port_of(&object)).unwrap(),
                    Step::Delete(object) => batch.delete(&object.id()),
                    Step::CollectGarbage => batch.collect_garbage(),
                    Step::Reject => rejected = true,
                    Step::Compute => drop(batch.changes()),
                }
            }
            if rejected {
                batch.set_kernel_ports(KERNEL);
                let _changes = batch.changes();
                batch.rollback(&[]);
                prop_assert_eq!(&before, &BridgeKind::ALL.map(|bridge| sorted(model.tables.get(bridge))));
            } else {
                batch.set_kernel_ports(KERNEL);
                let counted = batch.commit();
                counters.update(&model, &counted);
            }
            // The set of counted flows also depends only on the objects.
            let all = FlowCounters::default();
            all.follow(vec![], &model);
            prop_assert_eq!(counters.lines(), all.lines());
            let (desired, ports) = installed(&model);
            let numbers = installed_numbers(&model.tables, &desired).unwrap();
            let kernel = PerBridge {
                vlan: KERNEL.vlan.filter(|_| model.index.has_routed_vlan()),
                vxlan: KERNEL.vxlan.filter(|_| model.index.has_host_route()),
            };
            let base = BaseConfig { kernel, ..BaseConfig::default() };
            let expected_model = expected(&desired, &ports, base, numbers);
            for bridge in BridgeKind::ALL {
                prop_assert_eq!(sorted(model.tables.get(bridge)), sorted(expected_model.tables.get(bridge)));
            }
            let differences = compare(&expected_model, &model.tables, &desired);
            prop_assert!(differences.out_of_sync.is_empty() && differences.orphans == 0 && !differences.base_flows, "{:?}", differences);
        }
    }
}

/// A cluster of thousands of nodes: each message to the switch fits its maximum size, and each peer is in one group.
#[test]
fn many_peers_need_several_groups() {
    let mut model = SwitchModel::default();
    let mut batch = Batch::new(&mut model);
    batch.set_base_flows();
    batch.set(Object::Network(Network::new(network_id(0), encap(0, false))), None).unwrap();
    let peers: Vec<_> = (0..2 * MAX_BUCKETS as u32 + 1)
        .map(|n| {
            let vtep = IpAddr::from((0x0a00_0000 + n).to_be_bytes());
            (Object::Peer(Peer::new(vtep, 4789)), BridgePort { name: format!("vxif{n}"), number: n + 1 })
        })
        .collect();
    for (peer, port) in &peers {
        batch.set(peer.clone(), Some(port.clone())).unwrap();
    }
    let changes = batch.changes();
    batch.commit();
    for change in &changes.vxlan {
        if let Change::Group(change) = change {
            openflow_rs::Message::new(1, openflow_rs::Body::GroupMod(change.clone())).to_bytes().unwrap();
        }
    }
    let sizes = |model: &SwitchModel| {
        let groups = (0..4).filter_map(|index| model.tables.vxlan.groups().get(&peer_group(index)));
        groups.map(|group| group.buckets.len()).collect::<Vec<_>>()
    };
    assert_eq!(sizes(&model), [MAX_BUCKETS, MAX_BUCKETS, 1]);
    // Flooded frames use all groups.
    let flood = |model: &SwitchModel| {
        let flows = expected(
            &Desired::default(),
            &BridgePorts::new(),
            BaseConfig::default(),
            ObjectNumbers::default(),
        );
        let new = model.tables.vxlan.difference(&flows.tables.vxlan).map(ToString::to_string);
        new.filter(|flow| flow.contains(&format!("group:{}", peer_group(2)))).count()
    };
    assert_eq!(flood(&model), 2);
    let (desired, ports) = installed(&model);
    let differences = compare(
        &expected(&desired, &ports, BaseConfig::default(), ObjectNumbers::default()),
        &model.tables,
        &desired,
    );
    assert!(differences.out_of_sync.is_empty() && differences.orphans == 0, "{differences:?}");
    let mut batch = Batch::new(&mut model);
    peers.iter().skip(1).for_each(|(peer, _)| batch.delete(&peer.id()));
    batch.commit();
    assert_eq!((sizes(&model), flood(&model)), (vec![1], 0));
}

#[test]
fn many_pods_need_several_groups() {
    many_pods(None, &[peer_group(0), 2]);
    // The rules of each pod are evaluated for its copies.
    many_pods(identity(1), &[peer_group(0), 2, 2 | 1 << 31]);
}

fn many_pods(identity: Option<Identity>, of_one: &[u32]) {
    let mut model = SwitchModel::default();
    let mut batch = Batch::new(&mut model);
    batch.set_base_flows();
    batch.set(Object::Network(network(0, false, false)), None).unwrap();
    batch.set(group(1, 1, false), None).unwrap();
    let pods: Vec<_> = (0..2 * MAX_BUCKETS as u32 + 1)
        .map(|n| {
            let Object::Local(mut pod) = local(0, 0, (false, false)) else { unreachable!() };
            pod.id = EndpointId::new(&network_id(0), &format!("pod{n}"));
            let ip = (0x0a00_0000 + n).into();
            (pod.addresses, pod.mac, pod.identity) = (Addresses::from(ip), Mac::of_endpoint(ip), identity);
            pod.port = format!("vvport{n}");
            let port = BridgePort { name: pod.port.clone(), number: n + 1 };
            (Object::Local(pod), port)
        })
        .collect();
    for (pod, port) in &pods {
        batch.set(pod.clone(), Some(port.clone())).unwrap();
    }
    let changes = batch.changes();
    batch.commit();
    for change in &changes.vxlan {
        if let Change::Group(change) = change {
            let message = openflow_rs::Message::new(1, openflow_rs::Body::GroupMod(change.clone()));
            let message = Box::new(message);
            let added = openflow_rs::Body::BundleAdd { bundle: 1, flags: 3, message };
            openflow_rs::Message::new(1, added).to_bytes().unwrap();
        }
    }
    assert_eq!(model.tables.vxlan.groups().len(), 1 + 3 * (of_one.len() - 1));
    let mut batch = Batch::new(&mut model);
    pods.iter().skip(1).for_each(|(pod, _)| batch.delete(&pod.id()));
    batch.commit();
    assert_eq!(model.tables.vxlan.groups().keys().copied().collect::<Vec<_>>(), of_one);
}

/// A VRF keeps its number over a restart until no object is left. A change of one endpoint of a large VRF changes only
/// the endpoint's own flows.
#[test]
fn vrfs_have_numbers_and_changes_are_small() {
    let mut model = SwitchModel::default();
    let tenant = |name: &str, n: u8| {
        let vrf = Vrf::Tenant(name.parse().unwrap());
        Network { vrf, ..Network::new(network_id(n), encap(n, false)) }
    };
    let (blue, red) = (tenant("blue", 0), tenant("red", 1));
    let pod = |network: &Network, n: u16| {
        let [high, low] = n.to_be_bytes();
        let ip = std::net::Ipv4Addr::from([10, 9, high, low]);
        let id = EndpointId::new(&network.id, &format!("pod{n}"));
        let port = BridgePort { name: format!("port{n}"), number: 1000 + u32::from(n) };
        (Object::Local(Local::new(id, network, port.name.clone(), Mac::of_endpoint(ip), ip)), Some(port))
    };
    let numbers = |model: &SwitchModel| [&blue, &red].map(|network| model.numbers.vrfs.get(&network.vrf));
    let [of_blue, of_red] = [&blue, &red].map(|network| Some(network.vrf.first_choice()));
    assert_ne!(of_blue, of_red);
    let mut batch = Batch::new(&mut model);
    batch.set_base_flows();
    for network in [&blue, &red] {
        batch.set(Object::Network(network.clone()), None).unwrap();
    }
    (1..2000).for_each(|n| {
        let (object, port) = pod(&red, n);
        batch.set(object, port).unwrap();
    });
    batch.commit();
    assert_eq!(numbers(&model), [of_blue, of_red]);
    let mut batch = Batch::new(&mut model);
    let (object, port) = pod(&red, 2000);
    batch.set(object, port).unwrap();
    let PerBridge { vlan, vxlan } = batch.changes();
    // The flows of the endpoint, and the group that floods to it.
    assert!(vlan.is_empty() && vxlan.len() < 60, "{}", vxlan.len());
    batch.commit();
    let mut batch = Batch::new(&mut model);
    batch.delete(&ObjectId::Network(blue.id.clone()));
    batch.commit();
    assert_eq!(numbers(&model), [None, of_red]);
    let (desired, ports) = installed(&model);
    let numbers_read = installed_numbers(&model.tables, &desired).unwrap();
    let mut restarted = expected(&desired, &ports, BaseConfig::default(), numbers_read);
    assert_eq!(numbers(&restarted), [None, of_red]);
    let mut batch = Batch::new(&mut restarted);
    batch.set(Object::Network(blue.clone()), None).unwrap();
    batch.commit();
    assert_eq!(numbers(&restarted), [of_blue, of_red]);
    // A service of all networks needs a network in the VRF.
    let service = |vrf: Vrf| Object::Service(Service::new("dns:x", Scope::vrf(vrf), [10, 9, 9, 9]));
    let mut batch = Batch::new(&mut restarted);
    let refused = batch.set(service(Vrf::Tenant("green".parse().unwrap())), None).unwrap_err();
    assert!(refused.to_string().contains("give the service a network"), "{refused}");
    batch.set(service(blue.vrf.clone()), None).unwrap();
    batch.commit();
}

/// The buckets of all groups on the VXLAN bridge, in any order.
fn buckets(model: &SwitchModel) -> BTreeMap<u32, BTreeSet<String>> {
    let groups = model.tables.vxlan.groups().iter();
    groups
        .map(|(id, group)| (*id, group.buckets.iter().map(|bucket| format!("{bucket:?}")).collect()))
        .collect()
}

/// The record of an endpoint is unreadable at a restart, and its network has other endpoints.
#[test]
fn an_endpoint_of_no_object_stays_in_the_groups_of_its_network() {
    let kind = (false, false);
    let network = Object::Network(network(0, false, false));
    let (retained, known, new) = (local(0, 1, kind), local(0, 2, kind), local(0, 3, kind));
    let mut model = SwitchModel::default();
    let mut batch = Batch::new(&mut model);
    batch.set_base_flows();
    // Because of the rules of the first endpoint, the network evaluates the frames that it floods.
    for object in [&network, &group(1, 1, false), &retained, &known] {
        batch.set(object.clone(), port_of(object)).unwrap();
    }
    batch.commit();
    let (flows, _) = sorted(&model.tables.vxlan);
    let before = buckets(&model);
    assert!(before.values().filter(|buckets| buckets.len() == 2).count() == 2, "{before:?}");

    let desired: Desired = [network.clone(), known.clone()].into_iter().collect();
    let ports: BridgePorts = [(known.id(), port_of(&known).unwrap())].into();
    let number = port_of(&retained).unwrap().number;
    let unowned = || PerBridge { vxlan: BTreeSet::from([number]), ..PerBridge::default() };
    let base = BaseConfig { retained: Some(unowned()), ..BaseConfig::default() };
    let restarted = expected(&desired, &ports, base, ObjectNumbers::default());
    let mut model = SwitchModel { tables: model.tables, ..restarted };
    let mut batch = Batch::new(&mut model);
    batch.set(network.clone(), None).unwrap();
    batch.collect_garbage();
    batch.set_kernel_ports(PerBridge::default());
    batch.commit();
    assert_eq!((&sorted(&model.tables.vxlan).0, buckets(&model)), (&flows, before));
    let base = BaseConfig { retained: Some(unowned()), ..BaseConfig::default() };
    let beside = groups_of(&model.tables, &unowned());
    let required = super::expected(&desired, &ports, base, ObjectNumbers::default(), beside);
    let differences = compare(&required, &model.tables, &desired);
    assert!(differences.out_of_sync.is_empty() && differences.orphans > 0, "{differences:?}");

    // Another endpoint is added, and the pod is deleted.
    let mut batch = Batch::new(&mut model);
    batch.set(new.clone(), port_of(&new)).unwrap();
    batch.commit();
    assert_eq!(buckets(&model).values().filter(|buckets| buckets.len() == 3).count(), 2);
    let mut batch = Batch::new(&mut model);
    batch.forget_ports(&unowned());
    batch.delete(&retained.id());
    batch.commit();
    assert_eq!(model.tables.vxlan.flows_of(Cookie::of(&retained.id())).len(), 0);
    assert_eq!(buckets(&model).values().filter(|buckets| buckets.len() == 2).count(), 2);
    let mut batch = Batch::new(&mut model);
    batch.delete(&known.id());
    batch.set(network, None).unwrap();
    batch.commit();
    // No endpoint has rules any more.
    assert_eq!(buckets(&model).values().map(BTreeSet::len).sum::<usize>(), 1);
}

/// After a restart, an endpoint waits for its new group, and its flows are those of the old group.
#[test]
fn groups_stay_while_endpoints_wait() {
    let old = group(1, 1, false);
    let mut model = SwitchModel::default();
    let mut batch = Batch::new(&mut model);
    batch.set_base_flows();
    batch.set(old.clone(), None).unwrap();
    batch.commit();
    let flows = |model: &SwitchModel| model.tables.vxlan.flows_of(Cookie::of(&old.id())).len();
    let before = flows(&model);
    assert!(before > 0);
    let restarted =
        expected(&Desired::default(), &BridgePorts::new(), BaseConfig::default(), ObjectNumbers::default());
    let mut model = SwitchModel { tables: model.tables, ..restarted };
    for (retains_groups, left) in [(true, before), (false, 0)] {
        model.base.retains_groups = retains_groups;
        let mut batch = Batch::new(&mut model);
        batch.collect_garbage();
        batch.commit();
        assert_eq!(flows(&model), left);
    }
}

#[test]
fn what_is_left_of_a_takeover_goes_also_while_orphans_stay() {
    let mut model = SwitchModel::default();
    model.base.retained = Some(PerBridge::default());
    let mut batch = Batch::new(&mut model);
    batch.set_base_flows();
    batch.commit();
    let before = BridgeKind::ALL.map(|bridge| sorted(model.tables.get(bridge)));
    for bridge in BridgeKind::ALL {
        let mut edit = Edit::new(model.tables.get_mut(bridge));
        edit.set(Cookie::HOLD, [pipeline::drop_all()]);
        edit.set(Cookie(1), [Flow { priority: 7, ..pipeline::drop_all() }]);
    }
    // No frame enters until the connections are imported.
    for (holds, left) in [(true, 1), (false, 0)] {
        model.base.holds = holds;
        let mut batch = Batch::new(&mut model);
        batch.collect_garbage();
        batch.commit();
        for (bridge, (flows, _)) in BridgeKind::ALL.into_iter().zip(&before) {
            let tables = model.tables.get(bridge);
            assert_eq!((tables.len(), tables.flows_of(Cookie::HOLD).len()), (flows.len() + 1 + left, left));
        }
    }
}

#[test]
fn a_garbage_collection_does_not_end_a_takeover() {
    let mut model = SwitchModel::default();
    for bridge in BridgeKind::ALL {
        Edit::new(model.tables.get_mut(bridge)).set(Cookie::HOLD, [pipeline::drop_all()]);
    }
    for (holds, left) in [(true, 1), (false, 0)] {
        model.base.holds = holds;
        let mut batch = Batch::new(&mut model);
        batch.collect_garbage();
        batch.commit();
        let held = BridgeKind::ALL.map(|bridge| model.tables.get(bridge).flows_of(Cookie::HOLD).len());
        assert_eq!(held, [left; 2]);
    }
}

/// The number of a VRF whose records are unreadable at a restart is not assigned to another VRF.
#[test]
fn numbers_of_unknown_vrfs_are_reserved() {
    let tenant = |name: &str, n: u8| {
        let vrf = Vrf::Tenant(name.parse().unwrap());
        Network { vrf, ..Network::new(network_id(n), encap(n, false)) }
    };
    // The last name has the same hash value as red.
    let [blue, red, green] = [("blue", 0), ("red", 1), ("green2285", 0)].map(|(name, n)| tenant(name, n));
    let [of_blue, of_red, of_green] = [&blue, &red, &green].map(|network| network.vrf.first_choice());
    assert_eq!(of_green, of_red);
    let mut model = SwitchModel::default();
    let mut batch = Batch::new(&mut model);
    for network in [&blue, &red] {
        batch.set(Object::Network(network.clone()), None).unwrap();
    }
    batch.commit();
    let desired: Desired = [Object::Network(blue.clone())].into_iter().collect();
    let mut numbers = installed_numbers(&model.tables, &desired).unwrap();
    numbers.vrfs.reserve(vrf_numbers(&model.tables).unwrap());
    let number = |model: &SwitchModel, network: &Network| model.numbers.vrfs.get(&network.vrf);
    let mut restarted = expected(&desired, &BridgePorts::new(), BaseConfig::default(), numbers);
    let mut batch = Batch::new(&mut restarted);
    let other = Network { id: network_id(9), encap: encap(9, false), ..green.clone() };
    batch.set(Object::Network(other), None).unwrap();
    batch.commit();
    assert_eq!([&blue, &red].map(|network| number(&model, network)), [Some(of_blue), Some(of_red)]);
    let expected = [Some(of_blue), Some(of_red + 1)];
    assert_eq!([&blue, &green].map(|network| number(&restarted, network)), expected);
}
