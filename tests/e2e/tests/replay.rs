//! The original's answers, recorded, against ours.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;

use e2e::replay;

/// Objects that are built; the rest of the recordings is played but not compared.
const BUILT: &[&str] = &["global", "tenant", "network", "endpointGroup", "plugin", "endpoint"];

/// Everything but what waits for objects that are not built yet (policies, network profiles, clean-up calls) agrees.
fn agrees(folder: &str, waiting: &[(&str, &[usize])]) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let recordings = package.join("recordings").join(folder);
    let declared = package.join("../../docs/compatibility.toml");
    let differing = replay::differing(&recordings, &declared, BUILT).unwrap();
    let mut expected = vec![];
    for (file, lines) in waiting {
        expected.extend(lines.iter().map(|line| (recordings.join(file).display().to_string(), *line)));
    }
    assert_eq!(differing, expected);
}

#[test]
fn objects_and_their_errors_are_those_of_the_original() {
    agrees(
        "a",
        &[
            ("06_policy_rules.jsonl", &[10, 34, 102, 103, 105, 114]),
            ("07_netprofiles.jsonl", &[26, 27, 32, 36, 38, 42]),
        ],
    );
}

#[test]
fn addresses_and_endpoints_are_those_of_the_original() {
    agrees("b", &[("12_plugin_endpoints.jsonl", &[37])]);
}
