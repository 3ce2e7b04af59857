//! Verifier statistics of the programs.

mod stack;

use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use aya::{
    EbpfLoader,
    programs::{Program, ProgramInfo},
};
use contiv_abi::SkbLayout;
use netplugin::datapath::ebpf::{LOG_OBJECT, OBJECT, skb_layout};
use testkit::needs;

use stack::{BRANCH, FRAMES, STACK, Usage};

/// Limit for all programs together, so that they load in about a second on every kernel. Older kernels prune fewer states.
const BUDGET: u32 = 200_000;

/// What every program leaves for another stage: stack in bytes, and frames.
const FREE_STACK: usize = 64;
const FREE_FRAMES: usize = 1;

/// Prints one row per program for the table of `cargo xtask vm`.
#[test]
fn programs_stay_within_their_budget() -> Result<()> {
    needs!(root());
    let usages = stack::of_programs(OBJECT)?;
    // This test does not pin the maps: they are freed with the object.
    let skb = skb_layout();
    let mut object = EbpfLoader::new().override_global(SkbLayout::GLOBAL, &skb[..], true).load(OBJECT)?;
    let mut total = 0;
    for (name, program) in object.programs_mut() {
        let start = Instant::now();
        let info = load(program).with_context(|| name.to_owned())?;
        let load_us = start.elapsed().as_micros();
        let processed = info.verified_instruction_count().context("the kernel does not tell")?;
        let translated = info.size_translated().context("the kernel does not tell the size")?;
        let Usage { stack, frames, branch } = *usages.get(name).context("a program without a stack")?;
        println!(
            "VERIFIER {name} {processed} {load_us} {translated} {} {stack} {frames} {branch}",
            info.size_jitted()
        );
        total += processed;
    }
    assert!(total <= BUDGET, "{total} instructions");
    Ok(())
}

#[test]
fn programs_leave_stack_and_a_frame_for_another_stage() -> Result<()> {
    for (name, usage) in stack::of_programs(OBJECT)? {
        assert!(usage.stack + FREE_STACK <= STACK, "{name}: {usage:?}");
        assert!(usage.frames + FREE_FRAMES <= FRAMES, "{name}: {usage:?}");
        assert!(usage.branch <= BRANCH, "{name}: {usage:?}");
    }
    Ok(())
}

/// The programs that log their stages are for debugging: they need not leave anything for another stage.
#[test]
fn programs_that_log_their_stages_are_accepted() -> Result<()> {
    needs!(root());
    for (name, usage) in stack::of_programs(LOG_OBJECT)? {
        assert!(usage.stack <= STACK && usage.frames <= FRAMES, "{name}: {usage:?}");
    }
    let skb = skb_layout();
    let mut object = EbpfLoader::new().override_global(SkbLayout::GLOBAL, &skb[..], true).load(LOG_OBJECT)?;
    for (name, program) in object.programs_mut() {
        load(program).with_context(|| name.to_owned())?;
    }
    Ok(())
}

fn load(program: &mut Program) -> Result<ProgramInfo> {
    Ok(match program {
        Program::SchedClassifier(program) => {
            program.load()?;
            program.info()?
        }
        Program::Xdp(program) => {
            program.load()?;
            program.info()?
        }
        _ => bail!("a kind of program that this test does not know"),
    })
}
