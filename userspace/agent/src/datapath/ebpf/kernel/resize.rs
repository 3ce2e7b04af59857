//! Replaces the flow table by one of another size, with its flows.
//!
//! The programs of both tables have the other maps in common. Links and filters change one after the other, so for some
//! milliseconds programs of both are attached. Meanwhile those of the old table begin no flows: replies might come to the
//! programs of the new one.

use std::future::Future;

use contiv_abi::Phase;

use crate::datapath::{
    Error,
    ebpf::{
        maps::{export::PhaseSwitch, pins::Pins, rcu, writes::Writes},
        programs::migration::{FlowMigration, Moved, MovedDomains, Pass},
    },
};

/// Imports the flows of the table of `resized`, and replaces the programs by `replace`, whose value it returns. Afterwards
/// nothing refers to the old table.
pub(crate) async fn replace<T, F: Future<Output = Result<T, Error>>>(
    pins: &Pins,
    resized: &Pins,
    replace: impl FnOnce() -> F,
    writes: &Writes,
) -> Result<T, Error> {
    let old = PhaseSwitch::open(resized);
    // If an earlier process has ended meanwhile, programs of both tables may be attached.
    let resumed = old.as_ref().map_or(Ok(false), |old| old.get().map(|phase| phase != Phase::RUNNING))?;
    let pass = if resumed { Pass::After } else { Pass::Before };
    let mut migration = FlowMigration::open(pins, resized, true, MovedDomains::new())
        .inspect_err(|error| tracing::warn!("the flows of the previous table are lost: {error}"))
        .ok();
    run(&mut migration, pass)?;
    if let Some(old) = &old {
        writes.count();
        old.set(Phase::HOLDING)?;
    }
    // Programs that have begun before end.
    rcu::synchronize();
    run(&mut migration, pass)?;
    let result = replace().await;
    rcu::synchronize();
    run(&mut migration, Pass::After)?;
    let result = result?;
    if let Some(migration) = migration {
        let Moved { flows, lost } = migration.moved();
        tracing::info!("imported {flows} flows of the previous table; {lost} lost");
    }
    let removed = resized.remove_all()?;
    (0..removed).for_each(|_| writes.count());
    Ok(result)
}

fn run(migration: &mut Option<FlowMigration>, pass: Pass) -> Result<(), Error> {
    migration.as_mut().map_or(Ok(()), |migration| migration.run(pass))
}
