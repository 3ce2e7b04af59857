//! Handover to another datapath while the programs are those of another ABI version.

use anyhow::Result;
use contiv_abi::{ABI_VERSION, maps::FROM_POD};
use netplugin::datapath::ebpf::Options;
use testkit::needs;

use super::{HERE, OTHER, Rig, between};
use crate::{
    node::Node,
    run::{Code, Target},
};

#[test]
fn programs_of_another_version_stop_and_go_on() -> Result<()> {
    needs!(root());
    for mode in [|_: &mut Options| {}, Node::clsact] {
        let mut rig = Rig::with("up-passive", mode)?;
        let target = Target::new(&rig.node, FROM_POD, &rig.client.local.port)?;
        let frame = between(HERE, OTHER).udp(1, 2).build();
        let state = |rig: &Rig| -> Result<(Code, bool)> {
            Ok((rig.node.ns.run(|| target.give(&frame))?.0, rig.node.is_passive()?))
        };
        rig.start_other_version();
        assert_eq!(state(&rig)?, (Code::Redirect, false));
        rig.node.stop()?;
        assert_eq!(state(&rig)?, (Code::Next, true));
        // Its programs are loaded and not attached: they do not count.
        rig.node.prepare()?;
        assert_eq!(state(&rig)?, (Code::Next, true));
        // Nor does what they have left, for the version before.
        rig.start_other_version();
        assert!(rig.node.bpf_root().join(format!("v{}", ABI_VERSION + 1)).exists());
        assert_eq!(state(&rig)?, (Code::Next, true));
        rig.start_other_version();
        rig.node.resume()?;
        assert_eq!(state(&rig)?, (Code::Redirect, false));
    }
    Ok(())
}

/// The newer agent had taken over, and ended before it removed the other version, whose tables are old.
#[test]
fn programs_that_have_been_replaced_do_not_go_on() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("up-replaced")?;
    let target = Target::new(&rig.node, FROM_POD, &rig.client.local.port)?;
    let frame = between(HERE, OTHER).udp(1, 2).build();
    rig.node.stop()?;
    rig.start_other_version();
    rig.node.observe()?;
    assert!(!rig.node.is_passive()?);
    rig.node.resume()?;
    assert_eq!(rig.node.ns.run(|| target.give(&frame))?.0, Code::Next);
    Ok(())
}
