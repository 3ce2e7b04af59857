//! Selection of backends, session affinity, and adoption after a restart.

use aya::maps::{Array, HashMap, Map, MapData};
use contiv_abi::{
    Be16, Domain, Segment, ServiceEntry, ServiceKey,
    maps::{BACKENDS, RING, SERVICES},
};

use super::*;

#[test]
fn a_terminating_backend_keeps_its_connections_and_gets_no_new_ones() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("svc-drain", &[OTHER])?;
    let to = |port, endpoint: Endpoint, at| between(HERE, endpoint).tcp(port, at, ACK);
    rig.becomes(HERE, &to(4000, VIP, 80), &to(4000, OTHER, 8080));
    rig.becomes(
        OTHER,
        &between(OTHER, HERE).tcp(8080, 4000, ACK),
        &answer_of(OTHER, HERE).tcp(80, 4000, ACK),
    );
    rig.set(&[(OTHER, Readiness::Terminating), (FAR, Readiness::Ready)])?;
    rig.becomes(HERE, &to(4000, VIP, 80), &to(4000, OTHER, 8080));
    rig.becomes(
        OTHER,
        &between(OTHER, HERE).tcp(8080, 4000, ACK),
        &answer_of(OTHER, HERE).tcp(80, 4000, ACK),
    );
    for port in 4001..4020 {
        rig.becomes(HERE, &to(port, VIP, 80), &to(port, FAR, 8080));
    }
    rig.set(&[(OTHER, Readiness::Terminating)])?;
    rig.becomes(HERE, &to(4000, VIP, 80), &to(4000, OTHER, 8080));
    assert_eq!(rig.from(HERE, &to(4999, VIP, 80))?.dropped, [DropReason::NoBackend]);
    Ok(())
}

/// Number of connections per backend, for the client ports.
fn spread(rig: &Rig, ports: std::ops::Range<u16>) -> Result<BTreeMap<Ipv4Addr, usize>> {
    let mut counts = BTreeMap::new();
    for port in ports {
        let outcome = rig.from(HERE, &between(HERE, VIP).tcp(port, 80, SYN))?;
        let address: [u8; 4] = outcome.bytes[30..34].try_into()?;
        *counts.entry(Ipv4Addr::from(address)).or_default() += 1;
    }
    Ok(counts)
}

#[test]
fn connections_are_distributed_over_the_backends() -> Result<()> {
    needs!(root());
    let rig = Rig::new("svc-spread", &[OTHER, FAR])?;
    let counts = spread(&rig, 5000..5200)?;
    // For two backends the probability of a false failure is 10^-12.
    assert!(counts.values().all(|count| (50..=150).contains(count)) && counts.len() == 2, "{counts:?}");
    Ok(())
}

#[test]
fn session_affinity_keeps_a_client_with_its_backend() -> Result<()> {
    needs!(root());
    let ready = |endpoint: Endpoint| (endpoint.ip().into(), Readiness::Ready);
    let sticky = |backends: &[_]| Service {
        affinity: Some(Duration::from_secs(600)),
        ..service(VIP.ip().into(), backends)
    };
    let mut rig = Rig::with("svc-sticky", sticky(&[ready(OTHER)]))?;
    assert_eq!(spread(&rig, 5000..5003)?, BTreeMap::from([(OTHER.ip(), 3)]));
    // A further backend does not move the client.
    let object = Object::Service(sticky(&[ready(OTHER), ready(FAR)]));
    assert!(rig.node.apply(&[Op::Set(object)])?.is_empty());
    assert_eq!(spread(&rig, 5010..5050)?, BTreeMap::from([(OTHER.ip(), 40)]));
    // The removal of its backend moves the client; the return of the backend does not.
    for backends in [&[ready(FAR)][..], &[ready(OTHER), ready(FAR)]] {
        assert!(rig.node.apply(&[Op::Set(Object::Service(sticky(backends)))])?.is_empty());
        let base = 6000 + 100 * backends.len() as u16;
        assert_eq!(spread(&rig, base..base + 40)?, BTreeMap::from([(FAR.ip(), 40)]));
    }
    Ok(())
}

/// Twelve remote backends: too many for the entry of a service port.
fn many(node: &mut Node) -> Vec<Endpoint> {
    let n1 = network("n1.t", vxlan(10_001));
    let many: Vec<Endpoint> = (20..32).map(Endpoint).collect();
    for endpoint in &many {
        node.want(Object::Remote(endpoint.remote(&n1, Some(vtep(2)))));
    }
    many
}

#[test]
fn a_large_set_keeps_the_backends_of_its_clients() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("svc-ring", &[])?;
    let all = many(&mut rig.node);
    rig.node.converge()?;
    let set = |rig: &mut Rig, backends: &[Endpoint], affinity| -> Result<()> {
        let ready: Vec<_> =
            backends.iter().map(|endpoint| (endpoint.ip().into(), Readiness::Ready)).collect();
        let object = Object::Service(Service { affinity, ..service(VIP.ip().into(), &ready) });
        rig.node.want(object.clone());
        assert!(rig.node.apply(&[Op::Set(object)])?.is_empty());
        Ok(())
    };
    set(&mut rig, &all, None)?;
    let counts = spread(&rig, 5000..6200)?;
    assert!(counts.len() == 12 && counts.values().all(|count| (40..=180).contains(count)), "{counts:?}");
    // All connections of one client go to one backend, whatever happens to the others.
    let hour = Some(Duration::from_secs(3600));
    set(&mut rig, &all, hour)?;
    let with = spread(&rig, 7000..7003)?;
    assert_eq!(with.len(), 1, "{with:?}");
    let mine = *with.keys().next().unwrap();
    for left in (1..12).rev() {
        let others = all.iter().filter(|endpoint| endpoint.ip() != mine).take(left - 1);
        let rest: Vec<Endpoint> =
            all.iter().filter(|endpoint| endpoint.ip() == mine).chain(others).copied().collect();
        set(&mut rig, &rest, hour)?;
        let base = 7010 + 10 * left as u16;
        assert_eq!(spread(&rig, base..base + 3)?, BTreeMap::from([(mine, 3)]), "of {left}");
    }
    // Until that backend is removed, from a Maglev table or from an entry.
    for size in [10, 5] {
        set(&mut rig, &all, hour)?;
        let mine = *spread(&rig, 8000..8001)?.keys().next().unwrap();
        let rest: Vec<Endpoint> =
            all.iter().filter(|endpoint| endpoint.ip() != mine).take(size).copied().collect();
        set(&mut rig, &rest, hour)?;
        let base = 8100 + 10 * size as u16;
        let other = spread(&rig, base..base + 3)?;
        assert!(other.len() == 1 && !other.contains_key(&mine), "{other:?}");
    }
    Ok(())
}

/// The backend of each client port of a service, by the last byte of its address.
fn chosen(rig: &Rig, vip: IpAddr, ports: std::ops::Range<u16>) -> Result<Vec<u8>> {
    let to = |port| match vip {
        IpAddr::V4(ip) => Packet::eth(VIP.mac(), HERE.mac()).ipv4(HERE.ip(), ip).tcp(port, 80, SYN),
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            Packet::eth([2, 2, a, b, c, d], HERE.mac()).ipv6(HERE.ip6(), ip).tcp(port, 80, SYN)
        }
    };
    let last = if vip.is_ipv4() { 14 + 19 } else { 14 + 39 };
    let client = Target::new(&rig.node, FROM_POD, &rig.first.local.port)?;
    rig.node.ns.run(|| ports.map(|port| Ok(client.give(&to(port).build())?.1[last])).collect())
}

/// A new connection without flow state goes to the same backend before and after a change, unless the change removes this
/// backend, or adds the new one: also where the set outgrows the entry, or its list.
#[test]
fn a_change_of_the_set_moves_only_connections_of_backends_that_come_or_go() -> Result<()> {
    needs!(root());
    const PORTS: std::ops::Range<u16> = 5000..5200;
    let mut rig = Rig::new("svc-moves", &[])?;
    let n1 = network("n1.t", vxlan(10_001));
    let all: Vec<Endpoint> = (100..170).map(Endpoint).collect();
    for endpoint in &all {
        rig.node.want(Object::Remote(endpoint.remote(&n1, Some(vtep(2)))));
    }
    rig.node.converge()?;
    let v4 = |endpoint: &Endpoint| IpAddr::from(endpoint.ip());
    let v6 = |endpoint: &Endpoint| IpAddr::from(endpoint.ip6());
    for ip6 in [false, true] {
        let address = |endpoint: &Endpoint| if ip6 { v6(endpoint) } else { v4(endpoint) };
        let vip = address(&VIP);
        let mut before: Vec<u8> = vec![];
        let mut moved = 0;
        // From 70 members with a ring, to 60 in a list, to 1 in the entry, and back.
        let sizes = [70, 65, 64, 60, 9, 8, 7, 2, 1, 2, 8, 9, 64, 65, 70];
        for (size, previous) in sizes.into_iter().zip([70].into_iter().chain(sizes)) {
            let ready: Vec<_> =
                all[..size].iter().map(|endpoint| (address(endpoint), Readiness::Ready)).collect();
            let object = Object::Service(service(vip, &ready));
            assert!(rig.node.apply(&[Op::Set(object)])?.is_empty());
            let now = chosen(&rig, vip, PORTS)?;
            let stays = |backend: u8| usize::from(backend - 100) < size.min(previous);
            for (before, now) in before.iter().zip(&now).filter(|(before, now)| before != now) {
                assert!(!stays(*before) || !stays(*now), "{previous} to {size}: {before} to {now}");
                moved += 1;
            }
            before = now;
        }
        assert!(moved > 200, "{vip}: {moved}");
    }
    Ok(())
}

#[test]
fn without_room_for_a_ring_the_choice_is_the_same() -> Result<()> {
    needs!(root());
    const SIZE: usize = 70;
    let mut rig = Rig::new("svc-no-room", &[])?;
    let n1 = network("n1.t", vxlan(10_001));
    let all: Vec<Endpoint> = (100..100 + SIZE as u8).map(Endpoint).collect();
    for endpoint in &all {
        rig.node.want(Object::Remote(endpoint.remote(&n1, Some(vtep(2)))));
    }
    rig.node.converge()?;
    let ready: Vec<_> = all.iter().map(|endpoint| (endpoint.ip().into(), Readiness::Ready)).collect();
    let chosen_of = |rig: &Rig| chosen(rig, VIP.ip().into(), 5000..5200);
    let web = Object::Service(service(VIP.ip().into(), &ready));
    assert!(rig.node.apply(&[Op::Set(web.clone())])?.is_empty());
    let with_ring = chosen_of(&rig)?;
    assert!(rig.node.apply(&[Op::Delete(web.id())])?.is_empty());
    // Sets of addresses that no endpoint has, until no further ring is written.
    let others = |count: u32| -> Vec<Op> {
        let ip = |number: u32| IpAddr::from(Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 2, 0, 0)) + number));
        let set = |number: u32| {
            let ready: Vec<_> = (0..SIZE as u32).map(|n| (ip(number * 256 + n), Readiness::Ready)).collect();
            Service { id: format!("other{number}:t").into(), ..service(ip(number * 256 + 255), &ready) }
        };
        (0..count).map(|number| Op::Set(Object::Service(set(number)))).collect()
    };
    let rings = RING_CAPACITY as u32 / RingBlock::RING;
    assert!(rig.node.apply(&others(rings))?.is_empty());
    let used = |rig: &Rig| rig.node.datapath.inspect()["entries"]["ctv_ring"].as_u64().unwrap();
    let before = used(&rig);
    assert!(rig.node.apply(&[Op::Set(web)])?.is_empty());
    assert!(used(&rig) < before + u64::from(RingBlock::RING), "a ring was written");
    assert_eq!(chosen_of(&rig)?, with_ring);
    Ok(())
}

#[test]
fn sets_of_all_sizes_are_adopted_after_a_restart() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("svc-forms", &[OTHER])?;
    let all = many(&mut rig.node);
    let sets: [Vec<IpAddr>; 5] = [
        vec![],
        all[..8].iter().map(|endpoint| endpoint.ip().into()).collect(),
        all[..9].iter().map(|endpoint| endpoint.ip().into()).collect(),
        all[..8].iter().map(|endpoint| endpoint.ip6().into()).collect(),
        all.iter().map(|endpoint| endpoint.ip6().into()).collect(),
    ];
    for (place, set) in sets.iter().enumerate() {
        let ready: Vec<_> = set.iter().map(|ip| (*ip, Readiness::Ready)).collect();
        let endpoint = Endpoint(200 + place as u8);
        let vip = if set.iter().any(IpAddr::is_ipv6) { endpoint.ip6().into() } else { endpoint.ip().into() };
        let service = Service { id: format!("s{place}:t").into(), ..service(vip, &ready) };
        // Another service with the same backends.
        let other = Service { id: format!("also{place}:t").into(), vip: next(vip), ..service.clone() };
        rig.node.want(Object::Service(service)).want(Object::Service(other));
    }
    rig.node.converge()?;
    rig.node.restart();
    let observed = rig.node.observe()?;
    assert_eq!((observed.in_sync.len(), observed.orphans), (rig.node.desired.len(), 0));
    assert_eq!(rig.node.datapath.writes(), 0);
    // The adopted state is correct: everything can be removed, and all resources are free then.
    let services: Vec<ObjectId> = rig
        .node
        .desired
        .iter()
        .filter(|(_, o)| matches!(o, Object::Service(_)))
        .map(|(id, _)| id.clone())
        .collect();
    for id in services {
        rig.node.desired.remove(&id);
        assert!(rig.node.apply(&[Op::Delete(id)])?.is_empty());
    }
    let entries = rig.node.datapath.inspect()["entries"].clone();
    assert_eq!((&entries["ctv_svc"], rig.node.observe()?.orphans), (&0.into(), 0), "{entries}");
    rig.node.restart();
    rig.node.observe()?;
    let entries = rig.node.datapath.inspect()["entries"].clone();
    assert_eq!((&entries["ctv_ring"], &entries["ctv_backends"]), (&0.into(), &0.into()), "{entries}");
    Ok(())
}

/// A list whose numbers contradict another list, as after a torn write, is written again, and its old blocks are free.
#[test]
fn a_list_that_is_not_adopted_reserves_no_blocks() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("svc-half", &[])?;
    let all = many(&mut rig.node);
    for (number, count) in [(1, 12), (2, 9)] {
        let ready: Vec<_> =
            all[..count].iter().map(|endpoint| (endpoint.ip6().into(), Readiness::Ready)).collect();
        let vip = Endpoint(200 + number).ip6().into();
        let service = Service { id: format!("s{number}:t").into(), ..service(vip, &ready) };
        rig.node.want(Object::Service(service));
    }
    rig.node.converge()?;
    let map = |name: &str| MapData::from_pin(rig.node.datapath.maps_directory().join(name));
    let services: HashMap<MapData, ServiceKey, ServiceEntry> = Map::HashMap(map(SERVICES)?).try_into()?;
    let mut lists: Array<MapData, RingBlock> = Map::Array(map(RING)?).try_into()?;
    let mut backends: Array<MapData, contiv_abi::Backend> = Map::Array(map(BACKENDS)?).try_into()?;
    let domain = Domain::of_segment(Segment::vxlan(10_001));
    let key = ServiceKey::new(domain, IpAddr::from(Endpoint(202).ip6()).into(), Be16::new(80), 6);
    let (first, len) = services.get(&key, 0)?.members[0].as_list();
    // The first member gets another number, with the same backend behind it, and so comes last.
    const ALIAS: u32 = 1000;
    let blocks = [0, 1].map(|n| first / RingBlock::LEN as u32 + n);
    let mut words = [lists.get(&blocks[0], 0)?.words, lists.get(&blocks[1], 0)?.words].concat();
    backends.set(ALIAS, backends.get(&words[1], 0)?, 0)?;
    words[1] = ALIAS;
    words[..2 * len as usize].rotate_left(2);
    for (block, words) in blocks.into_iter().zip(words.chunks(RingBlock::LEN)) {
        lists.set(block, RingBlock { words: words.try_into()? }, 0)?;
    }
    rig.node.restart();
    let observed = rig.node.observe()?;
    assert!(!observed.in_sync.contains(&ObjectId::Service("s2:t".into())));
    // The list of twelve members has two blocks.
    assert_eq!(rig.node.datapath.inspect()["entries"]["ctv_ring"], 2);
    rig.node.converge()
}

fn next(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => Ipv4Addr::from(u32::from(ip) + 16).into(),
        IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip) + 16).into(),
    }
}

#[test]
fn a_restart_adopts_services() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("svc-restart", &[OTHER, FAR])?;
    let before = spread(&rig, 5000..5050)?;
    rig.node.restart();
    let observed = rig.node.observe()?;
    assert_eq!((observed.in_sync.len(), observed.orphans), (rig.node.desired.len(), 0));
    let ops: Vec<Op> = rig.node.desired.iter().map(|(_, object)| Op::Set(object.clone())).collect();
    assert!(rig.node.apply(&ops)?.is_empty());
    assert_eq!(rig.node.datapath.writes(), 0);
    assert_eq!(spread(&rig, 5000..5050)?, before);
    // The service that is no longer desired is an orphan and is removed.
    rig.node.desired.remove(&ObjectId::Service("web:t".into()));
    rig.node.restart();
    let observed = rig.node.observe()?;
    assert_eq!(observed.orphans, 3);
    rig.node.converge()?;
    let inspected = rig.node.datapath.inspect();
    assert_eq!(inspected["entries"]["ctv_svc"], 0);
    Ok(())
}

#[test]
fn a_backend_on_another_network_is_refused() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("svc-where", &[OTHER])?;
    let mut service = service(VIP.ip().into(), &[(FAR.ip().into(), Readiness::Ready)]);
    service.backends[0].encap = Some(vxlan(10_002));
    let failed = rig.node.apply(&[Op::Set(Object::Service(service))])?;
    let text = format!("{:#}", anyhow::Error::from(failed.into_iter().next().unwrap().error));
    assert!(text.contains("the backend 10.1.1.3 is not on the network of the service"), "{text}");
    Ok(())
}
