//! `etcdctl`, as operators use it.

use crate::peer::{Kind, Peer};
use anyhow::{Context, Result, ensure};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;
use testkit::{Process, wait_until};

struct Ctl {
    endpoint: String,
}

impl Ctl {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", self.endpoint)).args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<String> {
        self.run_with(arguments, "")
    }

    fn run_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        let mut command = self.command(arguments);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        child.stdin.take().context("stdin")?.write_all(input.as_bytes())?;
        let output = child.wait_with_output()?;
        let (out, err) =
            (String::from_utf8(output.stdout)?, String::from_utf8_lossy(&output.stderr).into_owned());
        ensure!(output.status.success(), "etcdctl {arguments:?}: {err}{out}");
        Ok(out)
    }
}

#[test]
fn etcdctl_works_with_the_embedded_store() -> Result<()> {
    testkit::needs!(binary("etcdctl"));
    let peer = Peer::start(Kind::Embedded)?;
    let ctl = Ctl { endpoint: peer.endpoint() };
    ensure!(ctl.run(&["put", "/k/a", "1"])? == "OK\n");
    ensure!(ctl.run(&["put", "/k/b", "2"])? == "OK\n");
    ensure!(ctl.run(&["get", "--prefix", "/k/"])? == "/k/a\n1\n/k/b\n2\n");
    ensure!(
        ctl.run(&["get", "--prefix", "/k/", "--limit=1", "--order=DESCEND", "--print-value-only"])? == "2\n"
    );
    ensure!(ctl.run(&["get", "/k/a", "--rev=1"]).is_ok_and(|out| out.is_empty()));
    ensure!(ctl.run(&["put", "--prev-kv", "/k/a", "3"])? == "OK\n/k/a\n1\n");

    let compare = "mod(\"/k/b\") = \"3\"\n\nput /k/c 4\nget /k/a\n\nput /k/d 5\n\n";
    let txn = ctl.run_with(&["txn"], compare)?;
    ensure!(txn.contains("SUCCESS") && txn.contains("OK") && txn.contains("/k/a\n3"), "{txn}");
    ensure!(ctl.run(&["get", "/k/d"])?.is_empty());

    let granted = ctl.run(&["lease", "grant", "60"])?;
    let lease = granted.split_whitespace().nth(1).context("lease id")?.to_owned();
    ensure!(granted.contains("granted with TTL(60s)"), "{granted}");
    ctl.run(&["put", "/k/leased", "5", &format!("--lease={lease}")])?;
    let asked = ctl.run(&["lease", "timetolive", &lease, "--keys"])?;
    ensure!(asked.contains("granted with TTL(60s)") && asked.contains("/k/leased"), "{asked}");
    ensure!(ctl.run(&["lease", "list"])?.contains(&lease));
    ensure!(ctl.run(&["lease", "keep-alive", "--once", &lease])?.contains("keepalived with TTL(60)"));
    ensure!(ctl.run(&["lease", "revoke", &lease])?.contains("revoked"));
    ensure!(ctl.run(&["get", "/k/leased"])?.is_empty());

    let mut watching = ctl.command(&["watch", "--prefix", "/k/", "--rev=2", "--prev-kv"]);
    watching.stdin(Stdio::null());
    let watch = Process::spawn("etcdctl-watch", watching)?;
    ensure!(ctl.run(&["del", "--prefix", "/k/"])? == "3\n");
    let found = wait_until(Duration::from_secs(20), "etcdctl reports the deletion", || {
        let log = watch.log();
        Ok(log.contains("DELETE\n/k/c\n4\n/k/c\n").then_some(log))
    })?;
    ensure!(found.starts_with("PUT\n\n\n/k/a\n1\n") || found.starts_with("PUT\n/k/a\n1\n"), "{found}");

    ensure!(ctl.run(&["compaction", "5"])?.contains("compacted revision 5"));
    ensure!(
        ctl.run(&["get", "/k/a", "--rev=3"]).is_err_and(|e| e.to_string().contains("has been compacted"))
    );
    ctl.run(&["endpoint", "health"])?;
    // With a scheme, etcdctl 3.4 sends an `:authority` that is none, to this one request.
    let bare = Ctl { endpoint: ctl.endpoint.replace("http://", "") };
    ensure!(bare.run(&["endpoint", "status"])?.contains("3.4.0"));
    ensure!(ctl.run(&["member", "list"])?.contains(&peer.endpoint()));
    ensure!(ctl.run(&["lock", "/lock", "true"]).is_ok(), "etcdctl's own lock recipe");
    Ok(())
}
