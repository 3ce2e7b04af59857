use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use contiv_abi::{
    Address, Be16,
    policy::{LookupKey, Search, Tables, word},
};
use contiv_model::policy::{
    self, ICMP, ICMPV6, Identity, IdentitySet, IpBlock, Packet, Peer, PortRange, Side, TCP, Tier, UDP,
};
use proptest::prelude::*;

use super::*;

/// Compiled rules, and the lookup key of a search.
struct Loaded<'a> {
    compiled: &'a Compiled,
    key: LookupKey,
    /// Number of nodes in the longest search.
    steps: u32,
}

impl Loaded<'_> {
    fn new(compiled: &Compiled) -> Loaded<'_> {
        for node in &compiled.nodes {
            assert!(node.starts.is_sorted() && node.starts[0] < 1 << 62, "{node:?}");
        }
        Loaded { compiled, key: LookupKey::default(), steps: 0 }
    }

    /// Name and action of the deciding rule.
    fn deciding(&mut self, own: IpAddr, peer: &Side<'_>, packet: Packet) -> Option<(RuleId, Action)> {
        let set = self.compiled.sets.first()?;
        let address = |ip: IpAddr| Address::from(ip);
        let key = &mut self.key;
        key.set_ends(own.is_ipv6().into(), &address(peer.address), &address(own));
        // Without ports, the field contains arbitrary bytes.
        key.set_port(packet.protocol, Be16::new(packet.port.unwrap_or(77)));
        key.set_group(if set.by_group == 0 { 0 } else { peer.party.identity().map_or(0, Identity::get) });
        let mut search = Search::new(0);
        let (mut steps, mut walks) = (0, 0);
        while search.turn(self) {
            steps += search.walk(self, &self.key);
            walks += 1;
        }
        assert!(walks < Search::TURNS);
        self.steps = self.steps.max(steps);
        let entry = search.best;
        entry.is_some().then(|| {
            let action = if entry.denies() { Action::Deny } else { Action::Allow };
            (self.compiled.rules[entry.rule as usize].clone(), action)
        })
    }
}

impl Tables for Loaded<'_> {
    fn set(&self, number: u32) -> Option<&RuleSet> {
        self.compiled.sets.get(number as usize)
    }

    fn branch(&self, slot: u32) -> Option<&Branch> {
        self.compiled.nodes.get(slot as usize)
    }
}

/// Similar addresses, so that prefixes of one contain another.
fn address() -> impl Strategy<Value = IpAddr> {
    let flips = || prop::collection::vec(0..128_u32, 0..3);
    prop_oneof![
        flips().prop_map(|flips| {
            let base = Ipv4Addr::new(10, 1, 2, 3).to_bits();
            Ipv4Addr::from_bits(flips.iter().fold(base, |bits, flip| bits ^ 1 << (flip % 32))).into()
        }),
        flips().prop_map(|flips| {
            let base = Ipv6Addr::new(0xfd00, 0, 0, 7, 0, 0, 0, 3).to_bits();
            Ipv6Addr::from_bits(flips.iter().fold(base, |bits, flip| bits ^ 1 << flip)).into()
        }),
    ]
}

fn subnet() -> impl Strategy<Value = IpNet> {
    (address(), 0..=128_u8).prop_map(|(address, length)| {
        let length = if address.is_ipv4() { length % 33 } else { length };
        IpNet::new(address, length).unwrap().trunc()
    })
}

fn identity(number: u32) -> Identity {
    Identity::try_from(number).unwrap()
}

fn any_identity() -> impl Strategy<Value = Identity> {
    (1..4_u32).prop_map(identity)
}

fn peer() -> impl Strategy<Value = Peer> {
    let identities = prop::collection::vec(any_identity(), 0..3);
    let identities = identities.prop_map(|identities| identities.into_iter().collect::<IdentitySet>());
    // The exceptions are long prefixes: a short one would split the block into many small prefixes.
    let block = (subnet(), prop::collection::vec(address(), 0..2))
        .prop_map(|(prefix, except)| IpBlock::new(prefix, except.into_iter().map(IpNet::from)));
    let blocks = prop_oneof![
        6 => subnet().prop_map(|subnet| vec![IpBlock::from(subnet)]),
        1 => prop::collection::vec(block, 0..3),
    ];
    (prop::option::of(identities), prop::option::weighted(0.7, blocks))
        .prop_map(|(identities, blocks)| Peer { identities, blocks: blocks.map(Into::into) })
}

fn ports() -> impl Strategy<Value = PortRange> {
    prop_oneof![
        prop::sample::select(vec![53_u16, 80]).prop_map(PortRange::from),
        (50..90_u16, 0..40_u16).prop_map(|(first, more)| PortRange::new(first, first + more).unwrap()),
        prop::sample::select(vec![(0, u16::MAX), (80, u16::MAX), (0, 0)])
            .prop_map(|(first, last)| PortRange::new(first, last).unwrap()),
    ]
}

/// A tier and whether the rule denies.
fn tier() -> impl Strategy<Value = (Tier, bool)> {
    let priority = prop_oneof![3 => 1..4_u8, 1 => 49..53_u8, 1 => Just(100)];
    prop_oneof![
        4 => (priority, any::<bool>()).prop_map(|(priority, deny)| (priority.try_into().unwrap(), deny)),
        1 => any::<bool>().prop_map(|deny| (Tier::NetworkPolicy, deny)),
    ]
}

prop_compose! {
    fn rule()(
        id in 0..20_u32,
        direction in prop::sample::select(vec![Direction::In, Direction::Out]),
        peer in peer(),
        own in prop::option::weighted(0.2, subnet()),
        protocol in prop::option::of(prop::sample::select(vec![ICMP, TCP, UDP, ICMPV6, 132])),
        ports in prop::option::of(ports()),
        (tier, deny) in tier(),
    ) -> Rule {
        let action = if deny { Action::Deny } else { Action::Allow };
        // Rules with the same name differ only in the subnets.
        let id = format!("{direction}{id}{deny}{tier:?}");
        let ports = ports.filter(|_| [Some(TCP), Some(UDP)].contains(&protocol));
        Rule { peer, own, protocol, ports, ..Rule::new(id, direction, action, tier) }
    }
}

prop_compose! {
    fn packet_and_ends()(
        (own, peer) in (address(), address()).prop_filter("one family", |(a, b)| a.is_ipv4() == b.is_ipv4()),
        identity in prop::option::of(any_identity()),
        protocol in prop::sample::select(vec![ICMP, TCP, UDP, ICMPV6, 132, 47, 0]),
        port in prop_oneof![prop::sample::select(vec![53_u16, 80, 0, 443, u16::MAX]), 48..100_u16],
    ) -> (IpAddr, IpAddr, Option<Identity>, Packet) {
        let port = [TCP, UDP].contains(&protocol).then_some(port);
        (own, peer, identity, Packet { protocol, port })
    }
}

proptest! {
    #[test]
    fn the_deciding_rule_equals_the_oracles(
        rules in prop::collection::vec(rule(), 0..40),
        packets in prop::collection::vec(packet_and_ends(), 100),
    ) {
        let cases = [Direction::In, Direction::Out].map(|direction| {
            [Limit::DEFAULT, Limit::COMPACT, Limit::SEPARATE, Limit::ADDRESS_FIRST].map(|limit| (direction, limit))
        });
        for (direction, limit) in cases.into_iter().flatten() {
            let compiled = compile(&rules, direction, limit);
            let mut loaded = Loaded::new(&compiled);
            for (own, peer, identity, packet) in &packets {
                let peer = Side::endpoint(*peer, *identity, &[]);
                let expected = policy::deciding_rule(&rules, direction, *own, &peer, *packet);
                let expected = expected.map(|rule| (rule.id.clone(), rule.action));
                prop_assert_eq!(loaded.deciding(*own, &peer, *packet), expected, "{:?}", (own, peer, packet));
            }
        }
    }
}

#[test]
fn no_rules_compile_to_no_set() {
    assert_eq!(compile(&[], Direction::In, Limit::DEFAULT), Compiled::default());
}

fn deny(id: impl std::fmt::Display, subnet: Option<IpNet>, port: Option<u16>) -> Rule {
    Rule {
        peer: Peer::new(None, subnet),
        protocol: Some(TCP),
        ports: port.map(PortRange::from),
        ..Rule::new(format!("r{id:0>7}"), Direction::In, Action::Deny, 1.try_into().unwrap())
    }
}

/// The n-th of many prefixes scattered over all addresses of a family.
fn scattered(n: u32, length: u8, ip6: bool) -> IpNet {
    let bits = n.wrapping_mul(0x9e37_79b1);
    let ip: IpAddr = if ip6 {
        Ipv6Addr::from_bits(u128::from(bits) << 96 | u128::from(bits.rotate_left(7)) << 3 | 0x2000 << 112)
            .into()
    } else {
        Ipv4Addr::from_bits(bits).into()
    };
    IpNet::new(ip, length).unwrap().trunc()
}

/// Maximum number of search steps for one packet from each subnet.
fn steps(compiled: &Compiled, subnets: &[IpNet]) -> u32 {
    let mut loaded = Loaded::new(compiled);
    for subnet in subnets {
        let packet = Packet { protocol: TCP, port: Some(80) };
        let found = loaded.deciding(subnet.network(), &Side::outside(subnet.network()), packet);
        assert!(found.is_some(), "{subnet}");
    }
    loaded.steps
}

/// Compiles rules for one port with the given subnets. Returns the number of nodes, and of steps in the longest search.
fn of_subnets(count: u32, subnet: impl Fn(u32) -> IpNet) -> (usize, u32) {
    let subnets: Vec<IpNet> = (0..count).map(subnet).collect();
    let rules: Vec<Rule> = subnets.iter().enumerate().map(|(n, net)| deny(n, Some(*net), Some(80))).collect();
    let compiled = compile(&rules, Direction::In, Limit::DEFAULT);
    let used = compiled.sets[0].roots.iter().filter(|root| root.is_some()).count();
    assert_eq!((compiled.sets.len(), used), (1, 1));
    (compiled.nodes.len(), steps(&compiled, &subnets))
}

#[test]
fn mixed_prefix_lengths_do_not_lengthen_a_search() {
    let lengths: [&dyn Fn(u32) -> IpNet; 3] =
        [&|n| scattered(n, 32, false), &|n| scattered(n, 8 + (n % 25) as u8, false), &|n| {
            scattered(n, 48, true)
        }];
    for subnet in lengths {
        assert!(of_subnets(1, subnet).1 <= 2);
        let (nodes, steps) = of_subnets(15_000, subnet);
        // One node for the port. Eight children per node, at most 30,001 ranges.
        assert!(steps <= 6 && nodes <= 4290, "{steps}, {nodes}");
    }
    // IPv6 host prefixes use all three words.
    let (nodes, steps) = of_subnets(15_000, |n| scattered(n, 33 + (n % 96) as u8, true));
    assert!(steps <= 8 && nodes < 3 * 15_000, "{steps}, {nodes}");
}

#[test]
fn rules_for_any_peer_need_no_address_nodes() {
    let all = Rule { protocol: None, ..deny("all", None, None) };
    let rules: Vec<Rule> = (0..1000).map(|port| deny(port, None, Some(port))).chain([all]).collect();
    let compiled = compile(&rules, Direction::In, Limit::DEFAULT);
    // 1002 ranges: the ports are adjacent.
    assert!(compiled.nodes.len() <= 1002 / 7 + 5, "{}", compiled.nodes.len());
    assert!(!compiled.sets[0].roots[1].is_some() && compiled.sets[0].by_group == 0);
}

/// Subnets for any port, and ports for one subnet: a common tree would have a million ranges.
#[test]
fn clauses_that_would_multiply_go_to_several_trees() {
    let subnets = (0..1000).map(|n| Rule { protocol: None, ..deny(n, Some(scattered(n, 24, false)), None) });
    let ports = (0..1000_u16)
        .map(|port| deny(10_000 + u32::from(port), Some(scattered(7, 8, false)), Some(2 * port)));
    let groups =
        (1..1000_u32).map(|n| Rule { peer: Peer::identity(identity(n)), ..deny(20_000 + n, None, Some(80)) });
    let rules: Vec<Rule> = subnets.chain(ports).chain(groups).collect();
    let compiled = compile(&rules, Direction::In, Limit::DEFAULT);
    let roots = compiled.sets[0].roots.iter().filter(|root| root.is_some()).count();
    // One tree for the clauses with groups, one address-first tree for the others.
    assert_eq!((roots, compiled.sets[0].by_group), (2, 1));
    assert!(compiled.nodes.len() < 3000, "{}", compiled.nodes.len());
    let mut loaded = Loaded::new(&compiled);
    let keys = (0..1500_u32).flat_map(|n| [(n, 80), (3 * n, 1000), (n, 1001)]);
    for (n, port) in keys {
        let own = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        let peer = Side::endpoint(scattered(n, 32, false).addr(), (n > 0).then(|| identity(n)), &[]);
        let packet = Packet { protocol: TCP, port: Some(port) };
        let expected = policy::deciding_rule(&rules, Direction::In, own, &peer, packet);
        assert_eq!(loaded.deciding(own, &peer, packet), expected.map(|rule| (rule.id.clone(), rule.action)));
    }
}

/// Nested prefixes for any protocol, for TCP and for ports, with groups: too much for one group-first tree.
#[test]
fn mixed_rules_compile_to_an_address_first_tree() {
    let rules: Vec<Rule> = (0..3000)
        .map(|n| {
            let variant = n / 25;
            let subnet = Some(scattered(n, 8 + (n % 25) as u8, false));
            let group = (variant % 2 == 1).then(|| identity(1 + n % 3));
            let protocol = (variant % 3 != 0).then_some(TCP);
            let port = (variant % 3 == 2).then_some(1000 + n as u16 % 1000);
            let ports = port.map(PortRange::from);
            Rule { peer: Peer::new(group, subnet), protocol, ports, ..deny(n, None, None) }
        })
        .collect();
    let compiled = compile(&rules, Direction::In, Limit::DEFAULT);
    let small = compile(&rules, Direction::In, Limit::COMPACT);
    assert!(compiled.address_first && !small.address_first && small.nodes.len() < rules.len());
    let roots = compiled.sets[0].roots.iter().filter(|root| root.is_some()).count();
    assert_eq!(roots, 1);
    assert!(compiled.nodes.len() < 4 * rules.len(), "{}", compiled.nodes.len());
    let mut loaded = Loaded::new(&compiled);
    for n in 0..1000_u32 {
        let own = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        let group = (n % 4 > 0).then(|| identity(n % 4));
        let peer = Side::endpoint(scattered(3 * n, 32, false).addr(), group, &[]);
        let packet = Packet { protocol: TCP, port: Some(1000 + n as u16) };
        let expected = policy::deciding_rule(&rules, Direction::In, own, &peer, packet);
        assert_eq!(loaded.deciding(own, &peer, packet), expected.map(|rule| (rule.id.clone(), rule.action)));
    }
    // Five nodes for addresses, one for groups, one for ports.
    assert!(loaded.steps <= 7, "{}", loaded.steps);
}

#[test]
fn prefixes_match_only_their_family() {
    let all = |net: &str| deny(net, Some(net.parse().unwrap()), None);
    let packet = Packet { protocol: TCP, port: Some(80) };
    for (net, inside, outside) in [
        ("0.0.0.0/0", ["0.0.0.0", "255.255.255.255"], ["::", "::ffff:1.2.3.4"]),
        ("::/0", ["::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"], ["0.0.0.0", "255.255.255.255"]),
        (
            "ffff:ffff:ffff::/48",
            ["ffff:ffff:ffff::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"],
            ["0.0.0.0", "ffff:ffff:fffe::"],
        ),
    ] {
        let compiled = compile(&[all(net)], Direction::In, Limit::DEFAULT);
        let mut loaded = Loaded::new(&compiled);
        for (ips, found) in [(inside, true), (outside, false)] {
            for ip in ips {
                let ip: IpAddr = ip.parse().unwrap();
                assert_eq!(loaded.deciding(ip, &Side::outside(ip), packet).is_some(), found, "{ip} in {net}");
            }
        }
    }
}

#[test]
fn words_hold_whole_addresses() {
    assert_eq!(word::ADDRESS_BITS.iter().sum::<u32>(), 128);
    assert!(word::ADDRESS_BITS.iter().all(|bits| *bits < 62));
}
