//! Measurements are for quiet machines; here they are only seen to run.

use std::process::Command;

use serde_json::Value;
use testkit::needs;

#[test]
fn services_are_measured_in_all_ways() {
    needs!(root(), binary("ip"), binary("ethtool"), binary("sysctl"));
    let words = "bench lb --json --unoptimised --rounds 1 --among 4 --seconds 0.02 --exchanges 100 \
                 --frames 10000 --services 1,4 --calls 1000 --flows 500";
    let output = Command::new(env!("CARGO_BIN_EXE_lab")).args(words.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows =
        |part: &str| said[part]["rows"].as_array().unwrap_or_else(|| panic!("no {part} in {said}")).clone();
    let packets = rows("lb");
    assert_eq!(packets.len(), 2);
    for row in &packets {
        for cost in ["floor_ns", "hot_ns", "live_ns", "new_ns"] {
            assert!(row[cost].as_f64().is_some_and(|ns| ns > 0.0), "{cost} of {row}");
        }
    }
    let sides: Vec<_> = rows("lb_connections").iter().map(|row| row["side"].clone()).collect();
    for side in
        ["eBPF pods, same node", "eBPF service, same node", "eBPF service, other node", "routed, no rules"]
    {
        assert!(sides.contains(&side.into()), "{side} is not among {sides:?}");
    }
    assert_eq!(rows("lb_exchange").len(), 2);
    for row in rows("lb_xdp") {
        // All came back; interfaces that begin to talk may add a frame of their own.
        assert!(row["done"].as_f64().is_some_and(|done| (1.0..1.01).contains(&done)), "{row}");
    }
}
