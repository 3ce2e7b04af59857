//! The flow table of a node, as the programs have it.

use std::path::Path;

use anyhow::{Context as _, Result};
use aya::{
    Pod,
    maps::{Array, Map, MapData},
};
use contiv_abi::{
    Flow, FlowBucket,
    maps::{FLOW_BITMAP, FLOW_INDEX, FLOWS, NODE},
};

use crate::node::Node;

pub(crate) fn open<T: Pod>(maps: &Path, name: &str) -> Result<Array<MapData, T>> {
    let data = MapData::from_pin(maps.join(name)).with_context(|| format!("open {name}"))?;
    Ok(Map::from_map_data(data)?.try_into()?)
}

fn records(maps: &Path) -> Result<Vec<(u32, Flow)>> {
    let (records, bitmap) = (open::<Flow>(maps, FLOWS)?, open::<u64>(maps, FLOW_BITMAP)?);
    let mut found = vec![];
    for word in 0..bitmap.len() {
        let bits = bitmap.get(&word, 0)?;
        for number in (0..64).filter(|bit| bits >> bit & 1 != 0).map(|bit| word * 64 + bit) {
            let flow = records.get(&number, 0)?;
            found.extend(flow.head.exists().then_some((number, flow)));
        }
    }
    Ok(found)
}

/// All flows.
pub(crate) fn flows(node: &Node) -> Result<Vec<Flow>> {
    Ok(records(&node.datapath.maps_directory())?.into_iter().map(|(_, flow)| flow).collect())
}

/// Flows with a reply.
pub(crate) fn replied(node: &Node) -> Result<Vec<Flow>> {
    Ok(flows(node)?.into_iter().filter(Flow::is_replied).collect())
}

/// Changes the flows.
pub(crate) fn change(node: &Node, change: impl Fn(&mut Flow)) -> Result<()> {
    let maps = node.datapath.maps_directory();
    let mut map = open::<Flow>(&maps, FLOWS)?;
    for (number, mut flow) in records(&maps)? {
        change(&mut flow);
        map.set(number, flow, 0)?;
    }
    Ok(())
}

/// An hour, in seconds.
pub(crate) const HOUR: u32 = 3600;

/// Makes all flows as if a packet of each came in an hour: until then none is idle, however slow the machine is.
pub(crate) fn keep_fresh(node: &Node) -> Result<()> {
    change(node, |flow| {
        for half in &mut flow.halves {
            half.seen = half.seen.wrapping_add(HOUR);
        }
    })
}

/// Sets the phase of the programs, as while the flows of another table are imported.
pub(crate) fn set_phase(node: &Node, phase: u32) -> Result<()> {
    let mut map = open::<contiv_abi::Node>(&node.datapath.maps_directory(), NODE)?;
    let settings = map.get(&0, 0)?;
    Ok(map.set(0, contiv_abi::Node { phase, ..settings }, 0)?)
}

/// Number of slots of the index that are in use.
pub(crate) fn slots(node: &Node) -> Result<usize> {
    let index = open::<FlowBucket>(&node.datapath.maps_directory(), FLOW_INDEX)?;
    let mut used = 0;
    for number in 0..index.len() {
        used += index.get(&number, 0)?.used() as usize;
    }
    Ok(used)
}

/// Removes the slots of the original direction: as if the CPUs that insert the flows were interrupted before.
pub(crate) fn remove_original_slots(node: &Node) -> Result<()> {
    let mut index = open::<FlowBucket>(&node.datapath.maps_directory(), FLOW_INDEX)?;
    for number in 0..index.len() {
        let mut bucket = index.get(&number, 0)?;
        // The lowest bit of an entry is set for replies.
        for slot in bucket.slots.iter_mut().filter(|slot| **slot & 1 == 0) {
            *slot = 0;
        }
        index.set(number, bucket, 0)?;
    }
    Ok(())
}

/// Makes all flows as old as if no packet had come for days: they are not found any more.
pub(crate) fn expire(node: &Node) -> Result<()> {
    change(node, |flow| {
        for half in &mut flow.halves {
            half.seen = half.seen.wrapping_sub(1 << 20);
        }
    })
}
