//! Frames from outside to a service with a backend on another node, which the XDP program forwards, compared with a program
//! that only returns XDP_TX.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::Value;
use testkit::{BpfDir, Netns};

use super::{
    outside::{self, Outside},
    wire::{self, End, Flood, Wire},
};
use crate::{
    bench::{
        assembled::{self, Kind},
        pinned::median,
        report::Report,
    },
    interrupt,
    progress::step,
};

const FRAMES: u32 = 4_000_000;
const MANY: u16 = 4096;
const CALLS: usize = 50_000;
const DROP: &str = "bare XDP_DROP";
const TX: &str = "bare XDP_TX";

#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct Options {
    /// Number of frames of each XDP measurement
    #[arg(long, default_value_t = FRAMES, value_parser = clap::value_parser!(u32).range(1000..))]
    frames: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { frames: FRAMES }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Frames {
    frames: u32,
    frame_bytes: usize,
    rounds: usize,
    /// Reason if our program was not measured.
    missing: Option<String>,
    rows: Vec<Row>,
}

/// Medians of all rounds.
#[derive(Debug, Serialize)]
struct Row {
    program: String,
    millions_per_second: f64,
    ns: f64,
    /// Difference to a dropped frame.
    own_ns: f64,
    /// Single frame (BPF_PROG_TEST_RUN).
    call_ns: f64,
    of_bare_tx: f64,
    /// Fraction of the frames that were dropped or returned as expected.
    done: f64,
}

/// A measured variant.
struct Side<'a> {
    name: String,
    wire: &'a Wire,
    sender: PathBuf,
    frame: &'a [u8],
    /// Program on the node's end during the measurement.
    program: &'a Path,
    /// Whether it is attached permanently.
    stays: bool,
    /// Nanoseconds for a single frame.
    call_ns: f64,
    rounds: Vec<Flood>,
}

pub(super) fn measure(options: &Options, rounds: usize) -> Result<Frames> {
    ensure!(rounds > 0, "rounds must not be zero");
    let pins = BpfDir::new("xdp")?;
    let pin = |name: &str| pins.path().join(name);
    let (drop, tx) = (pin("drop"), pin("tx"));
    assembled::pin(Kind::Xdp, &assembled::returns(1), &drop)?;
    assembled::pin(Kind::Xdp, &assembled::returns(3), &tx)?;
    let sender = |name: &str, ethernet, flows| {
        let path = pin(name);
        assembled::pin(Kind::Xdp, &assembled::sender(ethernet, outside::SOURCE_PORT, flows), &path)?;
        anyhow::Ok(path)
    };
    let bare = bare()?;
    let _end = bare.sender.attach(&drop)?;
    let ethernet = outside::ethernet();
    let one = sender("one", ethernet, 1)?;
    let ours = step("start the cluster", || Outside::build(&drop, &one))?;
    let frame = outside::frame(outside::CLIENT);
    let side = |name: &str, program| Side {
        name: name.to_owned(),
        wire: &bare,
        sender: one.clone(),
        frame: &frame,
        program,
        stays: false,
        call_ns: 0.0,
        rounds: vec![],
    };
    let mut sides = vec![side(DROP, &drop), side(TX, &tx)];
    if let Some(ours) = &ours {
        let many = sender("many", ethernet, MANY)?;
        for (name, sender) in [("one flow".to_owned(), &one), (format!("{MANY} flows"), &many)] {
            let (name, sender) = (format!("{}, {name}", outside::PROGRAM), sender.clone());
            sides.push(Side {
                name,
                wire: &ours.wire,
                sender,
                frame: &ours.frame,
                program: &ours.program,
                stays: true,
                call_ns: 0.0,
                rounds: vec![],
            });
        }
    }
    for round in 1..=rounds {
        step(&format!("round {round} of {rounds}"), || {
            sides.iter_mut().try_for_each(|side| side.measure(options.frames))
        })?;
    }
    for side in &mut sides {
        side.call_ns =
            side.wire.node.netns.run(|| wire::call(side.program, &side.wire.node.link, side.frame, CALLS))?;
    }
    let rows = rows(&sides);
    std::mem::drop(sides);
    Ok(Frames {
        frames: options.frames,
        frame_bytes: frame.len(),
        rounds,
        missing: ours.is_none().then(|| format!("the agent did not load {}", outside::PROGRAM)),
        rows,
    })
}

/// Creates a separate veth pair.
fn bare() -> Result<Wire> {
    let [sender, node] = ["sender", "receiver"].map(Netns::new);
    let (sender, node) = (sender?, node?);
    sender.veth(LINK, &node, LINK)?;
    let [sender, node] = [sender, node].map(|netns| End { netns, link: LINK.to_owned() });
    for end in [&sender, &node] {
        end.netns.up(LINK)?;
    }
    Ok(Wire { sender, node })
}

const LINK: &str = "wire0";

impl Side<'_> {
    fn measure(&mut self, frames: u32) -> Result<()> {
        interrupt::check()?;
        let _program = if self.stays { None } else { Some(self.wire.node.attach(self.program)?) };
        self.rounds.push(self.wire.flood(&self.sender, self.frame, frames)?);
        Ok(())
    }

    fn done(&self, flood: &Flood) -> f64 {
        (if self.name == DROP { flood.seen } else { flood.back }) as f64
    }

    fn per_second(&self, flood: &Flood) -> f64 {
        self.done(flood) / flood.time.as_secs_f64()
    }
}

fn rows(sides: &[Side<'_>]) -> Vec<Row> {
    let rates = |name: &str| -> Vec<f64> {
        let side = sides.iter().find(|side| side.name == name);
        side.map(|side| side.rounds.iter().map(|flood| side.per_second(flood)).collect()).unwrap_or_default()
    };
    let (dropped, bare) = (rates(DROP), rates(TX));
    let row = |side: &Side<'_>| {
        let rates = rates(&side.name);
        let beside = |other: &[f64], compare: fn(f64, f64) -> f64| {
            median(rates.iter().zip(other).map(|(ours, theirs)| compare(*ours, *theirs)).collect())
        };
        Row {
            program: side.name.clone(),
            millions_per_second: median(rates.clone()) / 1e6,
            ns: median(rates.iter().map(|rate| 1e9 / rate).collect()),
            own_ns: beside(&dropped, |ours, theirs| 1e9 / ours - 1e9 / theirs),
            call_ns: side.call_ns,
            of_bare_tx: beside(&bare, |ours, theirs| ours / theirs),
            done: median(side.rounds.iter().map(|flood| side.done(flood) / f64::from(flood.sent)).collect()),
        }
    };
    sides.iter().map(row).collect()
}

impl Report for Frames {
    fn title(&self) -> String {
        let mut title = format!(
            "Frames of {} bytes over a veth pair, {} each, medians of {} rounds, interleaved. \
             The sender runs on the same CPU: every figure includes its time, which is about that of dropped frames",
            self.frame_bytes, self.frames, self.rounds
        );
        if let Some(why) = &self.missing {
            title += &format!("\nnot measured: {why}");
        }
        title
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_header([
            "program",
            "million frames/s",
            "ns per frame",
            "above drop ns",
            "single call ns",
            "vs bare XDP_TX",
            "processed %",
        ]);
        for row in &self.rows {
            table.add_row([
                row.program.clone(),
                format!("{:.2}", row.millions_per_second),
                format!("{:.0}", row.ns),
                format!("{:.0}", row.own_ns),
                format!("{:.0}", row.call_ns),
                format!("{:.2}", row.of_bare_tx),
                format!("{:.1}", row.done * 100.0),
            ]);
        }
        table
    }

    fn value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}
