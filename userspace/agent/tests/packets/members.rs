//! The lists of the peers that have each network, after a crash in the middle of a change.

use std::{collections::BTreeSet, net::Ipv4Addr};

use anyhow::Result;
use aya::maps::{HashMap, Map, MapData};
use contiv_abi::{
    FloodKey, Segment, SegmentEntry, Vtep,
    maps::{MEMBERS, SEGMENTS},
};
use netplugin::datapath::Datapath as _;
use testkit::needs;

use crate::node::{Endpoint, Node, network, vtep, vxlan};

const SEGMENT: Segment = Segment::vxlan(10_001);

struct Maps {
    segments: HashMap<MapData, Segment, SegmentEntry>,
    members: HashMap<MapData, FloodKey, Vtep>,
}

impl Maps {
    fn open(node: &Node) -> Result<Maps> {
        let map = |name: &str| MapData::from_pin(node.datapath.maps_directory().join(name));
        Ok(Maps {
            segments: Map::HashMap(map(SEGMENTS)?).try_into()?,
            members: Map::HashMap(map(MEMBERS)?).try_into()?,
        })
    }

    fn put(&mut self, slot: u32, vtep: Vtep) -> Result<()> {
        Ok(self.members.insert(FloodKey { segment: SEGMENT, slot }, vtep, 0)?)
    }

    fn remove(&mut self, slot: u32) -> Result<()> {
        Ok(self.members.remove(&FloodKey { segment: SEGMENT, slot })?)
    }

    fn set_len(&mut self, members: u32) -> Result<()> {
        let entry = self.segments.get(&SEGMENT, 0)?;
        Ok(self.segments.insert(SEGMENT, SegmentEntry { members, ..entry }, 0)?)
    }

    /// The peers to which the programs send copies.
    fn listed(&self) -> Result<Vec<Vtep>> {
        let entry = self.segments.get(&SEGMENT, 0)?;
        let member = |slot| Ok(self.members.get(&FloodKey { segment: SEGMENT, slot }, 0)?);
        (0..entry.members).map(member).collect()
    }
}

fn address(vtep: Ipv4Addr) -> Vtep {
    Vtep::v4(vtep.octets())
}

type Crash = fn(&mut Maps) -> Result<()>;

#[test]
fn a_crash_in_the_middle_of_a_change_of_the_members_is_repaired() -> Result<()> {
    needs!(root());
    let mut node = Node::fresh("members", |_| {})?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1).want_peer(2).want_peer(3).want_peer(4);
    let _pod = node.pod(&n1, Endpoint(1))?;
    node.converge()?;
    let desired: BTreeSet<Vtep> = [2, 3, 4].map(|n| address(vtep(n))).into();
    let crashes: [(&str, Crash); 6] = [
        ("insertion: the slot is written", |maps| maps.put(3, address(vtep(9)))),
        ("insertion of a peer that is gone at the restart", |maps| {
            maps.put(3, address(vtep(9)))?;
            maps.set_len(4)
        }),
        ("removal: the last member is in two slots", |maps| {
            let last = *maps.listed()?.last().unwrap_or(&Vtep::default());
            maps.put(0, last)
        }),
        ("removal: the last slot is not cleared", |maps| maps.set_len(2)),
        ("a slot without an entry", |maps| maps.remove(1)),
        ("a length that is lost", |maps| maps.set_len(0)),
    ];
    for (name, crash) in crashes {
        let mut maps = Maps::open(&node)?;
        crash(&mut maps)?;
        node.restart();
        let observed = node.observe()?;
        assert!(observed.orphans > 0 || observed.in_sync.len() < node.desired.len(), "{name}: not seen");
        node.converge()?;
        let listed = maps.listed()?;
        assert_eq!((listed.len(), listed.into_iter().collect()), (3, desired.clone()), "{name}");
        assert_eq!(node.datapath.inspect()["entries"][MEMBERS], 3, "{name}");
    }
    node.restart();
    assert_eq!(node.observe()?.orphans, 0);
    assert_eq!(node.datapath.writes(), 0);
    Ok(())
}
