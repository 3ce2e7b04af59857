//! However a state was reached, it is the one that its objects ask for.

use contiv_model::{global::ArpMode, mac::Mac, name::EndpointId, tag::Encap};
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::datapath::{Local, Network, Owner, Peer, Remote};

fn network_id(n: u8) -> NetworkId {
    NetworkId::new(&format!("net{n}").parse().unwrap(), &"blue".parse().unwrap())
}

/// Networks 0 and 1 are VXLANs, the others VLANs; the variant is for networks that were made anew.
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

fn local(network: u8, n: u8, variant: bool) -> Object {
    let (id, mac, ip) = endpoint(network, n);
    let port = format!("vvport{network}{n}");
    Object::Local(Local {
        id,
        network: network_id(network),
        encap: encap(network, variant),
        port,
        owner: Owner::Pod,
        mac,
        ip,
        ip6: None,
        group: None,
    })
}

fn object() -> impl Strategy<Value = Object> {
    prop_oneof![
        (0u8..3).prop_map(|n| Object::Peer(Peer { vtep: vtep(n), port: 4789 })),
        (0u8..4, any::<bool>(), any::<bool>()).prop_map(|(n, variant, flood)| {
            let arp = if flood { ArpMode::Flood } else { ArpMode::Proxy };
            Object::Network(Network { id: network_id(n), encap: encap(n, variant), arp })
        }),
        (0u8..4, 0u8..4, any::<bool>()).prop_map(|(network, n, variant)| local(network, n, variant)),
        (0u8..4, 4u8..8, 0u8..3, any::<bool>()).prop_map(|(network, n, node, variant)| {
            let (id, mac, ip) = endpoint(network, n);
            let encap = encap(network, variant);
            let vtep = matches!(encap, Encap::Vxlan { .. }).then(|| vtep(node));
            Object::Remote(Remote {
                id,
                network: network_id(network),
                encap,
                vtep,
                mac,
                ip,
                ip6: None,
                group: None,
            })
        }),
    ]
}

/// Every port has a number of its own, fixed by its object.
fn port_of(object: &Object) -> Option<Port> {
    let number = match object {
        Object::Peer(peer) => match peer.vtep {
            IpAddr::V4(ip) => 200 + u32::from(ip.octets()[3]),
            IpAddr::V6(_) => return None,
        },
        Object::Local(local) => 10 * u32::from(local.ip.octets()[1]) + u32::from(local.ip.octets()[3]) + 1,
        Object::Network(_) | Object::Group(_) | Object::Remote(_) | Object::Service(_) => return None,
    };
    Some(Port { name: format!("port{number}"), number })
}

fn sorted(tables: &Tables) -> (Vec<String>, Vec<String>) {
    let empty = Tables::default();
    let mut flows: Vec<_> = tables.beyond(&empty).map(|flow| format!("{flow:#}")).collect();
    flows.sort();
    (flows, tables.groups().values().map(ToString::to_string).collect())
}

#[derive(Clone, Debug)]
enum Step {
    Set(Object),
    Delete(Object),
    /// What was changed since the last of these, or of `Keep`, is refused by the switch.
    Undo,
    Keep,
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => object().prop_map(Step::Set),
        3 => object().prop_map(Step::Delete),
        1 => Just(Step::Undo),
        2 => Just(Step::Keep),
        1 => Just(Step::Sweep),
    ]
}

/// What is held, as desired, with the ports.
fn held(state: &State) -> (Desired, Ports) {
    let all: Vec<_> = state.books.ids().filter_map(|id| state.books.get(id)).cloned().collect();
    let ports = all.iter().filter_map(|held| Some((held.object.id(), held.port.clone()?))).collect();
    (all.into_iter().map(|held| held.object).collect(), ports)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changes_lead_to_what_is_expected(rounds in vec(vec(step(), 1..8), 1..8)) {
        let mut state = State::default();
        let mut first = Batch::on(&mut state);
        first.scaffold();
        first.finish();
        for round in rounds {
            let before = Side::BOTH.map(|side| sorted(state.tables.get(side)));
            let mut batch = Batch::on(&mut state);
            let mut refused = false;
            for step in round {
                match step {
                    // A node without a tunnel is for the caller to hear of; nothing has changed then.
                    Step::Set(object) => drop(batch.set(object.clone(), port_of(&object))),
                    Step::Delete(object) => batch.delete(&object.id()),
                    Step::Sweep => batch.sweep(),
                    Step::Undo => refused = true,
                    Step::Keep => drop(batch.changes()),
                }
            }
            if refused {
                let _changes = batch.changes();
                batch.undo(&[]);
                prop_assert_eq!(&before, &Side::BOTH.map(|side| sorted(state.tables.get(side))));
            } else {
                batch.finish();
            }
            let (desired, ports) = held(&state);
            // A peer that went leaves remote endpoints behind that are not reached: these are not expected at all.
            let lonely = desired.iter().any(|(_, object)| matches!(object,
                Object::Remote(Remote { vtep: Some(vtep), .. }) if desired.get(&ObjectId::Peer(*vtep)).is_none()));
            let expected = State::expected(&desired, &ports, Setting::default());
            if !lonely {
                for side in Side::BOTH {
                    prop_assert_eq!(sorted(state.tables.get(side)), sorted(expected.tables.get(side)));
                }
                let verdict = compare(&expected, &state.tables, &desired);
                prop_assert!(verdict.wrong.is_empty() && verdict.strays == 0 && !verdict.scaffold, "{:?}", verdict);
            }
        }
    }
}

#[test]
fn very_many_pods_need_several_groups() {
    let mut state = State::default();
    let mut batch = Batch::on(&mut state);
    batch.scaffold();
    let network = Network { id: network_id(0), encap: encap(0, false), arp: ArpMode::Proxy };
    batch.set(Object::Network(network), None).unwrap();
    let pods: Vec<_> = (0..2 * BUCKETS as u32 + 1)
        .map(|n| {
            let Object::Local(mut pod) = local(0, 0, false) else { unreachable!() };
            pod.id = EndpointId::new(&network_id(0), &format!("pod{n}"));
            pod.ip = (0x0a00_0000 + n).into();
            pod.mac = Mac::of_endpoint(pod.ip);
            pod.port = format!("vvport{n}");
            let port = Port { name: pod.port.clone(), number: n + 1 };
            (Object::Local(pod), port)
        })
        .collect();
    for (pod, port) in &pods {
        batch.set(pod.clone(), Some(port.clone())).unwrap();
    }
    let changes = batch.changes();
    batch.finish();
    for change in &changes.vxlan {
        if let Change::Group(change) = change {
            openflow_rs::Message::new(1, openflow_rs::Body::GroupMod(change.clone())).to_bytes().unwrap();
        }
    }
    assert_eq!(state.tables.vxlan.groups().len(), 4);
    let mut batch = Batch::on(&mut state);
    pods.iter().skip(1).for_each(|(pod, _)| batch.delete(&pod.id()));
    batch.finish();
    assert_eq!(state.tables.vxlan.groups().keys().copied().collect::<Vec<_>>(), [PEERS, 2]);
}
