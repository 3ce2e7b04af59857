//! Upgrades while records are unreadable: only the maps of the other version have what belongs to them.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use contiv_abi::{Phase, maps::FROM_POD};
use netplugin::{
    datapath::{Datapath as _, Error, ObjectId, Op},
    reconcile::diff,
};
use testkit::needs;

use super::{HERE, OTHER, Rig, between, node_phase};
use crate::{
    flow_table::set_phase,
    node::Node,
    run::{Code, Target},
};

impl Rig {
    /// Restarts the agent, which cannot read the record of the backend.
    fn lose_backend(&mut self) {
        self.node.datapath.retain_orphans(true);
        self.node.desired.remove(&ObjectId::Local(self.backend.local.id.clone()));
    }

    /// The error of an agent that changes nothing.
    fn postponed(&mut self) -> Result<String> {
        let error = self.node.observe().err().context("it changes something")?;
        let error = error.downcast::<Error>()?;
        ensure!(error.is_postponed(), "{error}");
        Ok(error.to_string())
    }
}

#[test]
fn the_programs_forward_as_before_until_all_records_are_readable() -> Result<()> {
    needs!(root());
    for mode in [|_: &mut _| {}, Node::clsact] {
        let mut rig = Rig::with("up-keep", mode)?;
        let complete = rig.node.desired.clone();
        let target = Target::new(&rig.node, FROM_POD, &rig.client.local.port)?;
        let frame = between(HERE, OTHER).udp(1, 2).build();
        let before = |rig: &Rig| rig.node.ns.run(|| target.give(&frame));
        let own = rig.node.options.abi_version;
        rig.start_other_version();
        rig.lose_backend();
        for _ in 0..2 {
            let other = rig.node.options.abi_version;
            let expected = format!("ebpf datapath: upgrade from ABI version {own} to {other}");
            assert_eq!(rig.postponed()?, expected);
            let backend = Op::Delete(ObjectId::Local(rig.backend.local.id.clone()));
            assert!(rig.node.apply(&[backend, Op::GarbageCollect]).is_err());
            assert_eq!((before(&rig)?.0, rig.node.datapath.writes()), (Code::Redirect, 0));
            assert!(!rig.node.datapath.maps_directory().exists());
        }
        // The version before finds all that it has left.
        rig.start_other_version();
        rig.node.datapath.retain_orphans(true);
        let observed = rig.node.observe()?;
        assert!(observed.retained > 0 && observed.in_sync.len() == rig.node.desired.len(), "{observed:?}");

        rig.start_other_version();
        rig.node.datapath.retain_orphans(true);
        rig.postponed()?;
        rig.node.datapath.retain_orphans(false);
        rig.node.desired = complete;
        rig.node.converge()?;
        assert_eq!(before(&rig)?.0, Code::Next, "retired");
        rig.from(HERE, &between(HERE, OTHER).udp(3, 4))?
            .assert_sent_on(&between(HERE, OTHER).udp(3, 4).build());
    }
    Ok(())
}

/// The maps of this version were complete before it began.
#[test]
fn a_takeover_that_has_begun_is_completed_with_what_is_retained() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("up-began")?;
    rig.start_other_version();
    rig.node.observe()?;
    let ops: Vec<Op> = rig.node.desired.iter().map(|(_, object)| Op::Set(object.clone())).collect();
    assert!(rig.node.apply(&ops)?.is_empty());
    set_phase(&rig.node, Phase::IMPORTING)?;
    rig.node.restart();
    rig.lose_backend();
    let observed = rig.node.observe()?;
    assert!(observed.retained > 0 && observed.in_sync.len() == rig.node.desired.len(), "{observed:?}");
    let ops = diff(&rig.node.desired, &observed);
    assert!(rig.node.apply(&ops)?.is_empty());
    assert_eq!(node_phase(&rig)?, Phase::RUNNING);
    let frame = between(HERE, OTHER).udp(1, 2);
    rig.from(HERE, &frame)?.assert_sent_on(&frame.build());
    Ok(())
}

fn remove_files(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        fs::remove_file(entry?.path())?;
    }
    Ok(())
}

/// An agent whose programs could not be loaded is followed by one of the version before.
#[test]
fn maps_without_programs_postpone_nothing() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("up-maps")?;
    rig.start_other_version();
    rig.node.observe()?;
    let pins = rig.node.datapath.maps_directory();
    let pins = pins.parent().context("no directory")?;
    for part in ["links", "programs"] {
        remove_files(&pins.join(part))?;
    }
    rig.start_other_version();
    rig.lose_backend();
    let observed = rig.node.observe()?;
    assert!(observed.retained > 0 && observed.in_sync.len() == rig.node.desired.len(), "{observed:?}");
    let frame = between(HERE, OTHER).udp(1, 2);
    rig.from(HERE, &frame)?.assert_sent_on(&frame.build());
    Ok(())
}
