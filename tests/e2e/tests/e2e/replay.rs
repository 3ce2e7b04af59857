//! Compares responses and store with recordings of the original; only declared differences are allowed.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;

use e2e::replay::{self, Step};

#[track_caller]
fn assert_equal_responses(folder: &str) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let recordings = package.join("recordings").join(folder);
    let differing = replay::differing(&recordings, &package.join("../../docs/compatibility.toml")).unwrap();
    assert_eq!(differing, []);
}

#[test]
fn object_responses_equal_the_original() {
    let _machine = testkit::shared();
    assert_equal_responses("a");
}

#[test]
fn plugin_responses_equal_the_original() {
    let _machine = testkit::shared();
    assert_equal_responses("b");
}

#[track_caller]
fn assert_equal_store(folder: &str, steps: &[Step]) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let recordings = package.join("recordings");
    let differences = package.join("../../docs/compatibility.toml");
    let differing =
        replay::store_differing(&recordings.join(folder), &recordings.join("store"), steps, &differences)
            .unwrap();
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[test]
fn store_equals_the_original_after_each_step() {
    let _machine = testkit::shared();
    assert_equal_store(
        "a",
        &[
            Step { dump: "03_networks-01-n1.txt", file: "03_networks.jsonl", line: 2 },
            Step { dump: "04_vxlan-01.txt", file: "04_vxlan.jsonl", line: 3 },
            Step { dump: "05_groups-03-pool.txt", file: "05_groups.jsonl", line: 65 },
            Step { dump: "06_policy_rules-02-rules.txt", file: "06_policy_rules.jsonl", line: 31 },
            Step { dump: "07_netprofiles-01-attached.txt", file: "07_netprofiles.jsonl", line: 26 },
        ],
    );
    assert_equal_store(
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
