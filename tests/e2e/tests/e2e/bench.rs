//! Measurements are for quiet machines; here they are only seen to run.

use std::process::Command;

use serde_json::Value;
use testkit::needs;

#[test]
fn services_are_measured_in_all_ways() {
    needs!(root(), binary("ip"), binary("ethtool"), binary("sysctl"));
    let _machine = testkit::exclusive();
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
        // All came back; interfaces that begin to talk may add a frame of their own.
        assert!(row["done"].as_f64().is_some_and(|done| (1.0..1.01).contains(&done)), "{row}");
    }
}

#[test]
fn rules_are_measured_beside_one() {
    needs!(root(), binary("ip"));
    let _machine = testkit::exclusive();
    let words =
        "bench policy --without-rates --json --unoptimised --rounds 2 --rules 0,3 --calls 400 --node 0";
    let output = Command::new(env!("CARGO_BIN_EXE_lab")).args(words.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = said["policy"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 6);
    for row in rows {
        // Without rules nothing is denied.
        let costs = if row["rules"] == 0 {
            &["known_ns", "first_ns"][..]
        } else {
            &["known_ns", "first_ns", "denied_ns"]
        };
        for cost in costs {
            let told = ["one", "many", "more"].map(|part| row[cost][part].as_f64());
            assert!(
                matches!(told, [Some(one), Some(many), Some(_)] if one > 0.0 && many > 0.0),
                "{cost} of {row}"
            );
        }
    }
    assert_eq!(said["policy_loading"]["rows"].as_array().unwrap().len(), rows.len());
}
