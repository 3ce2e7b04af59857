//! Verifier statistics of the programs.

use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use aya::{
    EbpfLoader,
    programs::{Program, ProgramInfo},
};
use netplugin::datapath::ebpf::OBJECT;
use testkit::needs;

/// Limit for all programs together, far below the verifier's maximum for one, because older kernels prune fewer states.
const BUDGET: u32 = 200_000;

/// Prints one row per program for the table of `cargo xtask vm`.
#[test]
fn programs_stay_within_their_budget() -> Result<()> {
    needs!(root());
    // This test does not pin the maps: they are freed with the object.
    let mut object = EbpfLoader::new().load(OBJECT)?;
    let mut total = 0;
    for (name, program) in object.programs_mut() {
        let start = Instant::now();
        let info = load(program).with_context(|| name.to_owned())?;
        let load_us = start.elapsed().as_micros();
        let processed = info.verified_instruction_count().context("the kernel does not tell")?;
        let translated = info.size_translated().context("the kernel does not tell the size")?;
        println!("VERIFIER {name} {processed} {load_us} {translated} {}", info.size_jitted());
        total += processed;
    }
    assert!(total <= BUDGET, "{total}");
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
