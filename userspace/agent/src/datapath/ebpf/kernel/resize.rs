//! Replaces the flow table by one of another size, with its flows.
//!
//! The programs of both tables have the other maps in common. Links and filters change one after the other, so for some
//! milliseconds programs of both are attached. Meanwhile those of the old table begin no flows: replies might come to the
//! programs of the new one.

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

/// Imports the flows of the table of `resized`, and replaces the programs by `replace`, whose value it returns. Afterwards
/// nothing refers to the old table. After an error, programs of the old table that are still attached go on as before.
pub(crate) async fn replace<T, F: Future<Output = Result<T, Error>>>(
    pins: &Pins,
    resized: &Pins,
    replace: impl FnOnce() -> F,
    writes: &Writes,
) -> Result<T, Error> {
    let old = PhaseSwitch::open(resized);
    let phase = old.as_ref().map(PhaseSwitch::get).transpose()?;
    // If an earlier attempt has ended meanwhile, programs of both tables may be attached.
    let is_repeated = phase.is_some_and(|phase| phase != Phase::RUNNING) || flows::usage(pins)?.entries > 0;
    let pass = if is_repeated { Pass::After } else { Pass::Before };
    let mut migration = FlowMigration::open(pins, resized, true, MovedDomains::new())
        .inspect_err(|error| tracing::warn!("the flows of the previous table are lost: {error}"))
        .ok();
    // Programs that pass every frame on begin no flows, and are to go on with that.
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

/// Imports the flows and replaces the programs; `forwarding` are those of the old table, unless they pass every frame on.
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
    // Programs that have begun before end.
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
