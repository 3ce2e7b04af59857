//! The agent as a process, with BIRD as the leaf switch of its node.

mod outage;

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use contiv_model::{
    bgp,
    key::{Key, LEADER, ObjectType},
};
use contiv_store::{Config, Store, Txn, embedded};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{Bird, Netns, Process, needs, wait_until};

use crate::world::{Call, HOST, VTEP, master::Master, put};

const TIMEOUT: Duration = Duration::from_secs(120);
const LEAF: &str = "log stderr all;
router id 50.1.1.2;
protocol device {}
protocol bgp node {
    local 50.1.1.2 as 65001;
    neighbor 50.1.1.1 as 65000;
    passive on; error wait time 1, 2;
    graceful restart on; graceful restart time 120;
    ipv4 { import all; export where source = RTS_STATIC; };
    ipv6 { import all; export where source = RTS_STATIC; next hop address 2001:db8:50::2; };
}
protocol static { ipv4; route 20.1.0.0/16 blackhole; }
protocol static { ipv6; route 2001:db8:20::/48 blackhole; }
";
const POD: [(&str, &str); 2] = [("10.9.0.1/32", "via 50.1.1.1"), ("2001:db8:9::1/128", "via 2001:db8:50::1")];
const SECOND: [(&str, &str); 2] =
    [("10.9.0.2/32", "via 50.1.1.1"), ("2001:db8:9::2/128", "via 2001:db8:50::1")];

/// A node with a link to its leaf, a store, and a scripted netmaster whose network is a VLAN.
struct Fabric {
    node: Netns,
    leaf: Bird,
    store: Store,
    /// `None` while the store is stopped.
    server: Option<embedded::Server>,
    listen: SocketAddr,
    _master: Master,
    directory: TempDir,
    endpoint: String,
    rest: String,
}

impl Fabric {
    /// Runs `test` in the namespace of the node.
    fn run(test: impl AsyncFnOnce(Fabric) -> Result<()> + Send) -> Result<()> {
        let (node, leaf) = (Netns::new("node")?, Netns::new("leaf")?);
        node.veth("eth0", &leaf, "eth0")?;
        for (namespace, number) in [(&node, 1), (&leaf, 2)] {
            namespace.address("eth0", &format!("50.1.1.{number}/24"))?;
            namespace.address("eth0", &format!("2001:db8:50::{number}/64"))?;
            namespace.up("eth0")?;
        }
        let leaf = Bird::start(&leaf, LEAF)?;
        let namespace = node.clone();
        node.run(|| {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async { test(Fabric::new(namespace, leaf).await?).await })
        })
    }

    async fn new(node: Netns, leaf: Bird) -> Result<Fabric> {
        let directory = testkit::scratch_dir("bgp")?;
        let listen = ([127, 0, 0, 1], testkit::free_port()?).into();
        let server = Some(embedded::Server::open(&directory.path().join("store"), listen).await?);
        let endpoint = format!("http://{listen}");
        let store = Store::connect(&Config::new([endpoint.clone()])).await?;
        let master = Master::start_on(store.clone(), "vlan", 7).await;
        let _committed = store.commit(Txn::new().put(LEADER, master.address().to_owned())).await?;
        let rest = format!("127.0.0.1:{}", testkit::free_port()?);
        let fabric = Fabric { node, leaf, store, server, listen, _master: master, directory, endpoint, rest };
        fabric.set_mode("routing").await;
        Ok(fabric)
    }

    async fn set_mode(&self, mode: &str) {
        let config = json!({ "id": "", "nw-infra-type": "default", "fwd-mode": mode, "arp-mode": "proxy",
                             "pvt-subnet": "172.19.0.0/16" });
        put(&self.store, &Key::MasterConfig, &config).await;
    }

    /// Writes the settings of the node, as netmaster does.
    async fn set_neighbor(&self, neighbor: &str, neighbor_as: &str) {
        let state = bgp::State {
            id: HOST.into(),
            hostname: HOST.into(),
            router_ip: "50.1.1.1/24".into(),
            asn: "65000".into(),
            neighbor_as: neighbor_as.into(),
            neighbor: neighbor.into(),
        };
        put(&self.store, &Key::Object(ObjectType::Bgp, HOST.into()), &json!({ "key": HOST })).await;
        put(&self.store, &Key::Bgp(HOST.into()), &state).await;
    }

    async fn delete_settings(&self) -> Result<()> {
        let keys = [Key::Object(ObjectType::Bgp, HOST.into()), Key::Bgp(HOST.into())];
        let txn = keys.iter().fold(Txn::new(), |txn, key| txn.delete(key.to_string()));
        self.store.commit(txn).await.map(drop).map_err(Into::into)
    }

    fn start_agent(&self) -> Result<Process> {
        let agent = self.spawn_agent()?;
        self.wait_ready(&agent)?;
        Ok(agent)
    }

    fn spawn_agent(&self) -> Result<Process> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netplugin"));
        command.args(["--mode", "test", "--datapath", "fake", "--netmode", "vxlan", "--fwdmode", "routing"]);
        command.args(["--host", HOST, "--vtep-ip", VTEP, "--ctrl-ip", VTEP, "--etcd", &self.endpoint]);
        command.args(["--rest-address", &self.rest]);
        command.arg("--cni-socket").arg(self.file("cni.sock"));
        Process::spawn_in(&self.node, "netplugin", command)
    }

    fn wait_ready(&self, agent: &Process) -> Result<()> {
        wait_until(TIMEOUT, "the agent to be ready", || {
            Ok(self.get("/readyz").is_ok_and(|(code, _)| code == 200).then_some(()))
        })
        .with_context(|| agent.tail())
    }

    /// A file of the agent or of the store.
    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Status code and body.
    fn get(&self, path: &str) -> Result<(u16, String)> {
        let mut stream = TcpStream::connect(&self.rest)?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: node\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("a head")?;
        let code = head.split(' ').nth(1).context("a status code")?.parse()?;
        Ok((code, body.to_owned()))
    }

    fn json(&self, path: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.get(path)?.1)?)
    }

    fn wait_session(&self, state: &str) -> Result<Value> {
        wait_until(TIMEOUT, &format!("the session to be {state}"), || {
            let answer = self.json("/inspect/bgp")?;
            if answer["peers"][0]["state"]["session-state"] == state {
                Ok(Some(answer))
            } else {
                bail!("{answer}")
            }
        })
    }

    fn wait_degraded(&self, part: &str) -> Result<()> {
        wait_until(TIMEOUT, &format!("{part:?} in the degraded conditions"), || {
            let degraded = self.json("/readyz")?["degraded"].to_string();
            if degraded.contains(part) { Ok(Some(())) } else { bail!("{degraded}") }
        })
    }

    async fn call(&self, command: &str, container: &str, pod: &Netns) -> Result<()> {
        let netns = pod.path().display().to_string();
        let call = Call { container, netns: &netns, ..Call::new(command) };
        match call.send(&self.file("cni.sock")).await {
            Ok(_) => Ok(()),
            Err(refusal) => bail!("{command}: {refusal:?}"),
        }
    }

    /// The record that netmaster reads.
    async fn oper(&self) -> Result<Option<bgp::Oper>> {
        let found = self.store.get(&Key::BgpOper(HOST.into()).to_string()).await?;
        Ok(found.map(|record| serde_json::from_slice(&record.value)).transpose()?)
    }

    async fn until_oper(&self, what: &str, condition: impl Fn(Option<&bgp::Oper>) -> bool) -> Result<()> {
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            let oper = self.oper().await?;
            if condition(oper.as_ref()) {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                bail!("{what}: {oper:?}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[test]
fn leaf_has_the_routes_of_pods_while_they_exist() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"));
    let (pod, other) = (Netns::new("pod")?, Netns::new("pod")?);
    Fabric::run(async |fabric| {
        let mut agent = fabric.start_agent()?;
        assert_eq!(fabric.get("/inspect/bgp")?, (500, "Error fetching bgp\n".to_owned()));
        fabric.set_neighbor("50.1.1.2", "65001").await;
        fabric.wait_session("established")?;
        fabric.leaf.expect_routes("node", &[])?;

        fabric.call("ADD", "c1", &pod).await?;
        fabric.leaf.expect_routes("node", &POD)?;
        let routes = json!(["10.9.0.1/32", "20.1.0.0/16", "2001:db8:9::1/128", "2001:db8:20::/48"]);
        // Those of the leaf may arrive later than it has received ours.
        let answer = wait_until(TIMEOUT, "the routes of both sides", || {
            Ok(Some(fabric.json("/inspect/bgp")?).filter(|answer| answer["dsts"] == routes))
        })?;
        let learnt =
            json!({ "prefix": "20.1.0.0/16", "next-hop": "50.1.1.2", "as-path": [65001], "stale": false });
        assert_eq!(answer["routes"][0], learnt);
        for line in [
            r#"contiv_bgp_session_established{neighbor="50.1.1.2"} 1"#,
            r#"contiv_bgp_routes{neighbor="50.1.1.2",table="received"} 2"#,
            r#"contiv_bgp_routes{neighbor="50.1.1.2",table="advertised"} 2"#,
        ] {
            // The leaf has the routes before the speaker has counted them.
            wait_until(TIMEOUT, line, || Ok(fabric.get("/metrics")?.1.contains(line).then_some(())))?;
        }
        let reported = |oper: Option<&bgp::Oper>| {
            oper.is_some_and(|oper| oper.neighbor_status == "established" && oper.num_routes == 4)
        };
        fabric.until_oper("the record of the session", reported).await?;
        assert!(!fabric.json("/readyz")?["degraded"].to_string().contains("BGP"));

        // The leaf keeps the routes while the agent restarts, also after a kill.
        for how in ["stop", "kill"] {
            match how {
                "stop" => assert!(agent.terminate(TIMEOUT)?.success(), "{}", agent.tail()),
                _ => agent.kill()?,
            }
            let lost = || Ok((!fabric.leaf.is_established("node")?).then_some(()));
            wait_until(TIMEOUT, "BIRD to lose the session", lost)?;
            fabric.leaf.expect_routes("node", &POD).context(how)?;
            agent = fabric.start_agent()?;
            fabric.wait_session("established")?;
            let again = || Ok(fabric.leaf.is_established("node")?.then_some(()));
            wait_until(TIMEOUT, "BIRD to have the session again", again)?;
            for _ in 0..20 {
                assert_eq!(fabric.leaf.routes("node")?.len(), 2, "{how}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        fabric.call("ADD", "c2", &other).await?;
        fabric.leaf.expect_routes("node", &[POD, SECOND].concat())?;
        fabric.call("DEL", "c1", &pod).await?;
        fabric.leaf.expect_routes("node", &SECOND)?;
        assert!(fabric.file("cni.bgp.json").exists());
        // Without the settings the leaf drops the routes at once.
        fabric.delete_settings().await?;
        fabric.leaf.expect_routes("node", &[])?;
        fabric.until_oper("no record", |oper| oper.is_none()).await?;
        assert!(!fabric.file("cni.bgp.json").exists());
        assert_eq!(fabric.get("/inspect/bgp")?.0, 500);
        assert!(agent.terminate(TIMEOUT)?.success(), "{}", agent.tail());
        Ok(())
    })
}

/// Those of the earlier leaf switch lead to it, also if the settings were deleted in between.
#[test]
fn routes_are_kept_for_the_same_leaf_switch_only() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"));
    Fabric::run(async |fabric| {
        let mut agent = fabric.start_agent()?;
        for (neighbor, keeps_routes) in [("50.1.1.2", true), ("50.1.1.2", true), ("50.1.1.3", false)] {
            fabric.set_neighbor(neighbor, "65001").await;
            let started = || {
                let log = agent.log();
                let line = log.lines().rfind(|line| line.contains("starting the BGP speaker"));
                Ok(line.filter(|line| line.contains(neighbor)).map(str::to_owned))
            };
            let line = wait_until(TIMEOUT, "the session starts", started)?;
            assert!(line.contains(&format!("keeps_routes={keeps_routes}")), "{line}");
            fabric.delete_settings().await?;
            let ended = || Ok((fabric.get("/inspect/bgp")?.0 == 500).then_some(()));
            wait_until(TIMEOUT, "the end of the session", ended)?;
        }
        assert!(agent.terminate(TIMEOUT)?.success(), "{}", agent.tail());
        Ok(())
    })
}

#[test]
fn session_follows_its_settings() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"));
    Fabric::run(async |fabric| {
        let _agent = fabric.start_agent()?;
        fabric.set_neighbor("50.1.1.2", "65002").await;
        fabric.wait_degraded("is in AS 65001, expected AS 65002")?;
        let reported =
            |oper: Option<&bgp::Oper>| oper.is_some_and(|oper| oper.failure.contains("expected AS 65002"));
        fabric.until_oper("the failure in the record", reported).await?;
        fabric.set_neighbor("50.1.1.3", "65001").await;
        fabric.wait_degraded("BGP neighbor 50.1.1.3")?;
        fabric.set_neighbor("50.1.1.2", "none").await;
        fabric.wait_degraded("neighbor-as: AS number")?;
        // The last valid settings stay in effect.
        assert_eq!(fabric.json("/inspect/bgp")?["peers"][0]["config"]["neighbor-address"], "50.1.1.3");
        fabric.set_neighbor("50.1.1.2", "65001").await;
        fabric.wait_session("established")?;

        fabric.set_mode("bridge").await;
        fabric.wait_degraded("the forward mode is not routing")?;
        let down = |oper: Option<&bgp::Oper>| oper.is_some_and(|oper| oper.admin_status == "down");
        fabric.until_oper("the end of the session in the record", down).await?;
        fabric.set_mode("routing").await;
        fabric.wait_session("established")?;
        Ok(())
    })
}

/// Privacy addresses and prefixes that are renumbered come and go. IPv4 does not depend on them.
#[test]
fn session_outlives_the_next_hop_of_ipv6() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"), binary("ip"));
    let pod = Netns::new("pod")?;
    Fabric::run(async |fabric| {
        let mut agent = fabric.start_agent()?;
        fabric.set_neighbor("50.1.1.2", "65001").await;
        fabric.wait_session("established")?;
        fabric.call("ADD", "c1", &pod).await?;
        fabric.leaf.expect_routes("node", &POD)?;

        let [ipv4, (ipv6, _)] = POD;
        let expect = |what: &str, next_hop: Option<&str>| {
            let via = next_hop.map(|address| format!("via {address}"));
            wait_until(TIMEOUT, what, || {
                let routes = fabric.leaf.routes("node")?;
                let has = |(prefix, part): (&str, &str)| {
                    routes.iter().any(|(found, text)| found == prefix && text.contains(part))
                };
                // An error would lead to another attempt.
                assert!(has(ipv4), "{what}: {routes:?}");
                let is_expected = match &via {
                    Some(via) => has((ipv6, via.as_str())),
                    None => routes.len() == 1,
                };
                if is_expected { Ok(Some(())) } else { bail!("{routes:?}") }
            })
        };
        let (first, second) = ("2001:db8:50::1", "2001:db8:50::b");
        let remove = |address: &str| fabric.node.ip(&format!("address del {address}/64 dev eth0")).map(drop);
        for (from, to) in [(first, second), (second, first)] {
            fabric.node.address("eth0", &format!("{to}/64"))?;
            remove(from)?;
            expect("another next hop", Some(to))?;
        }
        remove(first)?;
        expect("no next hop", None)?;
        fabric.node.address("eth0", &format!("{first}/64"))?;
        expect("a next hop again", Some(first))?;
        assert_eq!(agent.log().matches("starting the BGP speaker").count(), 1, "{}", agent.log());
        assert!(agent.terminate(TIMEOUT)?.success(), "{}", agent.tail());
        Ok(())
    })
}
