//! The original's answers, recorded, against ours: all agree, but for the differences that are declared.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;

use e2e::replay::{self, Step};

#[track_caller]
fn agrees(folder: &str) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let recordings = package.join("recordings").join(folder);
    let differing = replay::differing(&recordings, &package.join("../../docs/compatibility.toml")).unwrap();
    assert_eq!(differing, []);
}

#[test]
fn objects_and_their_errors_are_those_of_the_original() {
    let _machine = testkit::shared();
    agrees("a");
}

#[test]
fn addresses_and_endpoints_are_those_of_the_original() {
    let _machine = testkit::shared();
    agrees("b");
}

#[track_caller]
fn is_stored(folder: &str, steps: &[Step]) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let recordings = package.join("recordings");
    let differences = package.join("../../docs/compatibility.toml");
    let differing =
        replay::store_differing(&recordings.join(folder), &recordings.join("store"), steps, &differences)
            .unwrap();
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[test]
fn the_store_after_each_recorded_step_is_the_originals() {
    let _machine = testkit::shared();
    is_stored(
        "a",
        &[
            Step { dump: "03_networks-01-n1.txt", file: "03_networks.jsonl", line: 2 },
            Step { dump: "04_vxlan-01.txt", file: "04_vxlan.jsonl", line: 3 },
            Step { dump: "05_groups-03-pool.txt", file: "05_groups.jsonl", line: 65 },
            Step { dump: "06_policy_rules-02-rules.txt", file: "06_policy_rules.jsonl", line: 31 },
            Step { dump: "07_netprofiles-01-attached.txt", file: "07_netprofiles.jsonl", line: 26 },
        ],
    );
    is_stored(
        "b",
        &[
            Step { dump: "12_plugin_endpoints-01.txt", file: "12_plugin_endpoints.jsonl", line: 8 },
            Step {
                dump: "12_plugin_endpoints-03-k8s-rules.txt",
                file: "12_plugin_endpoints.jsonl",
                line: 41,
            },
        ],
    );
}
