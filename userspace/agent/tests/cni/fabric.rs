//! Two nodes that route a VLAN network, each with the agent as a process, with Open vSwitch or eBPF programs, and BIRD as their leaf
//! switch.

mod replacement;
mod surroundings;

use std::{
    io::{Read as _, Write as _},
    net::IpAddr,
    os::unix::net::UnixStream,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use contiv_model::{
    bgp,
    key::{Key, LEADER, ObjectType},
    network,
};
use contiv_store::{Config, Store, Txn, embedded};
use nix::mount::{MntFlags, umount2};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{Bird, Netns, Pinger, Process, needs, ovs::Switch, wait_until};

use crate::world::{Call, HOST, master::Master, put};

const TIMEOUT: Duration = Duration::from_secs(120);
/// An address of the leaf switch that no interface of a node is near to.
const SERVER: &str = "203.0.113.1";

/// The nodes have different AS numbers: else they would ignore each other's routes (RFC 4271 section 9.1.2).
const LEAF: &str = "log stderr all;
router id 50.1.1.2;
protocol device {}
protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; }
protocol kernel { ipv6 { import none; export where source = RTS_BGP; }; }
protocol static { ipv4; route 0.0.0.0/0 blackhole; }
template bgp node {
    passive on; error wait time 1, 2;
    graceful restart on; graceful restart time 120;
}
protocol bgp one from node {
    local 50.1.1.2 as 65001; neighbor 50.1.1.1 as 65011;
    ipv4 { import all; export all; };
    ipv6 { import all; export all; next hop address 2001:db8:50:1::2; };
}
protocol bgp two from node {
    local 50.1.2.2 as 65001; neighbor 50.1.2.1 as 65012;
    ipv4 { import all; export all; };
    ipv6 { import all; export all; next hop address 2001:db8:50:2::2; };
}
";

/// Datapath of a node.
#[derive(Clone, Copy)]
enum Kind {
    Ovs,
    Ebpf,
}

/// A node behind the leaf switch.
struct Site {
    /// 1 or 2.
    number: u8,
    namespace: Netns,
    /// Datapath of the next agent.
    kind: Kind,
    /// None of a node that begins with eBPF programs.
    switch: Option<Switch>,
    directory: TempDir,
    agent: Option<Process>,
}

impl Drop for Site {
    fn drop(&mut self) {
        // What an agent with eBPF programs has mounted.
        _ = umount2(&self.file("bpf"), MntFlags::MNT_DETACH);
    }
}

impl Site {
    fn new(number: u8, kind: Kind, leaf: &Netns) -> Result<Site> {
        let namespace = Netns::new(&format!("node{number}"))?;
        namespace.up("lo")?;
        namespace.veth("eth0", leaf, &format!("eth{number}"))?;
        for (end, link, last) in [(&namespace, "eth0".to_owned(), 1), (leaf, format!("eth{number}"), 2)] {
            end.address(&link, &format!("50.1.{number}.{last}/24"))?;
            end.address(&link, &format!("2001:db8:50:{number}::{last}/64"))?;
            end.up(&link)?;
        }
        // The way to netmaster.
        let other = 3 - number;
        namespace.ip(&format!("route add 50.1.{other}.0/24 via 50.1.{number}.2"))?;
        let switch = match kind {
            Kind::Ovs => Some(Switch::start(&namespace)?),
            Kind::Ebpf => None,
        };
        let directory = testkit::scratch_dir("site")?;
        Ok(Site { number, namespace, kind, switch, directory, agent: None })
    }

    fn host(&self) -> String {
        format!("{HOST}-{}", self.number)
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netplugin"));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    fn datapath(&self, command: &mut Command) {
        if let Some(switch) = &self.switch {
            command.args(["--ovs-datapath-type", "netdev"]);
            command.arg("--ovsdb").arg(format!("unix:{}", switch.socket().display()));
        }
        let datapath = match self.kind {
            Kind::Ovs => "ovs",
            Kind::Ebpf => "ebpf",
        };
        command.args(["--datapath", datapath, "--bpf-root"]).arg(self.file("bpf"));
        command.arg("--cni-socket").arg(self.file("cni.sock"));
    }

    fn start_agent(&mut self, store: &str) -> Result<()> {
        self.start_agent_with(store, &[])
    }

    /// Starts the agent with additional flags, and waits until it is ready.
    fn start_agent_with(&mut self, store: &str, flags: &[&str]) -> Result<()> {
        let agent = self.spawn_agent_with(store, flags)?;
        let ready = wait_until(TIMEOUT, "the agent to be ready", || {
            Ok(self.get("/readyz").is_ok_and(|(code, _)| code == 200).then_some(()))
        });
        ready.with_context(|| agent.tail())?;
        self.agent = Some(agent);
        Ok(())
    }

    /// As [`start_agent_with`](Self::start_agent_with), without waiting.
    fn spawn_agent_with(&self, store: &str, flags: &[&str]) -> Result<Process> {
        let mut command = self.command();
        self.datapath(&mut command);
        command.args(["--mode", "cni", "--netmode", "vlan", "--fwdmode", "routing", "--etcd", store]);
        let address = format!("50.1.{}.1", self.number);
        command.args(["--host", &self.host(), "--vtep-ip", &address, "--ctrl-ip", &address]);
        command.arg("--rest-socket").arg(self.file("rest.sock")).args(flags);
        Process::spawn_in(&self.namespace, "netplugin", command)
    }

    fn switch(&mut self) -> Result<&mut Switch> {
        self.switch.as_mut().context("the node has a switch")
    }

    fn agent(&mut self) -> Result<&mut Process> {
        self.agent.as_mut().context("the agent runs")
    }

    /// Status code and body.
    fn get(&self, path: &str) -> Result<(u16, String)> {
        let mut stream = UnixStream::connect(self.file("rest.sock"))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: node\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("a head")?;
        let code = head.split(' ').nth(1).context("a status code")?.parse()?;
        Ok((code, body.to_owned()))
    }

    fn degraded(&self) -> Result<String> {
        let body: Value = serde_json::from_str(&self.get("/readyz")?.1)?;
        Ok(body["degraded"].to_string())
    }

    async fn call(&self, command: &str, container: &str, pod: &Netns) -> Result<()> {
        let netns = pod.path().display().to_string();
        let call = Call { container, netns: &netns, ..Call::new(command) };
        match call.send(&self.file("cni.sock")).await {
            Ok(_) => Ok(()),
            Err(refusal) => bail!("{command}: {refusal:?}"),
        }
    }

    /// The rules and routes of the agent in the kernel, sorted.
    fn kernel(&self) -> Result<Vec<String>> {
        let mut lines = vec![];
        for family in ["-4", "-6"] {
            let rules = self.namespace.ip(&format!("{family} rule show"))?;
            let own = |line: &&str| line.contains("298") || line.contains("inb01");
            lines.extend(rules.lines().filter(own).map(str::to_owned));
            for table in ["2981", "2982"] {
                // Fails if the table does not exist.
                let routes =
                    self.namespace.ip(&format!("{family} route show table {table}")).unwrap_or_default();
                lines.extend(routes.lines().map(|line| format!("{table}: {}", line.trim())));
            }
        }
        lines.sort();
        Ok(lines)
    }

    /// The flows of the switch, or the interfaces of the node.
    fn flows(&self) -> Result<Vec<String>> {
        let Some(switch) = &self.switch else { return self.namespace.links() };
        let dump = switch.ofctl("dump-flows", "contivVlanBridge", &["--no-stats"])?;
        let mut flows: Vec<String> = dump.lines().map(|line| line.trim().to_owned()).collect();
        flows.sort();
        Ok(flows)
    }
}

/// The leaf switch, which has the store and a scripted netmaster.
struct Fabric {
    leaf: Bird,
    namespace: Netns,
    one: Site,
    two: Site,
    store: Store,
    endpoint: String,
    _server: embedded::Server,
    _master: Master,
    _directory: TempDir,
}

impl Fabric {
    fn run(kinds: [Kind; 2], test: impl AsyncFnOnce(Fabric) -> Result<()> + Send) -> Result<()> {
        let namespace = Netns::new("leaf")?;
        namespace.up("lo")?;
        namespace.address("lo", &format!("{SERVER}/32"))?;
        let [one, two] = kinds;
        let (one, two) = (Site::new(1, one, &namespace)?, Site::new(2, two, &namespace)?);
        for parameter in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            namespace.sysctl(parameter, "1")?;
        }
        let leaf = Bird::start(&namespace, LEAF)?;
        let inside = namespace.clone();
        namespace.run(|| {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async { test(Fabric::new(inside, leaf, one, two).await?).await })
        })
    }

    async fn new(namespace: Netns, leaf: Bird, one: Site, two: Site) -> Result<Fabric> {
        let directory = testkit::scratch_dir("fabric")?;
        let listen = ([50, 1, 1, 2], testkit::free_port()?).into();
        let server = embedded::Server::open(&directory.path().join("store"), listen).await?;
        let endpoint = server.endpoint();
        let store = Store::connect(&Config::new([endpoint.clone()])).await?;
        let network = network::State { ipv6_gateway: "2001:db8:9::fe".into(), ..Master::network("vlan", 0) };
        let master = Master::start_at(store.clone(), network, "50.1.1.2").await;
        let _committed = store.commit(Txn::new().put(LEADER, master.address().to_owned())).await?;
        let mut fabric = Fabric {
            leaf,
            namespace,
            one,
            two,
            store,
            endpoint,
            _server: server,
            _master: master,
            _directory: directory,
        };
        fabric.set_mode("routing").await;
        for number in [1, 2] {
            fabric.create_speaker(number).await;
        }
        let endpoint = fabric.endpoint.clone();
        fabric.one.start_agent(&endpoint)?;
        fabric.two.start_agent(&endpoint)?;
        Ok(fabric)
    }

    async fn set_mode(&self, mode: &str) {
        let config = json!({ "id": "", "nw-infra-type": "default", "fwd-mode": mode, "arp-mode": "proxy",
                             "pvt-subnet": "172.19.0.0/16" });
        put(&self.store, &Key::MasterConfig, &config).await;
    }

    async fn create_speaker(&self, number: u8) {
        let host = format!("{HOST}-{number}");
        let state = bgp::State {
            id: host.clone(),
            hostname: host.clone(),
            router_ip: format!("50.1.{number}.1/24"),
            asn: format!("6501{number}"),
            neighbor_as: "65001".into(),
            neighbor: format!("50.1.{number}.2"),
        };
        put(&self.store, &Key::Object(ObjectType::Bgp, host.clone()), &json!({ "key": host })).await;
        put(&self.store, &Key::Bgp(host.as_str().into()), &state).await;
    }
}

fn reaches(from: &Netns, target: &str) -> Result<()> {
    let target: IpAddr = target.parse()?;
    wait_until(TIMEOUT, &format!("echo reply of {target}"), || {
        Ok((from.ping(target, 1, Duration::from_millis(300))?.lost() == 0).then_some(()))
    })
}

fn wait_equal(what: &str, expected: &[String], read: impl Fn() -> Result<Vec<String>>) -> Result<()> {
    wait_until(TIMEOUT, what, || {
        let now = read()?;
        if now == expected { Ok(Some(())) } else { bail!("{now:#?} instead of {expected:#?}") }
    })
}

#[test]
fn pods_of_two_nodes_talk_through_the_leaf_switch() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"), binary("ovs-vswitchd"), binary("ovsdb-server"));
    pods_talk([Kind::Ovs; 2])
}

#[test]
fn pods_of_an_ebpf_node_talk_through_the_leaf_switch() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"), binary("ovs-vswitchd"), binary("ovsdb-server"));
    pods_talk([Kind::Ebpf, Kind::Ovs])
}

fn pods_talk(kinds: [Kind; 2]) -> Result<()> {
    let (a, b, other) = (Netns::new("poda")?, Netns::new("podb")?, Netns::new("podc")?);
    Fabric::run(kinds, async |mut fabric| {
        fabric.one.call("ADD", "a", &a).await?;
        fabric.two.call("ADD", "b", &b).await?;
        let routes = |n: u8| {
            let via = [format!("via 50.1.{n}.1"), format!("via 2001:db8:50:{n}::1")];
            [(format!("10.9.0.{n}/32"), via[0].clone()), (format!("2001:db8:9::{n}/128"), via[1].clone())]
        };
        for (protocol, number) in [("one", 1), ("two", 2)] {
            let expected = routes(number);
            let expected: Vec<_> = expected.iter().map(|(to, via)| (&to[..], &via[..])).collect();
            fabric.leaf.expect_routes(protocol, &expected)?;
        }
        // One subnet on two nodes: three routers are between the pods.
        for target in ["10.9.0.2", "2001:db8:9::2"] {
            reaches(&a, target)?;
        }
        for target in ["10.9.0.1", "2001:db8:9::1"] {
            reaches(&b, target)?;
            reaches(&fabric.namespace, target)?;
        }
        let ping = a.output("ping", &["-c", "1", "-W", "5", "10.9.0.2"])?;
        ensure!(ping.contains("ttl=61"), "{ping}");
        // By the default route that the leaf switch announces.
        reaches(&a, SERVER)?;
        // The node itself, and what it says about packets that it cannot forward.
        reaches(&a, "50.1.1.1")?;
        let expired = a.run(|| {
            let output = Command::new("ping").args(["-c", "1", "-W", "5", "-t", "1", "10.9.0.2"]).output()?;
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        })?;
        ensure!(expired.contains("Time to live exceeded"), "{expired}");
        // Forwarding of other interfaces stays as it was.
        let forwarding = |link: &str| {
            let read =
                fabric.one.namespace.output("cat", &[&format!("/proc/sys/net/ipv4/conf/{link}/forwarding")]);
            read.map(|text| text.trim() == "1")
        };
        ensure!(forwarding("inb01")? && forwarding("eth0")? && !forwarding("lo")?, "forwarding");

        // A pod of the same node, on the same network.
        fabric.one.call("ADD", "c", &other).await?;
        reaches(&a, "10.9.0.3")?;
        reaches(&b, "10.9.0.3")?;
        let (kernel, flows) = (fabric.one.kernel()?, fabric.one.flows()?);
        ensure!(kernel.iter().any(|line| line.starts_with("2981: 10.9.0.3 dev inb01")), "{kernel:#?}");
        ensure!(kernel.iter().any(|line| line.starts_with("2982: 10.9.0.2 via 50.1.1.2")), "{kernel:#?}");
        ensure!(kernel.iter().any(|line| line.starts_with("2982: default via 50.1.1.2")), "{kernel:#?}");

        // The agent stops in one way or the other, and a new one begins: no packet is lost, and nothing is written again.
        for how in ["stop", "kill"] {
            let pings = Pinger::start(&a, "10.9.0.2".parse()?, Duration::from_millis(20))?;
            match how {
                "stop" => drop(fabric.one.agent()?.terminate(TIMEOUT)?),
                _ => fabric.one.agent()?.kill()?,
            }
            wait_until(TIMEOUT, "BIRD to lose the session", || {
                Ok((!fabric.leaf.is_established("one")?).then_some(()))
            })?;
            reaches(&b, "10.9.0.1")?;
            ensure!(fabric.one.kernel()? == kernel, "{how}: {:#?}", fabric.one.kernel()?);
            let endpoint = fabric.endpoint.clone();
            fabric.one.start_agent(&endpoint)?;
            wait_until(TIMEOUT, "BIRD to have the session again", || {
                Ok(fabric.leaf.is_established("one")?.then_some(()))
            })?;
            let pings = pings.finish(TIMEOUT)?;
            ensure!(pings.lost() == 0, "{how}: {} of {} packets lost", pings.lost(), pings.sent);
            wait_equal("the same routes", &kernel, || fabric.one.kernel())?;
            ensure!(fabric.one.flows()? == flows, "{how}: the flows changed");
        }

        // Drift comes back.
        let node = fabric.one.namespace.clone();
        for damage in [
            "rule del pref 2982",
            "-6 rule del pref 2981",
            "route flush table 2981",
            "route del default table 2982",
            "link set inb01 down",
        ] {
            node.ip(damage)?;
            wait_equal(damage, &kernel, || fabric.one.kernel())?;
        }
        reaches(&a, "10.9.0.2")?;
        match &mut fabric.one.switch {
            Some(switch) => {
                switch.kill_vswitchd()?;
                switch.start_vswitchd()?;
            }
            None => _ = node.ip("link del inb01")?,
        }
        reaches(&a, "10.9.0.2")?;
        reaches(&b, "10.9.0.1")?;

        // A pod that is removed.
        fabric.two.call("DEL", "b", &b).await?;
        fabric.leaf.expect_routes("two", &[])?;
        wait_until(TIMEOUT, "the route to be withdrawn", || {
            let gone = |site: &Site| {
                Ok::<_, anyhow::Error>(!site.kernel()?.iter().any(|line| line.contains("10.9.0.2")))
            };
            Ok((gone(&fabric.one)? && gone(&fabric.two)?).then_some(()))
        })?;
        reaches(&fabric.namespace, "10.9.0.1")?;

        // In forward mode bridge the kernel routes nothing.
        fabric.set_mode("bridge").await;
        wait_equal("no routes", &[], || fabric.one.kernel())?;
        wait_until(TIMEOUT, "no port of the kernel", || {
            Ok((!fabric.one.namespace.links()?.iter().any(|link| link == "inb01")).then_some(()))
        })?;
        fabric.leaf.expect_routes("one", &[])?;
        fabric.set_mode("routing").await;
        reaches(&fabric.namespace, "10.9.0.1")?;
        reaches(&a, SERVER)?;

        // Nothing is left by the clean-up.
        fabric.one.agent()?.terminate(TIMEOUT)?;
        ensure!(fabric.one.file("cni.bgp.json").exists(), "what the node announces is in a file");
        let mut cleanup = fabric.one.command();
        cleanup.arg("cleanup");
        fabric.one.datapath(&mut cleanup);
        let mut cleanup = Process::spawn_in(&fabric.one.namespace, "cleanup", cleanup)?;
        ensure!(cleanup.wait(TIMEOUT)?.success(), "{}", cleanup.tail());
        ensure!(fabric.one.kernel()?.is_empty(), "{:#?}", fabric.one.kernel()?);
        ensure!(!fabric.one.file("cni.bgp.json").exists(), "the file is left");
        ensure!(!fabric.one.namespace.links()?.iter().any(|link| link == "inb01"), "the port is left");
        Ok(())
    })
}

/// The physical network has one route for an address: of two tenants with one subnet, one is routed, and the other one is told.
#[test]
fn a_subnet_of_two_tenants_is_routed_for_one() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let a = Netns::new("poda")?;
    Fabric::run([Kind::Ovs; 2], async |fabric| {
        fabric.one.call("ADD", "a", &a).await?;
        reaches(&a, SERVER)?;
        ensure!(!fabric.one.degraded()?.contains("is not routed"), "{}", fabric.one.degraded()?);
        let mut second = Master::network("vlan", 0);
        (second.id, second.tenant, second.pkt_tag) = ("n.u".into(), "u".into(), 2);
        put(&fabric.store, &Key::Network("n.u".into()), &second).await;
        let told = "network n.u is not routed: its subnet overlaps that of network n.t";
        wait_until(TIMEOUT, told, || {
            let degraded = fabric.one.degraded()?;
            if degraded.contains(told) { Ok(Some(())) } else { bail!("{degraded}") }
        })?;
        reaches(&a, SERVER)?;
        Ok(())
    })
}
