//! Random policies, services and packets: the programs treat each packet as the model's oracle does.
//!
//! ```text
//! scene     endpoints in groups, rules before and after a change, services, packets: generated and shrunk
//! expected  the results that the oracle allows for a packet from a pod
//! errors    the results for ICMP errors about such packets
//! meters    bandwidth limits without queues
//! wire      the results for packets from the uplink of a second network, and for replies to them
//! rig       a node that is configured with one scene after the other
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
/// Number of times that a packet is repeated.
const BUSY: usize = 3;
/// Number of scenes between two checks of the number of cases.
const SCENES: u32 = 20;

#[test]
fn the_programs_agree_with_the_oracle() -> Result<()> {
    needs!(root());
    let mut campaign = Campaign::new("EQUIVALENCE", CASES, None)?;
    let rig = RefCell::new(Rig::new()?);
    let reported = Cell::new(EventState::default());
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
    // Each round has its own seed, so that a late failure is reproduced at once.
    let mut seed = campaign.seed;
    while reported.get().cases < campaign.cases {
        campaign.progress(reported.get().cases, seed);
        TestRunner::new(Config { rng_seed: RngSeed::Fixed(seed), ..config.clone() })
            .run(&scenes(), |scene| {
                let mut rig = rig.borrow_mut();
                let found = check(&mut rig, &scene);
                let found = found.map_err(|error| TestCaseError::fail(format!("{error:#}")))?;
                reported.set(reported.get().and(found));
                Ok(())
            })
            .map_err(|error| anyhow!("seed {seed}: {error}"))?;
        seed = seed.wrapping_add(1);
    }
    campaign.finish(reported.get().cases, &reported.get());
    rig.into_inner().settle()
}

/// Statistics, to verify that the scenes vary.
#[derive(Clone, Copy, Default)]
struct EventState {
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
}

impl EventState {
    fn and(self, other: EventState) -> EventState {
        EventState {
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
        }
    }
}

impl std::fmt::Display for EventState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let EventState {
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
        } = self;
        write!(
            f,
            "{arrived} arrived ({translated} translated, {answers} as answers), {denied} denied, \
             {refused} refused by services; {waited} in queues, {pieces} fragments, {from_wire} from the wire, {errors} ICMP errors"
        )
    }
}

/// Connections created.
#[derive(Default)]
struct Made {
    /// Destinations that received their packets.
    fates: HashMap<usize, Fate>,
    answered: HashSet<usize>,
}

fn check(rig: &mut Rig, scene: &Scene) -> Result<EventState> {
    let mut reported = EventState::default();
    let (mut made, mut accepted) = (Made::default(), HashSet::new());
    for stage in [Stage::Before, Stage::After] {
        rig.stage(scene, stage)?;
        let oracle = Oracle { scene, stage };
        rig.within(|| {
            packets(rig, &oracle, &mut made, &mut reported)?;
            wire::packets(rig, &oracle, &mut accepted, &mut reported)
        })
        .with_context(|| format!("{stage:?}"))?;
    }
    Ok(reported)
}

fn packets(rig: &Rig, oracle: &Oracle<'_>, made: &mut Made, reported: &mut EventState) -> Result<()> {
    // The first packet after a change re-evaluates an existing connection; here it is an ICMP error or a reply.
    complaints(rig, oracle, made, reported, 2).context("errors first")?;
    answers(rig, oracle, made, reported).context("answers first")?;
    for (number, probe) in oracle.scene.probes.iter().enumerate() {
        let fate = sent(rig, oracle, number, probe, made.fates.get(&number), reported)
            .with_context(|| format!("packet {number}, {probe:?}"))?;
        // Repeat the packet: it belongs to an established connection, if there is one.
        let again = sent(rig, oracle, number, probe, made.fates.get(&number).or(Some(&fate)), reported)
            .with_context(|| format!("packet {number} again, {probe:?}"))?;
        let same = fate == again || (fate.is_denied() && again.is_denied());
        ensure!(same, "packet {number}, {probe:?}: first {fate:?}, then {again:?}");
        if fate.made_a_connection() {
            made.fates.insert(number, fate);
        }
    }
    clients_stay(oracle, &made.fates)?;
    complaints(rig, oracle, made, reported, 1).context("before the answers")?;
    answers(rig, oracle, made, reported)?;
    // And as a packet of a replied connection.
    for (number, probe) in oracle.scene.probes.iter().enumerate() {
        let Some(fate) = made.fates.get(&number) else { continue };
        for _ in 0..BUSY {
            sent(rig, oracle, number, probe, Some(fate), reported)
                .with_context(|| format!("packet {number} after the answer, {probe:?}"))?;
        }
    }
    for _ in 0..BUSY {
        answers(rig, oracle, made, reported).context("answers once more")?;
    }
    complaints(rig, oracle, made, reported, 1)
}

/// Sends the ICMP errors, all of them or every second one.
fn complaints(
    rig: &Rig,
    oracle: &Oracle<'_>,
    made: &Made,
    reported: &mut EventState,
    step: usize,
) -> Result<()> {
    for complaint in oracle.scene.complaints.iter().step_by(step) {
        let Some(error) = oracle.complaint(complaint, made) else { continue };
        let waits = oracle.waits(error.from);
        let outcome = rig.run(From::Pod(error.from), &error.frame, waits)?;
        reported.cases += 1;
        reported.errors += 1;
        reported.waited += usize::from(waits);
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

/// Sends a probe. Its result must be one that the oracle allows. `before` is the result of the same packet earlier.
fn sent(
    rig: &Rig,
    oracle: &Oracle<'_>,
    number: usize,
    probe: &Probe,
    before: Option<&Fate>,
    reported: &mut EventState,
) -> Result<Fate> {
    let mut fate = piece(rig, oracle, number, probe, (probe.pieces()[0], before), reported)?;
    for later in &probe.pieces()[1..] {
        // A probe that was dropped before was dropped entirely.
        if fate.is_refused() {
            break;
        }
        let first = std::mem::replace(&mut fate, Fate::Back);
        piece(rig, oracle, number, probe, (*later, Some(&first)), reported).context("the later piece")?;
        fate = first;
    }
    Ok(fate)
}

/// Sends a fragment of a probe, or all of it.
fn piece(
    rig: &Rig,
    oracle: &Oracle<'_>,
    number: usize,
    probe: &Probe,
    (piece, before): (Piece, Option<&Fate>),
    reported: &mut EventState,
) -> Result<Fate> {
    let mut allowed = oracle.fates(number, probe, piece);
    // A connection keeps its backend after a change of the rules.
    if let Some(backend) = before.and_then(Fate::place) {
        allowed.retain(|fate| fate.backend() == Some(backend));
    }
    let waits = oracle.waits(probe.from);
    let outcome = rig.run(From::Pod(probe.from), &oracle.frame(number, probe, piece), waits)?;
    reported.cases += 1;
    reported.waited += usize::from(waits);
    reported.pieces += usize::from(piece != Piece::Whole);
    match allowed.iter().find(|fate| fate.is(&outcome)) {
        Some(fate) => {
            reported.arrived += usize::from(fate.place().is_some());
            reported.translated += usize::from(fate.is_translated());
            reported.denied += usize::from(fate.is_denied());
            reported.refused += usize::from(fate.is_refused());
            Ok(fate.clone())
        }
        None => bail!("it became {outcome:?}, but should have become one of {allowed:#?}"),
    }
}

/// Sends replies on the connections that the rules still allow.
fn answers(rig: &Rig, oracle: &Oracle<'_>, made: &mut Made, reported: &mut EventState) -> Result<()> {
    let mut numbers: Vec<_> = made.fates.keys().copied().collect();
    numbers.sort_unstable();
    for number in numbers {
        let probe = &oracle.scene.probes[number];
        let Some(answer) = oracle.answer(number, probe, &made.fates[&number]) else { continue };
        let outcome = rig.run(From::Pod(answer.from), &answer.frame, oracle.waits(answer.from))?;
        reported.cases += 1;
        ensure!(
            answer.fate.is(&outcome),
            "the answer to packet {number}, {probe:?}: it became {outcome:?}, but should have become {:?}",
            answer.fate
        );
        if answer.fate.place().is_some() {
            reported.answers += 1;
            made.answered.insert(number);
        }
    }
    Ok(())
}

/// With session affinity, each client has one backend, whichever ports of the service it uses.
fn clients_stay(oracle: &Oracle<'_>, made: &HashMap<usize, Fate>) -> Result<()> {
    let mut with: HashMap<(IpAddr, usize), IpAddr> = HashMap::new();
    for (number, fate) in made {
        let probe = &oracle.scene.probes[*number];
        let (Some(service), Some(place)) = (oracle.sticky_service(probe), fate.place()) else { continue };
        let known = *with.entry((oracle.source(probe), service)).or_insert(place);
        ensure!(known == place, "{probe:?}: the client is with {known} and with {place}");
    }
    Ok(())
}
