//! Selection of backends, session affinity, and adoption after a restart.

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
