//! Copies of the entries of services, where connections find them by one access to memory.

use aya::maps::{Array, HashMap, Map, MapData};
use contiv_abi::{
    Be16, Domain, Segment, ServiceEntry, ServiceKey, ServiceSlot, TCP,
    maps::{SERVICE_SLOTS, SERVICES},
};

use super::*;

/// The capacity of the node, and so many that some find their slots taken.
const PORTS: u16 = 64;

/// A service with these ports, and a target port for each.
fn with_ports(ports: impl Iterator<Item = u16>) -> Service {
    let port = |port: u16| format!("{port}:{}:TCP", target_of(port)).parse::<Port>().unwrap();
    let backends = [(OTHER.ip().into(), Readiness::Ready)];
    Service { ports: ports.map(port).collect(), ..service(VIP.ip().into(), &backends) }
}

fn target_of(port: u16) -> u16 {
    10_000 + port
}

fn rig(label: &str) -> Result<Rig> {
    Rig::with_options(label, with_ports(1..=PORTS), |options| options.sizes.services = PORTS.into())
}

fn key(port: u16) -> ServiceKey {
    let domain = Domain::of_segment(Segment::vxlan(10_001));
    ServiceKey::new(domain, IpAddr::from(VIP.ip()).into(), Be16::new(port), TCP)
}

fn slots(rig: &Rig) -> Result<Array<MapData, ServiceSlot>> {
    let map = MapData::from_pin(rig.node.datapath.maps_directory().join(SERVICE_SLOTS))?;
    Ok(Map::Array(map).try_into()?)
}

/// Index of the slot with the copy of a port's entry.
fn slot_of(slots: &Array<MapData, ServiceSlot>, port: u16) -> Option<u32> {
    let preferred = key(port).slot(slots.len());
    let mut both = [preferred, ServiceSlot::alternate(preferred)].into_iter();
    both.find(|index| slots.get(index, 0).unwrap().key == key(port))
}

/// Checks the slots against the entries; returns the numbers of entries and of copies.
fn check(rig: &Rig) -> Result<[usize; 2]> {
    let map = MapData::from_pin(rig.node.datapath.maps_directory().join(SERVICES))?;
    let entries: HashMap<MapData, ServiceKey, ServiceEntry> = Map::HashMap(map).try_into()?;
    let entries: BTreeMap<ServiceKey, ServiceEntry> = entries.iter().collect::<Result<_, _>>()?;
    let slots = slots(rig)?;
    assert_eq!(slots.len(), ServiceSlot::count(PORTS.into()));
    let slots: Vec<ServiceSlot> =
        (0..slots.len()).map(|index| slots.get(&index, 0)).collect::<Result<_, _>>()?;
    let at = |index: u32| slots[index as usize];
    let (mut copies, mut displaced) = (0, vec![0; slots.len()]);
    for (key, entry) in &entries {
        let preferred = key.slot(slots.len() as u32);
        let both = [preferred, ServiceSlot::alternate(preferred)];
        let own: Vec<ServiceSlot> = both.map(at).into_iter().filter(|slot| slot.key == *key).collect();
        displaced[preferred as usize] += u32::from(at(preferred).key != *key);
        let [slot] = own[..] else {
            assert!(own.is_empty() && both.iter().all(|index| at(*index).key.protocol != 0), "{key:?}");
            continue;
        };
        assert_eq!(slot.entry, ServiceEntry { version: slot.entry.version, ..*entry });
        assert_eq!(slot.entry.version % 2, 0);
        copies += 1;
    }
    assert_eq!(slots.iter().map(|slot| slot.displaced).collect::<Vec<u32>>(), displaced);
    assert_eq!(slots.iter().filter(|slot| slot.key.protocol != 0).count(), copies);
    Ok([entries.len(), copies])
}

#[track_caller]
fn is_translated(rig: &Rig, source_port: u16, port: u16) {
    rig.becomes(
        HERE,
        &between(HERE, VIP).tcp(source_port, port, SYN),
        &between(HERE, OTHER).tcp(source_port, target_of(port), SYN),
    );
}

#[test]
fn ports_are_found_with_a_copy_and_without() -> Result<()> {
    needs!(root());
    let mut rig = rig("slots-shared")?;
    let [entries, copies] = check(&rig)?;
    assert!(entries == 64 && copies < 64, "{copies} copies");
    (1..=PORTS).for_each(|port| is_translated(&rig, 4000, port));
    // Each second port is removed, and comes back.
    rig.node.want(Object::Service(with_ports((1..=PORTS).step_by(2))));
    rig.node.converge()?;
    let [entries, fewer] = check(&rig)?;
    assert!(entries == 32 && copies - fewer <= 32, "{fewer} copies");
    for port in 1..=PORTS {
        if port % 2 == 1 {
            is_translated(&rig, 4001, port);
        } else {
            let refused = rig.from(HERE, &between(HERE, VIP).tcp(4001, port, SYN))?;
            assert_eq!(refused.dropped, [DropReason::NoService], "port {port}");
        }
    }
    rig.node.want(Object::Service(with_ports(1..=PORTS)));
    rig.node.converge()?;
    assert_eq!(check(&rig)?[0], 64);
    (1..=PORTS).for_each(|port| is_translated(&rig, 4002, port));
    rig.node.restart();
    rig.node.observe()?;
    assert_eq!(rig.node.datapath.writes(), 0);
    check(&rig)?;
    (1..=PORTS).for_each(|port| is_translated(&rig, 4003, port));
    rig.node.want(Object::Service(with_ports(std::iter::empty())));
    rig.node.converge()?;
    assert_eq!(check(&rig)?, [0, 0]);
    Ok(())
}

/// What an agent leaves that ends during a write, or before it.
#[test]
fn copies_are_repaired_after_a_restart() -> Result<()> {
    needs!(root());
    let mut rig = rig("slots-repair")?;
    let before = check(&rig)?;
    let mut slots = slots(&rig)?;
    let ports: Vec<u16> = (1..=PORTS).filter(|port| slot_of(&slots, *port).is_some()).collect();
    let [old, torn, absent] = ports[..3] else { unreachable!() };
    let mut change = |port, change: &dyn Fn(&mut ServiceSlot)| -> Result<()> {
        let index = slot_of(&slots, port).context("the port has a copy")?;
        let mut slot = slots.get(&index, 0)?;
        change(&mut slot);
        Ok(slots.set(index, slot, 0)?)
    };
    // A connection uses the copy,
    change(old, &|slot| slot.entry.backends = 0)?;
    assert_eq!(rig.from(HERE, &between(HERE, VIP).tcp(4000, old, SYN))?.dropped, [DropReason::NoBackend]);
    // unless that is being written.
    change(torn, &|slot| (slot.entry.backends, slot.entry.version) = (0, slot.entry.version + 1))?;
    is_translated(&rig, 4000, torn);
    change(absent, &|slot| slot.key = key(PORTS + 1))?;
    rig.node.restart();
    rig.node.converge()?;
    assert_eq!(check(&rig)?, before);
    (1..=PORTS).for_each(|port| is_translated(&rig, 4001, port));
    Ok(())
}
