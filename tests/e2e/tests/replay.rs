//! The original's answers, recorded, against ours: all agree, but for the differences that are declared.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;

use e2e::replay;

#[track_caller]
fn agrees(folder: &str) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let recordings = package.join("recordings").join(folder);
    let differing = replay::differing(&recordings, &package.join("../../docs/compatibility.toml")).unwrap();
    assert_eq!(differing, []);
}

#[test]
fn objects_and_their_errors_are_those_of_the_original() {
    agrees("a");
}

#[test]
fn addresses_and_endpoints_are_those_of_the_original() {
    agrees("b");
}
