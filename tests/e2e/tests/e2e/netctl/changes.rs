//! Changes that netmaster tries, prunes and sends.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Stdio},
};

use super::{Bench, example};

#[test]
fn netmaster_is_asked_what_it_would_refuse() {
    let _machine = testkit::shared();
    let bench = Bench::new();
    bench.fed(&["apply", "-f", "-"], example());
    let text = "- {kind: network, tenantName: blue, networkName: near, encap: vxlan, subnet: 10.36.1.0/25}\n\
                - {kind: group, tenantName: blue, groupName: g, networkName: near}\n\
                - {kind: netprofile, tenantName: blue, profileName: gold, DSCP: 10}\n";
    let file = bench.file("near.yaml", text);
    for args in [&["diff", "-f", &file][..], &["apply", "--dry-run", "-f", &file]] {
        let output = bench.run(args);
        let (stdout, stderr) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        for part in [
            "endpointGroup blue:g not checked by netmaster: network blue:near does not exist yet\n",
            "\n-DSCP: 46\n+DSCP: 10\n",
        ] {
            assert!(stdout.contains(part), "{stdout}");
        }
        let refused = "network blue:near: network lan conflicts with subnet 10.36.1.0/25";
        assert_eq!(stderr, format!("netctl: {file} document 1 item 1: {refused}\n"));
        assert_eq!(output.status.code(), Some(3));
    }
    assert_eq!(bench.ok(&["net", "ls", "-t", "blue", "-q"]), "lan\n");
    let profile = bench.json(&["get", "netprofile", "gold", "-t", "blue", "-o", "json"]);
    assert_eq!(profile["DSCP"], 46);
}

#[test]
fn objects_that_a_file_does_not_have_are_pruned() {
    let _machine = testkit::shared();
    let bench = Bench::new();
    bench.fed(&["apply", "-f", "-"], example());
    bench.fed(&["apply", "-f", "-"], &example().replace("blue", "red"));
    let (start, _) = example().split_once("---\nkind: netprofile").unwrap();
    let file = bench.file("less.yaml", start);
    let deleted = "endpointGroup blue:web deleted\nendpointGroup blue:clients deleted\npolicy blue:web deleted\n\
                   rule blue:web:2 deleted\nrule blue:web:1 deleted\nnetprofile blue:gold deleted\n";
    let unchanged = "tenant blue unchanged\nnetwork blue:lan unchanged\n";
    assert_eq!(bench.run(&["diff", "-f", &file, "--prune", "blue"]).status.code(), Some(5));
    assert_eq!(bench.ok(&["apply", "-f", &file, "--prune", "blue"]), format!("{unchanged}{deleted}"));
    assert_eq!(bench.ok(&["apply", "-f", &file, "--prune", "blue"]), unchanged);
    assert_eq!(bench.ok(&["group", "ls", "-t", "red", "-q"]), "clients\nweb\n");
}

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(bench: &Bench, args: &[&str]) -> Running {
        Running(bench.command(args).stdout(Stdio::piped()).spawn().unwrap())
    }
}

#[test]
fn netmaster_sends_changes() {
    let _machine = testkit::shared();
    let bench = Bench::new();
    let mut watched = Running::start(&bench, &["tenant", "ls", "-q", "-w"]);
    let mut waiting = Running::start(&bench, &["wait", "tenant", "red", "--for=create", "--timeout=1h"]);
    let mut lines = BufReader::new(watched.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut read = |count: usize| lines.by_ref().take(count).collect::<Vec<_>>();
    assert_eq!(read(1), ["default"]);
    bench.ok(&["tenant", "create", "blue"]);
    assert_eq!(read(3), ["", "blue", "default"]);
    bench.ok(&["tenant", "rm", "blue"]);
    assert_eq!(read(2), ["", "default"]);
    bench.ok(&["tenant", "create", "red"]);
    assert_eq!(read(3), ["", "default", "red"]);
    assert!(waiting.0.wait().unwrap().success());
}

#[test]
fn concurrent_changes_of_settings_are_kept() {
    let _machine = testkit::shared();
    let bench = Bench::new();
    let settings = [["-a", "flood"], ["-v", "1-100"], ["-x", "1-200"], ["-s", "172.20.0.0/16"]];
    let mut running: Vec<Running> = settings
        .iter()
        .map(|flags| Running::start(&bench, &[&["global", "set"], &flags[..]].concat()))
        .collect();
    for command in &mut running {
        assert!(command.0.wait().unwrap().success());
    }
    let info = bench.ok(&["global", "info"]);
    for line in [
        "ARP mode: flood\n",
        "Vlan Range: 1-100\n",
        "Vxlan range: 1-200\n",
        "Private subnet: 172.20.0.0/16\n",
    ] {
        assert!(info.contains(line), "{info}");
    }
}
