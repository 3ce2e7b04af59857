//! A test node: a namespace with its own switch, the datapath, and pods.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use contiv_abi::Timeouts;
use contiv_model::{
    global::ArpMode,
    mac::Mac,
    name::{EndpointId, NetworkId},
    route::NextHop,
    tag::Encap,
};
use netplugin::datapath::{
    Datapath as _, Desired, Error, FailedOp, Local, Network, Object, ObjectId, Observed, Op, Peer, Remote,
    ovs::{DatapathType, Options, Ovs},
};
use testkit::{Netns, capture::Tap, ovs::Switch, wait_until};
use tokio::runtime::Runtime;

pub(crate) const VTEP_PORT: u16 = 4789;
/// Time limit of events that are expected promptly.
pub(crate) const SOON: Duration = Duration::from_secs(10);
/// Time limit of a resync: several time limits of the datapath itself.
const RESYNC_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn vxlan(vni: u32) -> Encap {
    let local = (vni % 4094 + 1) as u16;
    Encap::Vxlan { vni: vni.try_into().unwrap(), local: local.try_into().unwrap() }
}

pub(crate) fn vlan(tag: u16) -> Encap {
    Encap::Vlan(tag.try_into().unwrap())
}

/// Network `name` of the tenant `net`.
pub(crate) fn network(name: &str, encap: Encap, arp: ArpMode) -> Network {
    let id = NetworkId::new(&"net".parse().unwrap(), &name.parse().unwrap());
    Network { arp, ..Network::new(id, encap) }
}

/// Addresses of pod `n`: 10.1.0.n and fd00::n.
pub(crate) fn addresses(n: u8) -> (Ipv4Addr, Ipv6Addr) {
    (Ipv4Addr::new(10, 1, 0, n), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into()))
}

fn endpoint(network: &Network, n: u8) -> EndpointId {
    EndpointId::new(&network.id, &format!("pod{n}"))
}

pub(crate) fn peer(vtep: IpAddr) -> Object {
    Object::Peer(Peer::new(vtep, VTEP_PORT))
}

/// Remote endpoint of pod `n` of `network`.
pub(crate) fn remote(network: &Network, n: u8, vtep: Option<IpAddr>) -> Object {
    let (ip, ip6) = addresses(n);
    let next_hop = NextHop::on(network.encap, vtep).unwrap();
    let addresses = (ip, Some(ip6));
    Object::Remote(Remote::new(endpoint(network, n), network, next_hop, Mac::of_endpoint(ip), addresses))
}

pub(crate) struct Pod {
    pub(crate) namespace: Netns,
    pub(crate) object: Object,
    pub(crate) mac: [u8; 6],
}

impl Pod {
    /// Waits until the other pod replies, over IPv4 and IPv6.
    pub(crate) fn reaches(&self, n: u8) -> Result<()> {
        let (ip, ip6) = addresses(n);
        for target in [IpAddr::from(ip), ip6.into()] {
            wait_until(SOON, &format!("echo reply of {target}"), || {
                let ping = self.namespace.ping(target, 1, Duration::from_millis(200))?;
                Ok((ping.lost() == 0).then_some(()))
            })?;
        }
        Ok(())
    }

    pub(crate) fn cannot_reach(&self, n: u8) -> Result<()> {
        let (ip, ip6) = addresses(n);
        for target in [IpAddr::from(ip), ip6.into()] {
            let ping = self.namespace.ping(target, 2, Duration::from_millis(200))?;
            ensure!(ping.lost() == 2, "{target} replied");
        }
        Ok(())
    }
}

pub(crate) struct Node {
    pub(crate) namespace: Netns,
    pub(crate) switch: RefCell<Switch>,
    pub(crate) runtime: Runtime,
    pub(crate) datapath: RefCell<Ovs>,
    pub(crate) desired: RefCell<Desired>,
    uplinks: Vec<String>,
    pods: Cell<u8>,
}

impl Node {
    pub(crate) fn new(label: &str, uplinks: &[&str]) -> Result<Node> {
        let namespace = Netns::new(label)?;
        Node::on(namespace, uplinks)
    }

    pub(crate) fn on(namespace: Netns, uplinks: &[&str]) -> Result<Node> {
        let switch = Switch::start(&namespace)?;
        let uplinks: Vec<_> = uplinks.iter().map(|name| (*name).to_owned()).collect();
        let datapath = RefCell::new(datapath(&switch, &uplinks));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let switch = RefCell::new(switch);
        let desired = RefCell::default();
        Ok(Node { namespace, switch, runtime, datapath, desired, uplinks, pods: Cell::new(0) })
    }

    /// A node with the uplink `up0`, and the other end of the uplink.
    pub(crate) fn with_uplink(label: &str) -> Result<(Node, Netns, Tap)> {
        let outside = Netns::new(&format!("{label}-out"))?;
        let inside = Netns::new(&format!("{label}-in"))?;
        inside.veth("up0", &outside, "up0")?;
        inside.up("up0")?;
        outside.up("up0")?;
        let node = Node::on(inside, &["up0"])?;
        node.converge()?;
        let tap = Tap::open(&outside, "up0")?;
        Ok((node, outside, tap))
    }

    /// Two connected nodes: VTEPs 192.168.9.1 and .2 on an underlay bridge, and `trunk0` for VLANs.
    pub(crate) fn pair(label: &str) -> Result<[Node; 2]> {
        let spaces = [Netns::new(&format!("{label}1"))?, Netns::new(&format!("{label}2"))?];
        for wire in ["under0", "trunk0"] {
            spaces[0].veth(wire, &spaces[1], wire)?;
            for space in &spaces {
                space.up(wire)?;
                space.tx_checksum_off(wire)?;
            }
        }
        let [one, two] = spaces.map(|space| Node::on(space, &["trunk0"]));
        let nodes = [one?, two?];
        for (node, other) in [(0, 1), (1, 0)] {
            let mut under = "under0";
            // The userspace datapath needs a bridge for tunnelled frames, the kernel datapath uses any link.
            if kind() == DatapathType::Netdev {
                under = "underlay";
                let add =
                    ["--timeout=20", "add-br", under, "--", "set", "bridge", under, "datapath_type=netdev"];
                let switch = nodes[node].switch.borrow();
                switch.vsctl(&[&add[..], &["--", "add-port", under, "under0"]].concat())?;
            }
            nodes[node].namespace.address(under, &format!("{}/24", vtep(node)))?;
            nodes[node].namespace.up(under)?;
            nodes[node].desired.borrow_mut().insert(peer(vtep(other)));
        }
        Ok(nodes)
    }

    /// As [`Node::restart_agent`], with other uplinks.
    pub(crate) fn restart_agent_with(&mut self, uplinks: &[&str]) {
        self.uplinks = uplinks.iter().map(|name| (*name).to_owned()).collect();
        self.restart_agent();
    }

    /// Replaces the datapath by a new instance, as after a restart of the agent.
    pub(crate) fn restart_agent(&self) {
        let fresh = datapath(&self.switch.borrow(), &self.uplinks);
        *self.datapath.borrow_mut() = fresh;
    }

    /// Prepares a datapath of this type, on a node with this control address.
    pub(crate) fn prepare(&self, datapath_type: DatapathType, control: IpAddr) -> Result<(), Error> {
        let options = options(&self.switch.borrow(), &self.uplinks);
        *self.datapath.borrow_mut() = Ovs::new(Options { datapath_type, control: Some(control), ..options });
        self.run(|runtime, datapath| runtime.block_on(datapath.prepare()))
    }

    pub(crate) fn observe(&self) -> Result<Observed, Error> {
        let desired = &*self.desired.borrow();
        self.run(|runtime, datapath| runtime.block_on(datapath.observe(desired)))
    }

    pub(crate) fn apply(&self, ops: &[Op]) -> Result<Vec<FailedOp>, Error> {
        self.run(|runtime, datapath| runtime.block_on(datapath.apply(ops)))
    }

    /// Applies ops as an agent that is killed when `is_reached` returns true.
    pub(crate) fn apply_until(&self, ops: &[Op], is_reached: impl Fn() -> Result<bool> + Send) -> Result<()> {
        self.run(move |runtime, datapath| {
            let reached = async {
                while !is_reached()? {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                anyhow::Ok(())
            };
            runtime.block_on(async {
                tokio::select! {
                    failures = datapath.apply(ops) => bail!("the ops ended before: {failures:?}"),
                    reached = tokio::time::timeout(SOON, reached) => reached?,
                }
            })
        })
    }

    /// Runs a call of the datapath in the namespace of the node.
    fn run<T: Send>(&self, call: impl FnOnce(&Runtime, &mut Ovs) -> T + Send) -> T {
        let (runtime, datapath) = (&self.runtime, &mut *self.datapath.borrow_mut());
        self.namespace.run(|| Ok(call(runtime, datapath))).unwrap()
    }

    /// Returns whether the datapath requests a resync within this time.
    pub(crate) fn resync_needed(&self, within: Duration) -> bool {
        let datapath = &mut *self.datapath.borrow_mut();
        self.runtime.block_on(async { tokio::time::timeout(within, datapath.resync_needed()).await.is_ok() })
    }

    /// Returns whether a resync is requested once the datapath has seen all earlier changes of the database.
    ///
    /// `ovs-vsctl` runs between two polls, so that the connection receives all updates that precede it.
    pub(crate) fn resync_requested(&self) -> bool {
        let datapath = &mut *self.datapath.borrow_mut();
        let switch = self.switch.borrow();
        self.runtime.block_on(async {
            let mut resync = std::pin::pin!(datapath.resync_needed());
            let polled = futures::poll!(&mut resync).is_ready();
            let round_trip = switch.vsctl(&["--timeout=20", "list-br"]);
            // Lets the tasks of the connection handle what has arrived.
            for _ in 0..16 {
                tokio::task::yield_now().await;
            }
            polled || round_trip.is_err() || futures::poll!(&mut resync).is_ready()
        })
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        self.datapath.borrow().warnings()
    }

    pub(crate) fn writes(&self) -> u64 {
        self.datapath.borrow().writes()
    }

    /// Resyncs the switch as the agent does. Returns the objects that were out of sync.
    pub(crate) fn converge(&self) -> Result<Vec<ObjectId>> {
        let observed = self.observe_with_retries()?;
        let desired = self.desired.borrow().clone();
        let out_of_sync = || desired.iter().filter(|(id, _)| !observed.in_sync.contains(id));
        let sets = out_of_sync().map(|(_, object)| Op::Set(object.clone()));
        let ops: Vec<_> = sets.chain((observed.orphans > 0).then_some(Op::GarbageCollect)).collect();
        let failures = self.apply(&ops)?;
        ensure!(failures.is_empty(), "{failures:?}");
        let after = self.observe()?;
        let remaining: Vec<_> = desired.iter().filter(|(id, _)| !after.in_sync.contains(id)).collect();
        ensure!(
            remaining.is_empty() && after.orphans == 0,
            "out of sync after resync: {remaining:?}, {} orphans",
            after.orphans
        );
        Ok(out_of_sync().map(|(id, _)| id.clone()).collect())
    }

    /// Observes the switch, with retries while it is too busy to reply. Fails with the last error.
    pub(crate) fn observe_with_retries(&self) -> Result<Observed> {
        let deadline = Instant::now() + RESYNC_TIMEOUT;
        loop {
            match self.observe() {
                Ok(observed) => return Ok(observed),
                Err(error) if Instant::now() < deadline => {
                    eprintln!("observe, will retry: {:#}", anyhow::Error::from(error));
                    std::thread::sleep(Duration::from_millis(100));
                }
                Err(error) => {
                    return Err(error).with_context(|| format!("observe the switch for {RESYNC_TIMEOUT:?}"));
                }
            }
        }
    }

    /// Sets objects in the desired state and in the switch.
    pub(crate) fn add(&self, objects: impl IntoIterator<Item = Object>) -> Result<()> {
        let ops: Vec<_> = objects.into_iter().map(Op::Set).collect();
        for op in &ops {
            if let Op::Set(object) = op {
                self.desired.borrow_mut().insert(object.clone());
            }
        }
        let failures = self.apply(&ops)?;
        ensure!(failures.is_empty(), "{failures:?}");
        Ok(())
    }

    pub(crate) fn remove(&self, ids: impl IntoIterator<Item = ObjectId>) -> Result<()> {
        let ops: Vec<_> = ids.into_iter().map(Op::Delete).collect();
        for op in &ops {
            if let Op::Delete(id) = op {
                self.desired.borrow_mut().remove(id);
            }
        }
        let failures = self.apply(&ops)?;
        ensure!(failures.is_empty(), "{failures:?}");
        Ok(())
    }

    /// Creates pod `n` on `network` with its interface, without setting its object.
    pub(crate) fn pod(&self, network: &Network, n: u8) -> Result<Pod> {
        let count = self.pods.get() + 1;
        self.pods.set(count);
        let namespace = Netns::new(&format!("pod{n}"))?;
        let port = format!("vvport{count}");
        self.namespace.veth(&port, &namespace, "eth0")?;
        let (ip, ip6) = addresses(n);
        let mac = Mac::of_endpoint(ip);
        namespace.mac("eth0", &mac.to_string())?;
        namespace.tx_checksum_off("eth0")?;
        namespace.address("eth0", &format!("{ip}/24"))?;
        namespace.address("eth0", &format!("{ip6}/64"))?;
        namespace.up("eth0")?;
        self.namespace.up(&port)?;
        let object = Object::Local(Local::new(endpoint(network, n), network, port, mac, (ip, Some(ip6))));
        Ok(Pod { namespace, object, mac: mac.0 })
    }

    /// Creates pod `n` on `network` and sets its object.
    pub(crate) fn run_pod(&self, network: &Network, n: u8) -> Result<Pod> {
        let pod = self.pod(network, n)?;
        self.add([pod.object.clone()])?;
        Ok(pod)
    }

    /// Returns all flows and groups of both bridges, sorted, without counters.
    pub(crate) fn tables(&self) -> Result<BTreeMap<&'static str, Vec<String>>> {
        let switch = self.switch.borrow();
        let mut tables = BTreeMap::new();
        for bridge in ["contivVlanBridge", "contivVxlanBridge"] {
            let mut lines = vec![];
            for (command, arguments) in [("dump-flows", &["--no-stats"][..]), ("dump-groups", &[])] {
                let dump = switch.ofctl(command, bridge, arguments).context(command)?;
                lines.extend(
                    dump.lines().map(|line| line.trim().to_owned()).filter(|line| !line.contains("(OF1.3)")),
                );
            }
            lines.sort();
            tables.insert(bridge, lines);
        }
        Ok(tables)
    }

    /// Returns the output of `ofproto/trace` for a packet.
    pub(crate) fn trace(&self, bridge: &str, packet: &str) -> Result<String> {
        self.switch.borrow().appctl(&["ofproto/trace", bridge, packet])
    }
}

/// Datapath type under test.
pub(crate) fn kind() -> DatapathType {
    if testkit::ovs::on_kernel() { DatapathType::System } else { DatapathType::Netdev }
}

fn datapath(switch: &Switch, uplinks: &[String]) -> Ovs {
    Ovs::new(options(switch, uplinks))
}

fn options(switch: &Switch, uplinks: &[String]) -> Options {
    Options {
        socket: switch.socket(),
        datapath_type: kind(),
        uplinks: uplinks.to_vec(),
        vtep: None,
        control: None,
        announce: true,
        timeouts: Timeouts::default(),
        connections: Options::CONNECTIONS,
    }
}

/// VTEP of a node of a pair.
pub(crate) fn vtep(node: usize) -> IpAddr {
    [[192, 168, 9, 1], [192, 168, 9, 2]][node].into()
}

/// Creates pod `n` on node `on`, and its remote endpoint on the other node.
pub(crate) fn spread(nodes: &[Node; 2], on: usize, network: &Network, n: u8) -> Result<Pod> {
    let pod = nodes[on].run_pod(network, n)?;
    let through = matches!(network.encap, Encap::Vxlan { .. }).then(|| vtep(on));
    nodes[1 - on].add([remote(network, n, through)])?;
    Ok(pod)
}
