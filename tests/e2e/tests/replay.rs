//! The original's answers, recorded, against ours.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;

use e2e::replay;

/// Objects that are built; the rest of the recordings is played but not compared.
const BUILT: &[&str] = &[
    "Bgp",
    "debug",
    "endpoint",
    "endpointGroup",
    "global",
    "netprofile",
    "network",
    "plugin",
    "policy",
    "rule",
    "tenant",
];

/// Everything agrees but what `docs/compatibility.toml` declares.
fn agrees(folder: &str) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let recordings = package.join("recordings").join(folder);
    let declared = package.join("../../docs/compatibility.toml");
    assert_eq!(replay::differing(&recordings, &declared, BUILT).unwrap(), []);
}

#[test]
fn objects_and_their_errors_are_those_of_the_original() {
    agrees("a");
}

#[test]
fn addresses_and_endpoints_are_those_of_the_original() {
    agrees("b");
}
