//! TCP from a pod to a service, compared with routing, nftables and iptables: throughput, connection rate, latency.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::Value;

use super::{
    lab::Lab,
    routed::{Routed, Rules},
    services::BACKENDS,
};
use crate::{
    bench::{
        latency::Latency,
        pinned::{RunTime, median},
        report::Report,
    },
    cluster::Datapath,
    interrupt,
    progress::step,
    traffic::{self, Cpus, Route},
};

#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct Options {
    /// Number of services of each variant
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u16).range(3..=30_000))]
    pub(super) among: u16,
    /// Duration of each measurement in seconds
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Number of concurrent clients in measurements of the connection rate
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Datapath of the nodes with the connections
    #[arg(long, value_enum, default_value_t = Datapath::Ebpf)]
    datapath: Datapath,
}

impl Default for Options {
    fn default() -> Options {
        Options { among: 10_000, seconds: 2.0, clients: 8, datapath: Datapath::Ebpf }
    }
}

const ROUTED: &str = "routed, no rules";

/// Names of the variants with our nodes.
struct Names {
    near: &'static str,
    near_direct: &'static str,
    far: &'static str,
    far_direct: &'static str,
    /// Least rate of connections, relative to the direct way.
    wanted: f64,
}

impl Names {
    fn of(datapath: Datapath) -> Names {
        match datapath {
            Datapath::Ebpf => Names {
                near: "eBPF service, same node",
                near_direct: "eBPF pods, same node",
                far: "eBPF service, other node",
                far_direct: "eBPF pods, other node",
                wanted: 0.97,
            },
            Datapath::Ovs => Names {
                near: "OVS service, same node",
                near_direct: "OVS pods, same node",
                far: "OVS service, other node",
                far_direct: "OVS pods, other node",
                wanted: 0.9,
            },
        }
    }
}

/// A measured variant.
struct Side {
    name: String,
    /// Name of the same route without a service.
    direct: &'static str,
    route: Route,
    /// Time to load the services.
    load: Option<Duration>,
    programs: Option<Programs>,
    rounds: Vec<Figures>,
}

/// Run time of our programs per connection, measured separately because the statistics cost time.
#[derive(Debug, Clone, Copy, Serialize)]
struct Programs {
    us: f64,
    runs: f64,
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Figures {
    gigabits_per_second: f64,
    connections_per_second: f64,
    /// CPU time per connection of both ends.
    processor_us: f64,
    p50_us: f64,
    p99_us: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Connections {
    services: u16,
    endpoints: usize,
    clients: usize,
    seconds: f64,
    rounds: usize,
    /// CPUs of client and server for throughput and connection rate; for latency both run on the first one.
    processors: [usize; 2],
    /// Variants that were not measured, with the reason.
    missing: Vec<String>,
    rows: Vec<Row>,
    aims: Vec<Aim>,
}

/// Medians of all rounds; ratios are computed per round.
#[derive(Debug, Serialize)]
struct Row {
    side: String,
    #[serde(flatten)]
    figures: Figures,
    of_direct: Figures,
    /// Ratio to a node that routes without rules.
    of_routed: Figures,
    programs: Option<Programs>,
    load_s: Option<f64>,
}

/// Ratio of the connection rate of our service to that of another variant.
#[derive(Debug, Serialize)]
struct Aim {
    beside: &'static str,
    wanted: f64,
    ratio: f64,
    /// The same ratio per second of CPU time, which other processes do not disturb.
    by_processor: f64,
}

pub(super) fn measure(options: &Options, rounds: usize) -> Result<Connections> {
    ensure!(rounds > 0 && options.clients > 0, "rounds and clients must not be zero");
    let among = usize::from(options.among);
    let names = Names::of(options.datapath);
    let lab = Lab::build(options.datapath, among)?;
    let mut sides = ours(&lab, &names)?;
    let (peers, missing) = peers(among)?;
    for routed in &peers {
        sides.extend(theirs(routed, among)?);
    }
    let last = thread::available_parallelism()?.get() - 1;
    let [apart, together] = [last, 0].map(|server| Cpus { client: 0, server });
    let duration = Duration::from_secs_f64(options.seconds);
    for side in &sides {
        // Resolves the neighbours before the measurement.
        side.on(together).exchanges(Duration::ZERO).with_context(|| side.name.clone())?;
    }
    for round in 1..=rounds {
        let found = step(&format!("round {round} of {rounds}"), || {
            run_round(&sides, [apart, together], options.clients, duration)
        })?;
        sides.iter_mut().zip(found).for_each(|(side, figures)| side.rounds.push(figures));
    }
    if let Some(programs) = lab.programs()? {
        for side in sides.iter_mut().filter(|side| side.direct != ROUTED) {
            side.programs = Some(side.clock(&programs, together, duration)?);
        }
    }
    let report = Connections {
        services: options.among,
        endpoints: BACKENDS,
        clients: options.clients,
        seconds: options.seconds,
        rounds,
        processors: [apart.client, apart.server],
        missing,
        rows: rows(&sides),
        aims: aims(&sides, &names),
    };
    drop((sides, peers));
    lab.shut_down()?;
    Ok(report)
}

/// Variants with pods of our nodes: direct and through a service.
fn ours(lab: &Lab, names: &Names) -> Result<Vec<Side>> {
    let Names { near, near_direct, far, far_direct, .. } = *names;
    let ways = [
        (near_direct, near_direct, lab.near.direct()?, None),
        (near, near_direct, lab.near.through_service(), Some(lab.load)),
        (far_direct, far_direct, lab.far.direct()?, None),
        (far, far_direct, lab.far.through_service(), Some(lab.load)),
    ];
    let side = |(name, direct, target, load): (&str, &'static str, _, _)| {
        let servers = if direct == near_direct { &lab.near } else { &lab.far };
        let route =
            Route { client: lab.client.netns().clone(), target, servers: servers.listeners(), cpus: None };
        Side { name: name.to_owned(), direct, route, load, programs: None, rounds: vec![] }
    };
    Ok(ways.map(side).into())
}

/// Variants with routing that this machine supports, and the reasons for the others.
fn peers(services: usize) -> Result<(Vec<Routed>, Vec<String>)> {
    let (mut there, mut missing) = (vec![], vec![]);
    for rules in Rules::ALL {
        match rules.missing() {
            Some(why) => missing.push(why),
            None => {
                let build = || Routed::build(rules, services, BACKENDS);
                there.push(step(&format!("{}: {services} services", rules.name()), build)?);
            }
        }
    }
    Ok((there, missing))
}

fn theirs(routed: &Routed, services: usize) -> Result<Vec<Side>> {
    let side = |name: &str, route, load| Side {
        name: name.to_owned(),
        direct: ROUTED,
        route,
        load,
        programs: None,
        rounds: vec![],
    };
    let (load, name) = (Some(routed.load), routed.rules.name());
    Ok(match routed.rules {
        Rules::None => vec![side(ROUTED, routed.direct()?, None)],
        // A hash lookup does not depend on the position of the service.
        Rules::Nftables => vec![side(name, routed.service(services - 1)?, load)],
        Rules::IptablesLegacy | Rules::IptablesNft => vec![
            side(&format!("{name}, service in the middle"), routed.service(services / 2)?, load),
            side(&format!("{name}, last service"), routed.service(services - 1)?, load),
        ],
    })
}

/// Measures one kind on all variants before the next kind, so that compared results are close in time.
fn run_round(
    sides: &[Side],
    [apart, together]: [Cpus; 2],
    clients: usize,
    duration: Duration,
) -> Result<Vec<Figures>> {
    let mut found = vec![Figures::default(); sides.len()];
    let on_all = |found: &mut [Figures], measure: &dyn Fn(&Side, &mut Figures) -> Result<()>| {
        sides.iter().zip(found).try_for_each(|(side, figures)| {
            interrupt::check()?;
            measure(side, figures).with_context(|| side.name.clone())
        })
    };
    on_all(&mut found, &|side, figures| {
        figures.gigabits_per_second = side.on(apart).throughput(duration)? / 1e9;
        Ok(())
    })?;
    for (figures, connections) in found.iter_mut().zip(in_turns(sides, apart, clients, duration)?) {
        figures.connections_per_second = connections.per_second();
        figures.processor_us = connections.cpu_us();
    }
    on_all(&mut found, &|side, figures| {
        let times = side.on(together).exchanges(duration)?;
        let latency = Latency::of_series(times).context("no connection was measured")?;
        (figures.p50_us, figures.p99_us) = (latency.p50_ms * 1e3, latency.p99_ms * 1e3);
        Ok(())
    })?;
    Ok(found)
}

/// Turns that each variant has in a measurement of the connection rate.
const TURNS: u32 = 12;

/// Opens connections on all variants in short turns, forwards and backwards: the speed of a machine changes within seconds by more
/// than two variants differ.
fn in_turns(
    sides: &[Side],
    cpus: Cpus,
    clients: usize,
    duration: Duration,
) -> Result<Vec<traffic::Connections>> {
    let mut sums = vec![traffic::Connections::default(); sides.len()];
    for turn in 0..TURNS {
        let mut order: Vec<_> = sides.iter().zip(&mut sums).collect();
        if turn % 2 == 1 {
            order.reverse();
        }
        for (side, sum) in order {
            interrupt::check()?;
            let opened = side.on(cpus).connections(clients, duration / TURNS);
            *sum += opened.with_context(|| side.name.clone())?;
        }
    }
    Ok(sums)
}

impl Side {
    fn clock(&self, programs: &RunTime, cpus: Cpus, duration: Duration) -> Result<Programs> {
        let mut connections = 0;
        let (time, runs) = programs.during(|| {
            connections = self.on(cpus).exchanges(duration)?.len();
            Ok(())
        })?;
        let each = |sum: f64| sum / connections as f64;
        Ok(Programs { us: each(time.as_secs_f64() * 1e6), runs: each(runs as f64) })
    }

    fn on(&self, cpus: Cpus) -> Route {
        Route { cpus: Some(cpus), ..self.route.clone() }
    }
}

fn rows(sides: &[Side]) -> Vec<Row> {
    let row = |side: &Side| Row {
        side: side.name.clone(),
        figures: Figures::of(|pick| median(side.rounds.iter().map(pick).collect())),
        of_direct: ratios(sides, side, side.direct),
        of_routed: ratios(sides, side, ROUTED),
        programs: side.programs,
        load_s: side.load.map(|load| load.as_secs_f64()),
    };
    sides.iter().map(row).collect()
}

/// Medians of the ratios to another variant in the same round.
fn ratios(sides: &[Side], side: &Side, beside: &str) -> Figures {
    let other = sides.iter().find(|side| side.name == beside).map_or(&[][..], |side| &side.rounds);
    Figures::of(|pick| {
        median(side.rounds.iter().zip(other).map(|(ours, theirs)| pick(ours) / pick(theirs)).collect())
    })
}

fn aims(sides: &[Side], names: &Names) -> Vec<Aim> {
    let Some(ours) = sides.iter().find(|side| side.name == names.near) else { return vec![] };
    [(names.near_direct, names.wanted), (Rules::Nftables.name(), 1.0)]
        .into_iter()
        .filter(|(beside, _)| sides.iter().any(|side| side.name == *beside))
        .map(|(beside, wanted)| {
            let ratios = ratios(sides, ours, beside);
            let (ratio, by_processor) = (ratios.connections_per_second, 1.0 / ratios.processor_us);
            Aim { beside, wanted, ratio, by_processor }
        })
        .collect()
}

impl Figures {
    /// Computes each figure separately.
    fn of(figure: impl Fn(fn(&Figures) -> f64) -> f64) -> Figures {
        Figures {
            gigabits_per_second: figure(|figures| figures.gigabits_per_second),
            connections_per_second: figure(|figures| figures.connections_per_second),
            processor_us: figure(|figures| figures.processor_us),
            p50_us: figure(|figures| figures.p50_us),
            p99_us: figure(|figures| figures.p99_us),
        }
    }
}

impl Report for Connections {
    fn title(&self) -> String {
        let [client, server] = self.processors;
        let mut lines = vec![format!(
            "TCP to a service among {} with {} endpoints each, medians of {} rounds of {} s, interleaved. One stream, and \
             connections (connect, a byte there and back, reset) by {} clients in {TURNS} turns of each round: clients on \
             processor {client}, servers on {server}. Time of one connection: both ends on processor {client}. Ratios are taken \
             round by round: of the same way without a service, and of routing without rules. eBPF nodes have room for the ended connections of all ways, so that \
             none replaces those of another; our service keeps a client with its backend, the rules choose at random",
            self.services, self.endpoints, self.rounds, self.seconds, self.clients
        )];
        lines.extend(self.aims.iter().map(|aim| {
            format!(
                "connections/s through a service relative to \"{}\": {:.3} (target: at least {:.2}); per second of CPU time: {:.3}",
                aim.beside, aim.ratio, aim.wanted, aim.by_processor
            )
        }));
        lines.extend(self.missing.iter().map(|why| format!("not measured: {why}")));
        lines.join("\n")
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_header([
            "variant",
            "Gb/s",
            "vs direct",
            "connections/s",
            "vs direct",
            "vs routed",
            "CPU µs per connection",
            "vs direct",
            "latency p50 µs",
            "vs direct",
            "p99 µs",
            "programs µs",
            "runs",
            "services loaded after s",
        ]);
        for Row { side, figures, of_direct, of_routed, programs, load_s } in &self.rows {
            table.add_row([
                side.clone(),
                format!("{:.2}", figures.gigabits_per_second),
                format!("{:.2}", of_direct.gigabits_per_second),
                format!("{:.0}", figures.connections_per_second),
                format!("{:.3}", of_direct.connections_per_second),
                format!("{:.3}", of_routed.connections_per_second),
                format!("{:.1}", figures.processor_us),
                format!("{:.3}", of_direct.processor_us),
                format!("{:.1}", figures.p50_us),
                format!("{:.3}", of_direct.p50_us),
                format!("{:.1}", figures.p99_us),
                programs.map(|programs| format!("{:.2}", programs.us)).unwrap_or_default(),
                programs.map(|programs| format!("{:.1}", programs.runs)).unwrap_or_default(),
                load_s.map(|load| format!("{load:.2}")).unwrap_or_default(),
            ]);
        }
        table
    }

    fn value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}
