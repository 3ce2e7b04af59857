//! Smoke tests of the benchmarks; results are meaningless on a busy machine.

use std::process::Command;

use serde_json::Value;
use testkit::needs;

#[test]
fn service_benchmark_produces_all_results() {
    needs!(root(), binary("ip"), binary("ethtool"), binary("sysctl"));
    let _machine = testkit::exclusive();
    let arguments = "bench lb --json --unoptimised --rounds 1 --among 4 --seconds 0.02 --exchanges 100 \
                 --frames 10000 --services 1,4 --calls 1000 --flows 500";
    let output = Command::new(env!("CARGO_BIN_EXE_lab")).args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = |part: &str| {
        results[part]["rows"].as_array().unwrap_or_else(|| panic!("no {part} in {results}")).clone()
    };
    let packets = rows("lb");
    assert_eq!(packets.len(), 2);
    for row in &packets {
        for cost in ["floor_ns", "hot_ns", "live_ns", "new_ns", "direct_ns"] {
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
        // All frames returned; new interfaces may send a few frames of their own.
        assert!(row["done"].as_f64().is_some_and(|done| (1.0..1.01).contains(&done)), "{row}");
    }
}

#[test]
fn policy_benchmark_produces_all_results() {
    needs!(root(), binary("ip"));
    let _machine = testkit::exclusive();
    let arguments =
        "bench policy --without-rates --json --unoptimised --rounds 2 --rules 0,3 --calls 400 --node 0";
    let output = Command::new(env!("CARGO_BIN_EXE_lab")).args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = results["policy"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 6);
    for row in rows {
        // Without rules nothing is denied.
        let costs = if row["rules"] == 0 {
            &["known_ns", "first_ns"][..]
        } else {
            &["known_ns", "first_ns", "denied_ns"]
        };
        for cost in costs {
            let values = ["one", "many", "more"].map(|part| row[cost][part].as_f64());
            assert!(
                matches!(values, [Some(one), Some(many), Some(_)] if one > 0.0 && many > 0.0),
                "{cost} of {row}"
            );
        }
    }
    assert_eq!(results["policy_loading"]["rows"].as_array().unwrap().len(), rows.len());
}
