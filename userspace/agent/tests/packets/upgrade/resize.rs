//! Flow tables of another size.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::Result;
use aya::maps::MapData;
use contiv_abi::{
    ABI_VERSION, Flow, Phase,
    maps::{FLOW_BITMAP, FLOWS, FROM_POD, NODE},
};
use netplugin::datapath::{Datapath as _, ebpf::Options};
use testkit::{needs, wait_until};

use super::{ACK, CONNECTIONS, HERE, OTHER, Rig, SYN, SYN_ACK, between, node_phase, passes};
use crate::{
    flow_table::{expire, flows, open, set_phase},
    node::Node,
    run::{Code, Target},
};

fn capacity(rig: &Rig) -> Result<u32> {
    Ok(open::<Flow>(&rig.node.datapath.maps_directory(), FLOWS)?.len())
}

/// Directory of the table that is being replaced.
fn resized(rig: &Rig) -> PathBuf {
    rig.node.bpf_root().join(format!("v{ABI_VERSION}/node/resized"))
}

#[test]
fn the_flow_table_grows_with_its_flows() -> Result<()> {
    needs!(root());
    for mode in [|_: &mut Options| {}, Node::clsact] {
        let mut rig = Rig::with("up-grow", |options| {
            options.flows = 1024;
            mode(options);
        })?;
        CONNECTIONS.iter().for_each(|connection| passes(&rig, (connection.there)(SYN)));
        for size in [4096, 1024, 8192] {
            rig.node.options.flows = size;
            rig.node.restart();
            rig.node.converge()?;
            assert_eq!(rig.node.datapath.warnings(), Vec::<String>::new());
            assert_eq!(capacity(&rig)?, size);
            assert_eq!(flows(&rig.node)?.len(), CONNECTIONS.len());
            CONNECTIONS.iter().for_each(|connection| passes(&rig, (connection.back)(SYN_ACK)));
            CONNECTIONS.iter().for_each(|connection| passes(&rig, (connection.there)(ACK)));
            // Replaced in every place where it was attached.
            assert_eq!(node_phase(&rig)?, Phase::RUNNING);
            assert!(!resized(&rig).exists());
            rig.node.restart();
            rig.node.observe()?;
            assert_eq!(rig.node.datapath.writes(), 0);
        }
        assert_eq!(rig.event("made"), 3);
    }
    Ok(())
}

#[test]
fn the_flow_table_shrinks_when_its_flows_fit() -> Result<()> {
    needs!(root());
    let mut rig = Rig::with("up-shrink", |options| options.flows = 256)?;
    for port in 0..50 {
        rig.from(HERE, &between(HERE, OTHER).udp(1000 + port, 6))?;
    }
    rig.node.options.flows = 64;
    rig.node.restart();
    rig.node.observe()?;
    assert_eq!(capacity(&rig)?, 256);
    let warning = rig.node.datapath.warnings().concat();
    let expected =
        "connections: capacity 256 instead of 64 (--conntrack-max) until the flows in the map ctv_flows fit";
    assert!(warning.starts_with(expected) && warning.contains("netplugin cleanup"), "{warning}");
    assert_eq!(rig.node.datapath.writes(), 0);
    expire(&rig.node)?;
    wait_until(Duration::from_secs(10), "the timer", || Ok((flows(&rig.node)?.len() < 48).then_some(())))?;
    // The agent detects it with the next `observe`, without a restart.
    rig.node.converge()?;
    assert_eq!((capacity(&rig)?, rig.node.datapath.warnings()), (64, vec![]));
    Ok(())
}

/// The process ended while it removed the maps of the old table.
#[test]
fn a_table_whose_import_has_ended_is_kept() -> Result<()> {
    needs!(root());
    let mut rig = Rig::with("up-removed", |options| options.flows = 1024)?;
    let old = MapData::from_pin(rig.node.datapath.maps_directory().join(FLOW_BITMAP))?;
    rig.node.options.flows = 4096;
    drop(rig.node.restart());
    rig.node.converge()?;
    CONNECTIONS.iter().for_each(|connection| passes(&rig, (connection.there)(SYN)));
    let maps = resized(&rig).join("maps");
    fs::create_dir_all(&maps)?;
    old.pin(maps.join(FLOW_BITMAP))?;
    drop(rig.node.restart());
    rig.node.converge()?;
    assert_eq!((capacity(&rig)?, flows(&rig.node)?.len()), (4096, CONNECTIONS.len()));
    CONNECTIONS.iter().for_each(|connection| passes(&rig, (connection.back)(SYN_ACK)));
    assert!(!resized(&rig).exists());
    Ok(())
}

/// Another datapath forwards.
#[test]
fn programs_that_stand_by_do_so_with_another_flow_table() -> Result<()> {
    needs!(root());
    for mode in [|_: &mut Options| {}, Node::clsact] {
        let mut rig = Rig::with("up-passive", |options| {
            options.flows = 1024;
            mode(options);
        })?;
        set_phase(&rig.node, Phase::RETIRED)?;
        rig.node.options.flows = 4096;
        drop(rig.node.restart());
        rig.node.observe()?;
        assert_eq!((capacity(&rig)?, node_phase(&rig)?), (4096, Phase::RETIRED));
        let target = Target::new(&rig.node, FROM_POD, &rig.client.local.port)?;
        let frame = between(HERE, OTHER).udp(1, 2).build();
        assert_eq!(rig.node.ns.run(|| target.give(&frame))?.0, Code::Next);
    }
    Ok(())
}

/// The programs that are still attached begin flows again until the next attempt.
#[test]
fn a_flow_table_that_cannot_be_replaced_goes_on() -> Result<()> {
    needs!(root());
    let mut rig = Rig::with("up-failed", |options| options.flows = 1024)?;
    if rig.node.datapath.inspect()["attachment"] != "tcx" {
        testkit::skip!("no filter is refused");
    }
    CONNECTIONS.iter().for_each(|connection| passes(&rig, (connection.there)(SYN)));
    // Not the link that its name says.
    let wrong = rig.node.bpf_root().join(format!("v{ABI_VERSION}/node/links/pod-999999"));
    MapData::from_pin(rig.node.datapath.maps_directory().join(NODE))?.pin(&wrong)?;
    rig.node.options.flows = 4096;
    drop(rig.node.restart());
    let error = format!("{:#}", rig.node.observe().unwrap_err());
    assert!(error.contains("on interface 999999"), "{error}");
    let old = open::<contiv_abi::Node>(&resized(&rig).join("maps"), NODE)?;
    assert_eq!(old.get(&0, 0)?.phase, Phase::RUNNING);
    fs::remove_file(&wrong)?;
    rig.node.converge()?;
    assert_eq!((capacity(&rig)?, flows(&rig.node)?.len()), (4096, CONNECTIONS.len()));
    CONNECTIONS.iter().for_each(|connection| passes(&rig, (connection.back)(SYN_ACK)));
    assert!(!resized(&rig).exists());
    Ok(())
}
