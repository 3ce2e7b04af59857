//! Faults of netmasters and etcd members under load.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::env;

use e2e::faults::{self, Kind, Options, Report};
use testkit::{is_guest, needs};

/// Sets the seed, which a failed run prints.
const SEED_VARIABLE: &str = "CONTIV_FAULTS_SEED";

/// An emulated machine carries out so few requests that more clients only wait for each other.
fn options(seconds: u64) -> Options {
    let seed = env::var(SEED_VARIABLE).ok().map(|seed| seed.parse().unwrap());
    let clients = if is_guest() { 4 } else { Options::default().clients };
    Options { seconds, clients, seed, ..Options::default() }
}

fn run(options: &Options) -> Report {
    let report = faults::run(options).unwrap();
    println!("{report}");
    report.verify().unwrap();
    report
}

/// Jumps of the clock among the recoveries.
fn jumps(report: &Report) -> usize {
    let jumps = report.recoveries.iter().filter(|recovery| recovery.fault.starts_with("ClockJump"));
    jumps.map(|recovery| recovery.count).sum()
}

#[test]
fn store_is_consistent_after_faults() {
    needs!(binary("etcd"), binary("etcdctl"), binary("ip"), binary("mkfs.ext4"), binary("fsfreeze"), root());
    let _machine = testkit::exclusive();
    let (seconds, least) = if is_guest() { (600, 50) } else { (40, 500) };
    let report = run(&options(seconds));
    // The test is meaningless without enough successful writes and faults.
    assert!(report.acknowledged > least && report.recoveries.len() > 3, "{report}");
    if is_guest() {
        assert!(jumps(&report) > 10, "{report}");
    } else {
        assert!(report.checked.operations > 100 && report.checked.large > 0, "{report}");
    }
}

#[test]
fn a_jump_of_the_clock_costs_no_lease() {
    needs!(binary("etcd"), binary("etcdctl"), binary("ip"), root(), guest());
    let _machine = testkit::exclusive();
    let report = run(&Options { faults: vec![Kind::ClockJump], ..options(90) });
    assert!(report.acknowledged > 50 && jumps(&report) > 5, "{report}");
}
