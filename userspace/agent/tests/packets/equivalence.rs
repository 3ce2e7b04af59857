//! Random policies, services and packets: what the programs do with each packet is what the model's oracle says.
//!
//! ```text
//! scene     endpoints in groups, rules before and after a change, services, packets: generated, and shrunk
//! expected  what the oracle allows to become of a packet that a pod sends
//! errors    what it says of ICMP errors about such packets
//! meters    rates where there are no queues
//! wire      the same for packets that come from the uplink of a second network, and for the answers to them
//! rig       a node that is given one scene after the other
//! ```
//!
//! A case is one packet; `cargo xtask bench equivalence` runs a million.

mod errors;
mod expected;
mod meters;
mod rig;
mod scene;
mod wire;

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use proptest::test_runner::{Config, FileFailurePersistence, RngSeed, TestCaseError, TestRunner};
use testkit::needs;

use crate::campaign::Campaign;
use expected::{Fate, Oracle};
use rig::{From, Rig, forget};
use scene::{Piece, Probe, Scene, Stage, scenes};

const CASES: u64 = 20_000;
/// Packets of a connection that is known, one after the other: the second one leaves a shortcut behind, which the third one takes.
const BUSY: usize = 3;
/// Scenes between two looks at the number of cases.
const SCENES: u32 = 20;

#[test]
fn the_programs_agree_with_the_oracle() -> Result<()> {
    needs!(root());
    let mut campaign = Campaign::new("EQUIVALENCE", CASES, None)?;
    let rig = RefCell::new(Rig::new()?);
    let told = Cell::new(Told::default());
    let config = Config {
        cases: SCENES,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/packets/equivalence/regressions.txt",
        ))),
        source_file: Some(file!()),
        max_shrink_iters: 3000,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    // A seed of its own for each round, so that what a late one finds is found again at once.
    let mut seed = campaign.seed;
    while told.get().cases < campaign.cases {
        campaign.progress(told.get().cases, seed);
        TestRunner::new(Config { rng_seed: RngSeed::Fixed(seed), ..config.clone() })
            .run(&scenes(), |scene| {
                let mut rig = rig.borrow_mut();
                let found = check(&mut rig, &scene);
                let found = found.map_err(|error| TestCaseError::fail(format!("{error:#}")))?;
                told.set(told.get().and(found));
                Ok(())
            })
            .map_err(|error| anyhow!("seed {seed}: {error}"))?;
        seed = seed.wrapping_add(1);
    }
    campaign.finish(told.get().cases, &told.get());
    rig.into_inner().settle()
}

/// What was seen, so that one can tell that it was not always the same.
#[derive(Clone, Copy, Default)]
struct Told {
    cases: u64,
    arrived: usize,
    translated: usize,
    denied: usize,
    refused: usize,
    answers: usize,
    waited: usize,
    pieces: usize,
    from_wire: usize,
    errors: usize,
    short: u64,
}

impl Told {
    fn and(self, other: Told) -> Told {
        Told {
            cases: self.cases + other.cases,
            arrived: self.arrived + other.arrived,
            translated: self.translated + other.translated,
            denied: self.denied + other.denied,
            refused: self.refused + other.refused,
            answers: self.answers + other.answers,
            waited: self.waited + other.waited,
            pieces: self.pieces + other.pieces,
            from_wire: self.from_wire + other.from_wire,
            errors: self.errors + other.errors,
            short: self.short + other.short,
        }
    }
}

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Told {
            cases: _,
            arrived,
            translated,
            denied,
            refused,
            answers,
            waited,
            pieces,
            from_wire,
            errors,
            short,
        } = self;
        write!(
            f,
            "{arrived} arrived ({translated} translated, {answers} as answers), {denied} denied, \
             {refused} refused by services; {waited} in queues, {pieces} fragments, {from_wire} from the wire, {errors} ICMP errors, {short} by shortcuts and more"
        )
    }
}

/// Connections that were made.
#[derive(Default)]
struct Made {
    /// Whom their packets have come to.
    fates: HashMap<usize, Fate>,
    answered: HashSet<usize>,
}

fn check(rig: &mut Rig, scene: &Scene) -> Result<Told> {
    let mut told = Told::default();
    let (mut made, mut accepted) = (Made::default(), HashSet::new());
    for stage in [Stage::Before, Stage::After] {
        rig.stage(scene, stage)?;
        let before = rig.taken()?;
        let oracle = Oracle { scene, stage };
        rig.within(|| {
            packets(rig, &oracle, &mut made, &mut told)?;
            wire::packets(rig, &oracle, &mut accepted, &mut told)
        })
        .with_context(|| format!("{stage:?}"))?;
        told.short += rig.taken()?.saturating_sub(before);
    }
    Ok(told)
}

fn packets(rig: &Rig, oracle: &Oracle<'_>, made: &mut Made, told: &mut Told) -> Result<()> {
    // Those that are there are judged again by what is first seen of them, which is an error or an answer here.
    complaints(rig, oracle, made, told, 2).context("errors first")?;
    answers(rig, oracle, made, told).context("answers first")?;
    for (number, probe) in oracle.scene.probes.iter().enumerate() {
        let fate = sent(rig, oracle, number, probe, made.fates.get(&number), told)
            .with_context(|| format!("packet {number}, {probe:?}"))?;
        // Once more: now it is a packet of a connection that is known, if there is one.
        let again = sent(rig, oracle, number, probe, made.fates.get(&number).or(Some(&fate)), told)
            .with_context(|| format!("packet {number} again, {probe:?}"))?;
        let same = fate == again || (fate.is_denied() && again.is_denied());
        ensure!(same, "packet {number}, {probe:?}: first {fate:?}, then {again:?}");
        if fate.made_a_connection() {
            made.fates.insert(number, fate);
        }
    }
    clients_stay(oracle, &made.fates)?;
    complaints(rig, oracle, made, told, 1).context("before the answers")?;
    answers(rig, oracle, made, told)?;
    // And as one of a connection that has been answered: through the stages, and past them.
    for (number, probe) in oracle.scene.probes.iter().enumerate() {
        let Some(fate) = made.fates.get(&number) else { continue };
        for _ in 0..BUSY {
            sent(rig, oracle, number, probe, Some(fate), told)
                .with_context(|| format!("packet {number} after the answer, {probe:?}"))?;
        }
    }
    for _ in 0..BUSY {
        answers(rig, oracle, made, told).context("answers once more")?;
    }
    complaints(rig, oracle, made, told, 1)
}

/// Errors are sent, each of them or every second.
fn complaints(rig: &Rig, oracle: &Oracle<'_>, made: &Made, told: &mut Told, step: usize) -> Result<()> {
    for complaint in oracle.scene.complaints.iter().step_by(step) {
        let Some(error) = oracle.complaint(complaint, made) else { continue };
        let waits = oracle.waits(error.from);
        let outcome = rig.run(From::Pod(error.from), &error.frame, waits)?;
        told.cases += 1;
        told.errors += 1;
        told.waited += usize::from(waits);
        ensure!(
            error.fate.is(&outcome),
            "{complaint:?}, about {:?}: {:02x?} became {outcome:02x?}, but should have become {:02x?}",
            complaint.about.get(&oracle.scene.probes),
            error.frame,
            error.fate
        );
    }
    Ok(())
}

/// Sends a probe; what became of it is one of the things that the oracle allows. `before` is what became of the same
/// packet earlier.
fn sent(
    rig: &Rig,
    oracle: &Oracle<'_>,
    number: usize,
    probe: &Probe,
    before: Option<&Fate>,
    told: &mut Told,
) -> Result<Fate> {
    let mut fate = piece(rig, oracle, number, probe, (probe.pieces()[0], before), told)?;
    for later in &probe.pieces()[1..] {
        // What has been refused was refused as a whole.
        if fate.is_refused() {
            break;
        }
        let first = std::mem::replace(&mut fate, Fate::Back);
        piece(rig, oracle, number, probe, (*later, Some(&first)), told).context("the later piece")?;
        fate = first;
    }
    Ok(fate)
}

/// Sends a piece of a probe, or all of it.
fn piece(
    rig: &Rig,
    oracle: &Oracle<'_>,
    number: usize,
    probe: &Probe,
    (piece, before): (Piece, Option<&Fate>),
    told: &mut Told,
) -> Result<Fate> {
    let mut allowed = oracle.fates(number, probe, piece);
    // A connection stays with its backend, whatever the rules become.
    if let Some(backend) = before.and_then(Fate::place) {
        allowed.retain(|fate| fate.backend() == Some(backend));
    }
    let waits = oracle.waits(probe.from);
    let outcome = rig.run(From::Pod(probe.from), &oracle.frame(number, probe, piece), waits)?;
    told.cases += 1;
    told.waited += usize::from(waits);
    told.pieces += usize::from(piece != Piece::Whole);
    match allowed.iter().find(|fate| fate.is(&outcome)) {
        Some(fate) => {
            told.arrived += usize::from(fate.place().is_some());
            told.translated += usize::from(fate.is_translated());
            told.denied += usize::from(fate.is_denied());
            told.refused += usize::from(fate.is_refused());
            Ok(fate.clone())
        }
        None => bail!("it became {outcome:?}, but should have become one of {allowed:#?}"),
    }
}

/// Connections are answered, as long as they may be.
fn answers(rig: &Rig, oracle: &Oracle<'_>, made: &mut Made, told: &mut Told) -> Result<()> {
    let mut numbers: Vec<_> = made.fates.keys().copied().collect();
    numbers.sort_unstable();
    for number in numbers {
        let probe = &oracle.scene.probes[number];
        let Some(answer) = oracle.answer(number, probe, &made.fates[&number]) else { continue };
        let outcome = rig.run(From::Pod(answer.from), &answer.frame, oracle.waits(answer.from))?;
        told.cases += 1;
        ensure!(
            answer.fate.is(&outcome),
            "the answer to packet {number}, {probe:?}: it became {outcome:?}, but should have become {:?}",
            answer.fate
        );
        if answer.fate.place().is_some() {
            told.answers += 1;
            made.answered.insert(number);
        }
    }
    Ok(())
}

/// Of a service with affinity: each client is with one backend.
fn clients_stay(oracle: &Oracle<'_>, made: &HashMap<usize, Fate>) -> Result<()> {
    let mut with: HashMap<(IpAddr, usize, usize), IpAddr> = HashMap::new();
    for (number, fate) in made {
        let probe = &oracle.scene.probes[*number];
        let (Some(port), Some(place)) = (oracle.sticky_port(probe), fate.place()) else { continue };
        let client = (oracle.source(probe), port.0, port.1);
        let known = *with.entry(client).or_insert(place);
        ensure!(known == place, "{probe:?}: the client is with {known} and with {place}");
    }
    Ok(())
}
