//! netctl without a netmaster.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod completion;

use clap::Parser as _;
use std::{
    io::Write as _,
    net::TcpListener,
    process::{Command, Output, Stdio},
};

/// Command without the configuration of the environment.
fn netctl(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netctl"));
    for name in [
        "NETMASTER",
        "INSECURE",
        "NETCTL_CONTEXT",
        "XDG_CONFIG_HOME",
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

/// Error line and exit code. Standard error must have exactly one line.
#[track_caller]
fn error_line(output: &Output) -> (String, i32) {
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(output.stdout.is_empty());
    (stderr.trim_end().to_owned(), output.status.code().unwrap())
}

/// URL of a port without a listener.
fn unreachable() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[test]
fn unreachable_netmaster_is_reported_with_a_hint() {
    let url = unreachable();
    let (error, code) = error_line(&netctl(&["net", "ls"]).env("NETMASTER", &url).output().unwrap());
    let asked = format!("netctl: GET {url}/api/v1/tenants/default/");
    assert!(error.starts_with(&asked), "{error}");
    assert!(
        error.contains("check that netmaster runs there; --netmaster or NETMASTER sets the URL"),
        "{error}"
    );
    assert_eq!(code, 3);

    // The flag takes precedence over the variable.
    let mut command = netctl(&["--netmaster", &url, "tenant", "ls"]);
    let (error, _) = error_line(&command.env("NETMASTER", "http://127.0.0.1:2").output().unwrap());
    assert!(error.contains(&url), "{error}");
}

#[test]
fn invalid_arguments_are_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let empty = file.path().to_str().unwrap();
    for (args, words, code) in [
        (
            &["--netmaster", "netmaster:9999", "version"][..],
            &["--netmaster", "expected http://HOST:PORT"][..],
            1,
        ),
        (&["--cert", "x", "version"], &["--cert requires --key"], 1),
        (&["--key", "x", "version"], &["--key requires --cert"], 1),
        (&["--cacert", "/nonexistent/ca", "version"], &["read /nonexistent/ca"], 4),
        (&["--cacert", empty, "version"], &["--cacert", "no certificate (PEM)"], 1),
        (&["--cert", empty, "--key", empty, "version"], &["--key", "no private key (PEM)"], 1),
        (&["--token-file", "x", "version"], &["--token-file requires an https URL"], 1),
        (&["get", "nets0"], &["get nets0: expected all, global, aci-gw, tenant, net"], 1),
        (&["get", "all", "x"], &["`all` takes no name"], 1),
        (&["apply", "-f", "/nonexistent/x.yaml"], &["read /nonexistent/x.yaml"], 4),
        (&["apply", "-f", empty], &["no document in the file"], 3),
        (&["policy", "rule-add", "p", "1", "-e", "g"], &["Cant specify to-group for incoming rule"], 1),
        (
            &["policy", "rule-add", "p", "1", "-d", "out", "-i", "1.1.1.1"],
            &["from-ip-address for outgoing"],
            1,
        ),
        (&["policy", "rule-add", "p", "1", "-P", "443"], &["port 443 requires protocol tcp or udp"], 1),
        (&["policy", "rule-add", "p", "1", "-l", "icmp", "-P", "1"], &["port 1 requires"], 1),
        (&["policy", "rule-add", "p", "1", "-l", "132", "-P", "1"], &["port 1 requires"], 1),
        (&["policy", "rule-add", "p", "1", "-P", "-1"], &["port -1: expected a number from 0 to 65535"], 1),
        (&["policy", "rule-add", "p", "1", "-l", "256"], &["protocol 256: expected tcp, udp, icmp or"], 1),
        (&["login"], &["login requires a https"], 3),
    ] {
        let output = netctl(args).env("NETMASTER", unreachable()).output().unwrap();
        let (error, got) = error_line(&output);
        assert!(error.starts_with("netctl: "), "{args:?}: {error}");
        assert!(words.iter().all(|word| error.contains(word)), "{args:?}: {error}");
        assert_eq!(got, code, "{args:?}: {error}");
    }
    for args in [
        &["net", "create", "-s", "10.0.0.0/8", "-g", "10.0", "n"][..],
        &["foo"],
        &["monitor", "--node", "n", "--count", "0"],
        &["net", "ls", "-x"],
        &["net", "ls", "-o", "jsonpath=$[\"\\u"],
        &["net", "ls", "-o", "custom-columns=A:$['\\u"],
        &["wait", "net", "n", "--for", "jsonpath={$[\"\\uD83D\\u"],
        &["apply"],
    ] {
        let output = netctl(args).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(1), true), "{args:?}");
    }
}

#[test]
fn folder_and_standard_input_are_read_and_all_errors_reported() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("b.json"), r#"{"kind": "network", "tenantName": "t", "nope": 1}"#)
        .unwrap();
    std::fs::write(folder.path().join("a.yml"), "kind: tenant\ntenantName: t_1").unwrap();
    std::fs::write(folder.path().join("notes.txt"), "kind: nothing").unwrap();
    let mut child = netctl(&["apply", "-f", "-", "-f", folder.path().to_str().unwrap()])
        .env("NETMASTER", unreachable())
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
fn documented_commands_are_valid() {
    let text = include_str!("../../../../docs/src/netctl.md");
    let commands: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("    netctl ")).collect();
    assert!(commands.len() > 5, "{commands:?}");
    for command in commands {
        let typed = command.split(['#', '>']).next().unwrap();
        let words = typed.split_whitespace().map(|word| word.trim_matches('\''));
        let words = ["netctl"].into_iter().chain(words);
        if let Err(error) = netctl::cli::Cli::try_parse_from(words) {
            panic!("netctl {command}: {error}");
        }
    }
}

#[test]
fn closed_pipe_is_not_reported() {
    let mut child =
        netctl(&["completion", "zsh"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(output.status.code(), Some(4));
}

/// The original checks these before its first request, and exits with 1.
#[test]
fn incomplete_objects_are_usage_errors() {
    let url = unreachable();
    for words in [
        "external-contracts create -c ec1",
        "external-contracts create -c -a= ec1",
        "bgp create h1 --router-ip 50.1.1.1/24",
        "bgp create h1 --router-ip 50.1.1.1/24 -as 1 -neighbor 50.1.1.2",
        "net create -s= n1",
        "policy rule-add -d in -g g1 -n n1 p 1",
        "policy rule-add -d out -e g1 -o n1 p 1",
        "policy rule-add -d=in -to-group=g1 p 1",
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let output = netctl(&words).env("NETMASTER", &url).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {stderr}");
    }
}

/// These are valid: the request fails because no netmaster runs.
#[test]
fn flags_of_the_originals_scripts_are_accepted() {
    let url = unreachable();
    for words in [
        "net create -subnet 10.2.1.0/24 -gateway=10.2.1.254 n1",
        "net create --encap=vlan -subnet=10.2.1.0/24 -pkt-tag 0x10 --tenant= n1",
        "group create -policy=p1 -policy p2 -tag= n1 g1",
        "policy rule-add -direction=in -protocol=tcp -port=80 -action=deny -from-group= p 1",
        "policy rule-add -l 6 -P 443 p 1",
        "policy rule-add -l 017 -P 53 p 1",
        "policy rule-add -l 255 p 1",
        "net ls --quiet --json",
        "net ls -j -j --all=true",
        "service ls more words",
        "app-profile group-list -j ap1",
        "app-profile create -g= ap1",
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let output = netctl(&words).env("NETMASTER", &url).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{words:?}: {stderr}");
    }
    let version = netctl(&["-v"]).output().unwrap();
    assert!(version.status.success() && version.stdout.starts_with(b"netctl "));
}
