//! Golden test: flows of each object in the syntax of `ovs-ofctl`.

use std::{collections::HashSet, fmt::Write as _, fs, path::Path};

use contiv_model::{
    global::ArpMode,
    mac::Mac,
    name::{EndpointId, NetworkId},
    policy::{Action as Verdict, Direction, ICMP, Identity, IdentitySet, Peer, PortRange, Rule, TCP, Tier},
    route::NextHop,
    service::Readiness,
    tag::Encap,
    vrf::Vrf,
};

use ipnet::IpNet;
use openflow_rs::{Field, Flow};

use super::*;
use crate::datapath::{
    Backend, Gateway, Group, Local, Network, Remote, Scope, Service, Subnet, ovs::bridge::BridgeKind,
};

fn network_id() -> NetworkId {
    NetworkId::new(&"net".parse().unwrap(), &"blue".parse().unwrap())
}

fn vxlan() -> Encap {
    Encap::Vxlan { vni: 5000.try_into().unwrap(), local: 7.try_into().unwrap() }
}

fn vlan() -> Encap {
    Encap::Vlan(100.try_into().unwrap())
}

fn local_in(encap: Encap) -> Local {
    let network = Network::new(network_id(), encap);
    let id = EndpointId::new(&network.id, "pod1");
    let addresses = ([10, 1, 0, 1].into(), Some("2001:db8::1".parse().unwrap()));
    Local::new(id, &network, "vvport1", "02:02:0a:01:00:01".parse().unwrap(), addresses)
}

fn remote_in(encap: Encap) -> Remote {
    let network = Network::new(network_id(), encap);
    let id = EndpointId::new(&network.id, "pod2");
    let next_hop = NextHop::on(encap, Some([192, 0, 2, 2].into())).unwrap();
    let addresses = ([10, 1, 0, 2].into(), Some("2001:db8::2".parse().unwrap()));
    Remote::new(id, &network, next_hop, "02:02:0a:01:00:02".parse().unwrap(), addresses)
}

fn network_in(encap: Encap, arp: ArpMode) -> Vec<Flow> {
    let spread = Spread { groups: 1, peer_groups: 1, uplinks: &[1], standby: &[], has_rules: false };
    network(&Network { arp, ..Network::new(network_id(), encap) }, Domain::Network(encap), spread)
}

/// Compares with the file; writes it if `UPDATE_GOLDEN` is set.
fn golden(name: &str, sections: &[(&str, Vec<Flow>)]) {
    let mut text = String::new();
    for (title, flows) in sections {
        writeln!(text, "# {title}").unwrap();
        let mut flows: Vec<_> = flows.iter().collect();
        flows.sort_by_key(|flow| (flow.table, std::cmp::Reverse(flow.priority), flow.to_string()));
        flows.into_iter().for_each(|flow| writeln!(text, "{flow}").unwrap());
        text.push('\n');
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ovs/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{}: set UPDATE_GOLDEN=1 to update it", path.display());
}

/// Asserts the numbers of flows in the documentation.
fn documented(object: &str, ours: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/architecture/ovs-flows.md");
    let text = fs::read_to_string(&page).unwrap();
    let row = text.lines().find(|line| line.starts_with(&format!("| {object}"))).unwrap();
    assert!(row.contains(&format!("| {ours}")), "{}: {row}: has {ours}", page.display());
}

#[test]
fn documented_numbers_of_flows() {
    let [on_vxlan, on_vlan] = [BridgeKind::Vxlan, BridgeKind::Vlan].map(|bridge| base_flows(bridge).len());
    documented("base |", &format!("{on_vxlan}, {on_vlan} |"));
    documented(
        "network over VXLAN |",
        &format!("{}, and 1 group", network_in(vxlan(), ArpMode::Proxy).len()),
    );
    let here = local(&local_in(vxlan()), Segment::bridged(vxlan()), 3, None);
    documented("endpoint on this node, dual stack |", &format!("{} |", here.len()));
    let there = remote(&remote_in(vxlan()), Segment::bridged(vxlan()), Some(9));
    documented("endpoint on another node, dual stack |", &format!("{} |", there.len()));
}

#[test]
fn vxlan_bridge_flows() {
    golden(
        "vxlan.txt",
        &[
            ("base flows", base_flows(BridgeKind::Vxlan)),
            ("tunnel at port 9", [&[outside(9)][..], &vtep([192, 0, 2, 2].into(), 4789)].concat()),
            ("network blue.net, VNI 5000 (0x1388), ARP proxy", network_in(vxlan(), ArpMode::Proxy)),
            ("network with ARP flood", network_in(vxlan(), ArpMode::Flood)),
            ("local pod at port 3", local(&local_in(vxlan()), Segment::bridged(vxlan()), 3, None)),
            (
                "remote pod behind the tunnel at port 9",
                remote(&remote_in(vxlan()), Segment::bridged(vxlan()), Some(9)),
            ),
        ],
    );
}

#[test]
fn vlan_bridge_flows() {
    golden(
        "vlan.txt",
        &[
            ("base flows", base_flows(BridgeKind::Vlan)),
            ("uplink at port 1", vec![outside(1)]),
            ("network blue.net, VLAN 100 (0x64), ARP proxy", network_in(vlan(), ArpMode::Proxy)),
            ("network with ARP flood", network_in(vlan(), ArpMode::Flood)),
            ("local pod at port 3", local(&local_in(vlan()), Segment::bridged(vlan()), 3, None)),
            ("remote pod", remote(&remote_in(vlan()), Segment::bridged(vlan()), None)),
        ],
    );
}

/// The domain of a network of a tenant whose VRF has the number 3.
fn of_tenant(of: Encap) -> Domain {
    Domain::Vrf(bridge_and_tag(of).0, 3)
}

/// A routed network. A remote endpoint is behind the tunnel, or the kernel, at port 9.
fn routed_flows(of: Encap, domain: Domain) -> Vec<(&'static str, Vec<Flow>)> {
    let (bridge, tag) = bridge_and_tag(of);
    let segment = Segment { tag, domain, routed: Routed { v4: true, v6: true } };
    let network = Network { vrf: Vrf::Tenant("blue".parse().unwrap()), ..Network::new(network_id(), of) };
    let subnet_of = |prefix: &str, ip: &str| {
        let gateway = Some(Gateway { ip: ip.parse().unwrap(), mac: Some(Mac::ROUTER) });
        let Network { id: network, vrf, encap, .. } = network.clone();
        Subnet { network, vrf, encap, prefix: prefix.parse().unwrap(), gateway }
    };
    let v4 = subnet_of("10.1.0.0/16", "10.1.255.254");
    let v6 = subnet_of("2001:db8::/64", "2001:db8::fe");
    let dns = Service {
        ports: vec!["53:5353:TCP".parse().unwrap()],
        backends: vec![Backend::on(of, [10, 1, 0, 1])],
        ..Service::new("dns:blue", Scope::vrf(network.vrf.clone()), [10, 9, 0, 9])
    };
    let spread = Spread { groups: 1, peer_groups: 1, uplinks: &[], standby: &[], has_rules: false };
    let mut sections = vec![
        ("network blue.net, VRF 3", super::network(&network, domain, spread)),
        ("IPv4 subnet", subnet(&v4, segment, Some(9))),
        ("IPv6 subnet", subnet(&v6, segment, Some(9))),
        ("both subnets, on the other bridge", [apart(&v4, domain), apart(&v6, domain)].concat()),
        ("local pod at port 3", local(&local_in(of), segment, 3, None)),
        ("remote pod behind port 9", remote(&remote_in(of), segment, Some(9))),
        ("service 5 (0x5) of the VRF", service(&dns, domain, 5)),
    ];
    if bridge == BridgeKind::Vxlan {
        let host = HostAccess { port: 12, subnet: "172.19.0.0/16".parse().unwrap() };
        sections.extend([
            ("host access by port 12", [vec![from_kernel(12)], host_route(domain, host)].concat()),
            ("IPv4 subnet with host access", host_subnet(&v4, domain, host)),
            ("local pod at port 3 with host access", host_local(&local_in(of), segment, 3, host)),
        ]);
    }
    sections
}

/// The switch accepts the match, and messages can carry the actions.
fn check(flow: &Flow) {
    flow.matching.check().unwrap();
    flow.check().unwrap();
}

#[test]
fn routing_flows() {
    for (file, of) in [("routing.txt", vxlan()), ("routing-vlan.txt", vlan())] {
        let flows = routed_flows(of, of_tenant(of));
        golden(file, &flows);
        flows.iter().flat_map(|(_, flows)| flows).for_each(check);
    }
}

/// Packets of one VRF match no flow of another VRF, except by the tag of the network.
#[test]
fn flows_of_a_vrf_match_it() {
    let alone = Domain::RoutedVlan(100.try_into().unwrap());
    let domains = [(vxlan(), of_tenant(vxlan())), (vlan(), of_tenant(vlan())), (vlan(), alone)];
    let flows = domains.into_iter().flat_map(|(of, domain)| routed_flows(of, domain));
    let flows = flows.flat_map(|(_, flows)| flows);
    let by_address = [Field::Ipv4Src, Field::Ipv4Dst, Field::Ipv6Src, Field::Ipv6Dst, Field::ArpSpa];
    for flow in flows.filter(|flow| by_address.iter().any(|field| flow.matching.get(*field).is_some())) {
        let m = &flow.matching;
        m.check().unwrap();
        let is_own = m.get(Field::InPort).is_some();
        // Flows that drop are exempt: no packet gets through.
        let is_dropped = flow.instructions == openflow_rs::Instructions::default();
        let by_tag = m.get(Field::Metadata).is_some_and(|masked| masked.mask >> 40 != 0);
        let by_vrf = m.get(Field::Reg14).is_some_and(|flags| flags.value >> 18 & 0x1fff == 3);
        assert!(is_own || is_dropped || by_tag || by_vrf, "{flow}");
    }
}

fn identities(numbers: impl IntoIterator<Item = u32>) -> IdentitySet {
    numbers.into_iter().map(|n| Identity::try_from(n).unwrap()).collect()
}

/// A group with a rule of each kind: the flows of alternatives, and of a conjunction.
fn group() -> Group {
    let rule = |id: &str, direction, action, priority: u8| {
        Rule::new(id, direction, action, Tier::try_from(priority).unwrap())
    };
    let web = Rule {
        peer: Peer { identities: Some(identities([5, 6, 7])), ..Peer::any() },
        protocol: Some(TCP),
        ports: PortRange::new(8080, 8090),
        ..rule("web", Direction::In, Verdict::Allow, 60)
    };
    let office = Rule {
        peer: Peer::prefix("192.0.2.0/24".parse().unwrap()),
        protocol: Some(ICMP),
        ..rule("office", Direction::In, Verdict::Allow, 20)
    };
    let outside = Rule {
        peer: Peer::prefix("2001:db8:1::/48".parse().unwrap()),
        own: Some("2001:db8::1/128".parse().unwrap()),
        ..rule("outside", Direction::Out, Verdict::Deny, 10)
    };
    let rules = [web, office, rule("all", Direction::In, Verdict::Deny, 1), outside];
    Group::new(Identity::try_from(9).unwrap(), rules)
}

#[test]
fn policy_flows() {
    let network = Network::new(network_id(), vlan());
    let spread = Spread { groups: 1, peer_groups: 1, uplinks: &[1], standby: &[], has_rules: true };
    let member = Local { identity: Identity::try_from(9).ok(), ..local_in(vxlan()) };
    golden(
        "policy.txt",
        &[
            ("group 9", rules(&group())),
            (
                "VLAN 100 (0x64) with a local pod that has rules",
                super::network(&network, Domain::Network(vlan()), spread),
            ),
            (
                "local pod of group 9 (0x9) with DSCP 46",
                local(&member, Segment::bridged(vxlan()), 3, 46.try_into().ok()),
            ),
        ],
    );
    rules(&group()).iter().for_each(check);
}

#[test]
fn service_flows() {
    let network = Network::new(network_id(), vxlan());
    let backend = |ip: [u8; 4], readiness| Backend { readiness, ..Backend::on(vxlan(), ip) };
    let dns = Service {
        ports: vec!["53:5353:UDP".parse().unwrap(), "53:5353:TCP".parse().unwrap()],
        backends: vec![
            backend([10, 1, 0, 1], Readiness::Ready),
            backend([10, 1, 0, 2], Readiness::Ready),
            backend([10, 1, 0, 3], Readiness::Terminating),
        ],
        ..Service::new("dns:blue", Scope::network(&network), [10, 1, 0, 9])
    };
    let ip: std::net::IpAddr = "2001:db8::9".parse().unwrap();
    let web = Service {
        ports: vec!["80:8080:TCP".parse().unwrap()],
        backends: vec![Backend::on(vxlan(), "2001:db8::1".parse::<std::net::IpAddr>().unwrap())],
        affinity: Some(std::time::Duration::from_hours(3)),
        ..Service::new("web:blue", Scope::network(&network), ip)
    };
    let empty = Service { backends: vec![], ..dns.clone() };
    let sections = [
        ("service 5 (0x5), TCP and UDP port 53", service(&dns, Domain::Network(vxlan()), 5)),
        ("service 6 with session affinity", service(&web, Domain::Network(vxlan()), 6)),
        ("service 7 without backends", service(&empty, Domain::Network(vxlan()), 7)),
    ];
    golden("service.txt", &sections);
    documented("service with one port", &format!("{}, and 1 for each", sections[0].1.len()));
    sections.iter().flat_map(|(_, flows)| flows).for_each(check);
    let group = "group_id=11,type=select,\
        bucket=actions=set_field:0xa010001->reg4,resubmit(,28),\
        bucket=actions=set_field:0xa010002->reg4,resubmit(,28)";
    assert_eq!(selection(&dns, Domain::Network(vxlan()), 5).to_string(), group);
}

/// The number of flows is the sum of a rule's alternatives, not their product.
#[test]
fn alternatives_of_a_rule_add_up() {
    let rule = Rule {
        peer: Peer { identities: Some(identities(1..=100)), ..Peer::any() },
        protocol: Some(TCP),
        ports: PortRange::new(1, 65_534),
        ..Rule::new("one", Direction::In, Verdict::Deny, Tier::try_from(1).unwrap())
    };
    let group = Group::new(Identity::try_from(9).unwrap(), [rule]);
    assert_eq!(rules(&group).len(), 100 + 30 + 1 + 3);
}

/// Each rule is a conjunction; two rules share an id.
#[test]
fn a_rule_that_comes_leaves_the_flows_of_others() {
    let rule = |n: u8| Rule {
        peer: Peer { identities: Some(identities([5, 6, 7])), ..Peer::any() },
        own: Some(IpNet::new([10, 0, 0, n].into(), 32).unwrap()),
        protocol: Some(TCP),
        ports: PortRange::new(8080, 8090),
        ..Rule::new(format!("r{}", n / 2), Direction::In, Verdict::Allow, Tier::try_from(60).unwrap())
    };
    let flows = |numbers: std::ops::Range<u8>| -> HashSet<Flow> {
        let all: Vec<Rule> = numbers.map(rule).collect();
        rules(&Group::new(Identity::try_from(9).unwrap(), all)).into_iter().collect()
    };
    let (few, more) = (flows(2..9), flows(0..9));
    assert!(few.is_subset(&more) && few.len() < more.len());
}

/// Frames with its addresses are dropped, and frames to it are not flooded to all tunnels.
#[test]
fn a_remote_pod_without_a_tunnel_is_nowhere() {
    let flows = remote(&remote_in(vxlan()), Segment::bridged(vxlan()), None);
    let of = |table: u8| -> Vec<String> {
        flows.iter().filter(|flow| flow.table == table).map(ToString::to_string).collect()
    };
    let to = "table=9, priority=99,metadata=0x13880000000000/0xffffff0000000001,dl_dst=02:02:0a:01:00:02 actions=drop";
    assert_eq!(of(table::DESTINATION), [to]);
    let stations = of(table::STATIONS);
    assert!(matches!(&stations[..], [flow] if flow.contains("0x4000fffe->reg13")), "{stations:?}");
}

#[test]
fn matches_have_their_prerequisites() {
    let objects = [vxlan(), vlan()].map(|encap| {
        let flows = [
            network_in(encap, ArpMode::Proxy),
            local(&local_in(encap), Segment::bridged(encap), 3, None),
            remote(&remote_in(encap), Segment::bridged(encap), Some(9)),
            unattached(&local_in(encap), Segment::bridged(encap)),
            unattached(&local_in(encap), Segment { domain: of_tenant(encap), ..Segment::bridged(encap) }),
        ];
        flows.concat()
    });
    let base = BridgeKind::ALL.into_iter().flat_map(base_flows);
    let all = base.chain(objects.into_iter().flatten());
    all.for_each(|flow| check(&flow));
}
