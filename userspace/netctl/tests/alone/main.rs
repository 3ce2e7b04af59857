//! What netctl does without a netmaster, or when it does not get to one.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod completion;

use clap::Parser as _;
use std::{
    io::Write as _,
    net::TcpListener,
    process::{Command, Output, Stdio},
};

/// With nothing of the caller's that would configure it.
fn netctl(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netctl"));
    for name in [
        "NETMASTER",
        "INSECURE",
        "NETCTL_CACERT",
        "NETCTL_CERT",
        "NETCTL_KEY",
        "NETCTL_TOKEN_FILE",
        "NO_COLOR",
    ] {
        command.env_remove(name);
    }
    command.args(args).env("HOME", "/nonexistent").stdin(Stdio::null());
    command
}

/// Standard error, held to one line, and the exit code.
#[track_caller]
fn complaint(output: &Output) -> (String, i32) {
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(output.stdout.is_empty());
    (stderr.trim_end().to_owned(), output.status.code().unwrap())
}

/// An address that nothing listens at.
fn nowhere() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[test]
fn a_netmaster_that_is_not_there_is_a_line_that_says_what_to_try() {
    let url = nowhere();
    let (said, code) = complaint(&netctl(&["net", "ls"]).env("NETMASTER", &url).output().unwrap());
    let asked = format!("netctl: GET {url}/api/v1/tenants/default/");
    assert!(said.starts_with(&asked), "{said}");
    assert!(said.contains("is netmaster running there? --netmaster or NETMASTER names another"), "{said}");
    assert_eq!(code, 2);

    // The flag goes before the variable.
    let mut command = netctl(&["--netmaster", &url, "tenant", "ls"]);
    let (said, _) = complaint(&command.env("NETMASTER", "http://127.0.0.1:2").output().unwrap());
    assert!(said.contains(&url), "{said}");
}

#[test]
fn what_is_typed_wrongly_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let empty = file.path().to_str().unwrap();
    for (args, words, code) in [
        (
            &["--netmaster", "netmaster:9999", "version"][..],
            &["--netmaster", "expected http://HOST:PORT"][..],
            1,
        ),
        (&["--cert", "x", "version"], &["--cert needs --key"], 1),
        (&["--key", "x", "version"], &["--key needs --cert"], 1),
        (&["--cacert", "/nonexistent/ca", "version"], &["read /nonexistent/ca"], 4),
        (&["--cacert", empty, "version"], &["--cacert", "no certificate (PEM)"], 1),
        (&["--cert", empty, "--key", empty, "version"], &["--key", "no private key (PEM)"], 1),
        (&["--token-file", "x", "version"], &["--token-file is for https alone"], 1),
        (&["get", "nets0"], &["get nets0: expected all, global, aci-gw, tenant, net"], 1),
        (&["get", "all", "x"], &["`all` takes no name"], 1),
        (&["apply", "-f", "/nonexistent/x.yaml"], &["read /nonexistent/x.yaml"], 4),
        (&["apply", "-f", empty], &["there is no document in it"], 3),
        (&["policy", "rule-add", "p", "1", "-e", "g"], &["Cant specify to-group for incoming rule"], 1),
        (
            &["policy", "rule-add", "p", "1", "-d", "out", "-i", "1.1.1.1"],
            &["from-ip-address for outgoing"],
            1,
        ),
        (&["login"], &["login requires a https"], 3),
    ] {
        let output = netctl(args).env("NETMASTER", nowhere()).output().unwrap();
        let (said, got) = complaint(&output);
        assert!(said.starts_with("netctl: "), "{args:?}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{args:?}: {said}");
        assert_eq!(got, code, "{args:?}: {said}");
    }
    for args in [
        &["net", "create", "-s", "10.0.0.0/8", "-g", "10.0", "n"][..],
        &["foo"],
        &["net", "ls", "-x"],
        &["apply"],
    ] {
        let output = netctl(args).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(1), true), "{args:?}");
    }
}

#[test]
fn a_folder_and_standard_input_are_read_and_all_mistakes_are_told() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("b.json"), r#"{"kind": "network", "tenantName": "t", "nope": 1}"#)
        .unwrap();
    std::fs::write(folder.path().join("a.yml"), "kind: tenant\ntenantName: t_1").unwrap();
    std::fs::write(folder.path().join("notes.txt"), "kind: nothing").unwrap();
    let mut child = netctl(&["apply", "-f", "-", "-f", folder.path().to_str().unwrap()])
        .env("NETMASTER", nowhere())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"kind: rule\nruleId: 1").unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let folder = format!("{}/", folder.path().display());
    let lines: Vec<String> = stderr.lines().map(|line| line.replace(&folder, "")).collect();
    let begins = |at: usize, text: &str| assert!(lines[at].starts_with(text), "{at}: {stderr}");
    begins(0, "netctl: standard input document 1: rule ::1: ruleId 1: expected a name");
    begins(1, "netctl: standard input document 1: rule ::1: tenantName is missing");
    assert!(lines[..5].iter().all(|line| line.contains("standard input")), "{stderr}");
    begins(5, "netctl: a.yml document 1: tenant t_1: tenantName \"t_1\": expected a name");
    begins(6, "netctl: b.json document 1: network t:: nope: no such field");
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn the_commands_of_the_documentation_can_be_typed() {
    let text = include_str!("../../../../docs/src/netctl.md");
    let commands: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("    netctl ")).collect();
    assert!(commands.len() > 5, "{commands:?}");
    for command in commands {
        let typed = command.split(['#', '>']).next().unwrap();
        let words = ["netctl"].into_iter().chain(typed.split_whitespace());
        if let Err(error) = netctl::cli::Cli::try_parse_from(words) {
            panic!("netctl {command}: {error}");
        }
    }
}

#[test]
fn a_reader_that_has_gone_away_is_no_mistake_to_tell_of() {
    let mut child =
        netctl(&["completion", "zsh"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(output.status.code(), Some(4));
}
