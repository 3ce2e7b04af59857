//! CNI calls with an agent that uses TLS, a client certificate and a token for netmaster.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::Output,
    time::Duration,
};

use e2e::{
    binaries::Binary,
    cluster::{Call, Network},
    http::Client,
};
use serde_json::Value;
use testkit::{Authority, Certified, Netns, Process, needs, scratch_dir, write_secret};

const DEADLINE: Duration = Duration::from_secs(30);
const MASTER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9999);
const AGENT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);
const OPS: &str = "token-of-the-agents-0123";
const NEXT: &str = "token-of-the-next-month-0123";
const BOARD: &str = "token-of-the-board-0123";

/// All processes, on the loopback of one namespace.
struct Site {
    folder: tempfile::TempDir,
    home: Netns,
    authority: Authority,
    own: Certified,
    master: Process,
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

impl Site {
    fn new() -> Site {
        let (folder, authority) = (scratch_dir("secure").unwrap(), Authority::new().unwrap());
        let home = Netns::new("node").unwrap();
        let server = authority.sign("netmaster", &["127.0.0.1"]).unwrap();
        let own = authority.sign("agent", &["agent"]).unwrap();
        let tokens = folder.path().join("tokens");
        write_secret(&tokens, &format!("agents write {OPS}\nboard read {BOARD}\n")).unwrap();
        let mut command = Binary::Netmaster.command().unwrap();
        command
            .args(["--mode", "test", "--netmode", "vlan", "--fwdmode", "bridge"])
            .args(["--external-address", &MASTER.to_string(), "--internal-address", &MASTER.to_string()])
            .args(["--store", &format!("embedded:{}", folder.path().join("state").display())])
            .args(["--tls-cert", text(&server.certificate), "--tls-key", text(&server.key)])
            .args(["--client-ca", text(&authority.ca), "--token-file", text(&tokens)]);
        let master = Process::spawn_in(&home, "netmaster", command).unwrap();
        let mut site = Site { folder, home, authority, own, master };
        write_secret(&site.token_file(OPS), OPS).unwrap();
        write_secret(&site.token_file(BOARD), BOARD).unwrap();
        let log = site.master.log_path().to_owned();
        let leads = || Ok(std::fs::read_to_string(&log)?.contains("leading; ready").then_some(()));
        site.master.wait_ready(DEADLINE, "netmaster leads", leads).unwrap();
        site
    }

    fn token_file(&self, token: &str) -> std::path::PathBuf {
        self.folder.path().join(token)
    }

    fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("cni.sock")
    }

    /// Runs netctl, which must succeed, and returns its output.
    #[track_caller]
    fn netctl(&self, words: &[&str]) -> String {
        let mut command = Binary::Netctl.command().unwrap();
        command
            .env("HOME", self.folder.path())
            .args(["--netmaster", &format!("https://{MASTER}"), "--cacert", text(&self.authority.ca)])
            .args(["--cert", text(&self.own.certificate), "--key", text(&self.own.key)])
            .args(["--token-file", text(&self.token_file(OPS))])
            .args(words);
        let Output { status, stdout, stderr } = self.home.run(move || Ok(command.output()?)).unwrap();
        assert!(status.success(), "{words:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap()
    }

    fn agent(&self, token: &str) -> Process {
        let store = self.folder.path().join("state/store.sock");
        let mut command = Binary::Netplugin.command().unwrap();
        command
            .args(["--etcd", &format!("unix:{}", store.display())])
            .args(["--mode", "test", "--netmode", "vlan", "--fwdmode", "bridge", "--datapath", "fake"])
            .args(["--host", "node1", "--ctrl-ip", "127.0.0.1", "--vtep-ip", "127.0.0.1"])
            .args(["--vlan-uplinks", "lo", "--rest-address", &AGENT.to_string()])
            .args(["--cni-socket", text(&self.socket()), "--log-level", "trace"])
            .args(["--master-ca", text(&self.authority.ca)])
            .args(["--master-cert", text(&self.own.certificate), "--master-key", text(&self.own.key)])
            .args(["--master-token-file", text(&self.token_file(token))]);
        let mut agent = Process::spawn_in(&self.home, "netplugin", command).unwrap();
        let client = Client::within(&self.home, AGENT);
        let ready = || Ok((client.get("/readyz")?.status == 200).then_some(()));
        agent.wait_ready(DEADLINE, "the agent is ready", ready).unwrap();
        agent
    }
}

fn answer(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}

#[test]
fn pods_are_added_and_deleted_with_tls_and_token() {
    needs!(root());
    let _machine = testkit::shared();
    let (site, network) = (Site::new(), Network::pods());
    site.netctl(&["tenant", "create", "blue"]);
    site.netctl(&["network", "create", "-t", "blue", "-s", &network.subnet, "-g", &network.gateway, "pods"]);
    let pod = Netns::new("pod").unwrap();
    let call = Call::at(&site.socket(), &network, "web-1", &pod);
    let endpoints = || site.netctl(&["endpoint", "ls", "-t", "blue", "-o", "json"]);

    // A read-only token: ADD fails at once and leaves nothing.
    let mut agent = site.agent(BOARD);
    let refused = answer(&call.run_in(&site.home, "ADD").unwrap());
    assert!(
        refused["details"].to_string().contains("requires admin or agent"),
        "{refused}\n{}",
        agent.tail()
    );
    assert!(pod.links().unwrap().is_empty());
    agent.terminate(DEADLINE).unwrap();

    let mut agent = site.agent(OPS);
    let added = call.run_in(&site.home, "ADD").unwrap();
    assert!(added.status.success(), "{}\n{}", answer(&added), agent.tail());
    assert_eq!(answer(&added)["ips"][0]["address"], "10.1.0.1/16");
    assert_eq!(pod.links().unwrap(), ["eth0"]);
    assert!(endpoints().contains("10.1.0.1"), "{}", endpoints());

    // The token is replaced: the agent must use the new one.
    write_secret(&site.folder.path().join("tokens"), &format!("agents write {NEXT}\n")).unwrap();
    write_secret(&site.token_file(OPS), NEXT).unwrap();
    for log in [agent.log_path(), site.master.log_path()].map(Path::to_owned) {
        let loaded = || Ok(std::fs::read_to_string(&log)?.contains(": reloaded").then_some(()));
        testkit::wait_until(DEADLINE, "the new token is read", loaded).unwrap();
    }
    let deleted = call.run_in(&site.home, "DEL").unwrap();
    assert!(deleted.status.success(), "{}\n{}", answer(&deleted), agent.tail());
    assert!(!endpoints().contains("10.1.0.1"), "{}", endpoints());
    assert!(pod.links().unwrap().is_empty());
    agent.terminate(DEADLINE).unwrap();
    for log in [agent.log(), site.master.log()] {
        assert!([OPS, NEXT, BOARD].iter().all(|token| !log.contains(token)), "a token is in a log:\n{log}");
    }
}
