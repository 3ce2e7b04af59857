//! netctl against a real netmaster.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod changes;
mod check;
mod lists;
mod manifest;
mod secure;
mod terminal;

use std::{
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::{Command, Output, Stdio},
};

use e2e::{
    binaries::Binary,
    master::{Master, Options, Store},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{free_port, scratch_dir};

/// A netmaster with an embedded store, and a home directory for netctl.
struct Bench {
    master: Master,
    folder: TempDir,
}

impl Bench {
    fn new() -> Bench {
        let folder = scratch_dir("netctl").unwrap();
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap()));
        let store = Store::Embedded { folder: folder.path().join("state"), listen };
        Bench { master: Master::start(Options::alone(store).unwrap()).unwrap(), folder }
    }

    fn url(&self) -> String {
        format!("http://{}", self.master.client().server())
    }

    fn command(&self, args: &[&str]) -> Command {
        command(&self.url(), self.folder.path(), args)
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Standard output of a command that succeeds without messages.
    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        answer(self.run(args), args)
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    /// As [`Bench::ok`], with standard input.
    #[track_caller]
    fn fed(&self, args: &[&str], input: &str) -> String {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        answer(child.wait_with_output().unwrap(), args)
    }

    /// Error lines of a command that fails with `code` and prints nothing.
    #[track_caller]
    fn refused(&self, args: &[&str], code: i32) -> Vec<String> {
        let output = self.run(args);
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "", "{args:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        stderr.lines().map(|line| line.strip_prefix("netctl: ").unwrap().to_owned()).collect()
    }

    /// Creates an endpoint and returns its address.
    fn endpoint(&self, tenant: &str, network: &str, group: &str, container: &str) -> String {
        let body = json!({
            "TenantName": tenant, "NetworkName": network, "EndpointID": container,
            "EPCommonName": format!("pod-{container}"),
            "ConfigEP": {"Container": container, "Host": "n1", "ServiceName": group},
        });
        let answer = self.master.client().post_json("/plugin/createEndpoint", &body).unwrap();
        answer["EndpointConfig"]["ipAddress"].as_str().unwrap().to_owned()
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn command(url: &str, home: &Path, args: &[&str]) -> Command {
    let mut command = Binary::Netctl.command().unwrap();
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("NETCTL_") || text == "INSECURE" || text == "NO_COLOR" {
            command.env_remove(name);
        }
    }
    command.args(args).env("NETMASTER", url).env("HOME", home).stdin(Stdio::null());
    command
}

#[track_caller]
fn answer(output: Output, args: &[&str]) -> String {
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && stderr.is_empty(), "{args:?}: {} {stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// The example file of the documentation.
fn example() -> &'static str {
    let text = include_str!("../../../../docs/src/netctl.md");
    let (_, rest) = text.split_once("```yaml\n").unwrap();
    rest.split_once("```").unwrap().0
}
