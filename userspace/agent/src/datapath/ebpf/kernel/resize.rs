//! Replaces the flow table by one of another size, with its flows.
//!
//! The programs of both tables share the other maps. Links and filters are replaced one after the other, so that programs
//! of both tables are attached for some milliseconds. Meanwhile the programs of the old table create no flows: the
//! programs of the new table might receive the replies.

use std::future::Future;

use contiv_abi::Phase;

use crate::{
    datapath::{
        Error,
        ebpf::{
            maps::{export::PhaseSwitch, flows, pins::Pins, rcu, writes::Writes},
            programs::migration::{FlowMigration, Moved, MovedDomains, Pass},
        },
    },
    error::one_line,
};

/// Imports the flows of the table of `resized`, and replaces the programs with `replace`, whose value it returns.
/// Afterwards nothing refers to the old table. After an error, programs of the old table that are still attached continue
/// as before.
pub(crate) async fn replace<T, F: Future<Output = Result<T, Error>>>(
    pins: &Pins,
    resized: &Pins,
    replace: impl FnOnce() -> F,
    writes: &Writes,
) -> Result<T, Error> {
    let old = PhaseSwitch::open(resized);
    let phase = old.as_ref().map(PhaseSwitch::get).transpose()?;
    // If an earlier attempt was interrupted after this point, programs of both tables may be attached.
    let is_repeated = phase.is_some_and(|phase| phase != Phase::RUNNING) || flows::usage(pins)?.entries > 0;
    let pass = if is_repeated { Pass::After } else { Pass::Before };
    let mut migration = FlowMigration::open(pins, resized, true, MovedDomains::new())
        .inspect_err(|error| tracing::warn!("the flows of the previous table are lost: {error}"))
        .ok();
    // Programs that pass every frame on create no flows, and must continue to pass frames on.
    let forwarding = old.as_ref().filter(|_| phase != Some(Phase::RETIRED));
    let replaced = exchange(&mut migration, pass, forwarding, replace, writes).await;
    if let (Err(_), Some(forwarding), Some(phase)) = (&replaced, forwarding, phase)
        && let Err(error) = forwarding.set(phase)
    {
        tracing::warn!("programs of the previous flow table begin no flows: {}", one_line(&error));
    }
    let result = replaced?;
    if let Some(migration) = migration {
        let Moved { flows, lost } = migration.moved();
        tracing::info!("imported {flows} flows of the previous table; {lost} lost");
    }
    let removed = resized.remove_all()?;
    (0..removed).for_each(|_| writes.count());
    Ok(result)
}

/// Imports the flows and replaces the programs. `forwarding` sets the phase of the old table's programs, unless they pass
/// every frame on.
async fn exchange<T, F: Future<Output = Result<T, Error>>>(
    migration: &mut Option<FlowMigration>,
    pass: Pass,
    forwarding: Option<&PhaseSwitch>,
    replace: impl FnOnce() -> F,
    writes: &Writes,
) -> Result<T, Error> {
    run(migration, pass)?;
    if let Some(forwarding) = forwarding {
        writes.count();
        forwarding.set(Phase::HOLDING)?;
    }
    // Program runs that have started before must end first.
    rcu::synchronize();
    run(migration, pass)?;
    let result = replace().await;
    rcu::synchronize();
    run(migration, Pass::After)?;
    result
}

fn run(migration: &mut Option<FlowMigration>, pass: Pass) -> Result<(), Error> {
    migration.as_mut().map_or(Ok(()), |migration| migration.run(pass))
}
