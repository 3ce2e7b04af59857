//! A node with pods.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

use anyhow::{Result, ensure};
use contiv_abi::{ABI_VERSION, DropCount, DropReason, maps::BUILD};
use contiv_model::{
    mac::Mac,
    route::NextHop,
    tag::{Encap, Vlan, Vni},
};
use netplugin::datapath::{
    Datapath as _, Desired, FailedOp, Local, Network, Object, Observed, Op, Owner, Peer, Remote,
    ebpf::{AttachMode, Ebpf, Options},
};
use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;
use testkit::{
    Netns, patience,
    pins::{Lent, Pool},
    scratch_dir,
};

pub(crate) fn vxlan(vni: u32) -> Encap {
    Encap::Vxlan { vni: Vni::try_from(vni).unwrap(), local: Vlan::try_from(1).unwrap() }
}

pub(crate) fn vlan(tag: u16) -> Encap {
    Encap::Vlan(Vlan::try_from(tag).unwrap())
}

pub(crate) fn network(id: &str, encap: Encap) -> Network {
    Network::new(id, encap)
}

/// An endpoint by its number `n`: 10.1.1.`n`, fd00::`n`, and the MAC address that netmaster would assign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint(pub(crate) u8);

impl Endpoint {
    pub(crate) fn ip(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 1, 1, self.0)
    }

    pub(crate) fn ip6(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, self.0.into())
    }

    pub(crate) fn mac(self) -> [u8; 6] {
        Mac::of_endpoint(self.ip()).0
    }

    pub(crate) fn remote(self, network: &Network, vtep: Option<Ipv4Addr>) -> Remote {
        let next_hop = NextHop::on(network.encap, vtep.map(IpAddr::from)).unwrap();
        let id = format!("{}-{}", network.id, self.0);
        Remote::new(id, network, next_hop, Mac(self.mac()), (self.ip(), Some(self.ip6())))
    }
}

/// A pod: a network namespace with `eth0`.
pub(crate) struct Pod {
    pub(crate) endpoint: Endpoint,
    pub(crate) ns: Netns,
    pub(crate) local: Local,
}

impl Pod {
    pub(crate) fn ip(&self) -> IpAddr {
        self.endpoint.ip().into()
    }

    pub(crate) fn ip6(&self) -> IpAddr {
        self.endpoint.ip6().into()
    }
}

/// Directory of the pins; unmounted on drop.
struct BpfRoot(TempDir);

impl AsRef<Path> for BpfRoot {
    fn as_ref(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for BpfRoot {
    fn drop(&mut self) {
        // Not mounted if the test ended before the first `observe`.
        let _unmounted = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}

static POOL: Pool<BpfRoot> = Pool::new();

extern "C" fn drop_pool() {
    POOL.drop_all();
}

/// The fields are dropped in order: the datapath before the interfaces.
pub(crate) struct Node {
    pub(crate) datapath: Ebpf,
    pub(crate) desired: Desired,
    pub(crate) options: Options,
    pods: u32,
    _pins: Lent<BpfRoot>,
    pub(crate) ns: Netns,
}

/// What the maps and programs depend on; `None` if they cannot be used again.
fn pool_key(options: &Options) -> Option<String> {
    let is_usual = options.abi_version == ABI_VERSION && options.log_stages.is_none();
    is_usual.then(|| format!("{} {} {:?}", options.instance, options.flows, options.sizes))
}

impl Node {
    pub(crate) fn new(label: &str) -> Result<Node> {
        Node::with(label, |_| {})
    }

    /// A node with options changed by `adjust`. Its programs may be loaded, and its maps are empty.
    pub(crate) fn with(label: &str, adjust: impl FnOnce(&mut Options)) -> Result<Node> {
        Node::build(label, adjust, true)
    }

    /// A node that no agent has run on.
    pub(crate) fn fresh(label: &str, adjust: impl FnOnce(&mut Options)) -> Result<Node> {
        Node::build(label, adjust, false)
    }

    fn build(label: &str, adjust: impl FnOnce(&mut Options), is_pooled: bool) -> Result<Node> {
        let ns = Netns::new(label)?;
        let mut options = Options { instance: "node".into(), ..Options::default() };
        // Flows outlive the test unless it is about their end.
        let timeouts = &mut options.timeouts;
        for timeout in [&mut timeouts.tcp_opening, &mut timeouts.tcp_closing, &mut timeouts.unanswered] {
            *timeout *= patience();
        }
        adjust(&mut options);
        let key = pool_key(&options).filter(|_| is_pooled);
        let make = || Ok(BpfRoot(scratch_dir("bpf")?));
        let pins = POOL.lend((key, &[BUILD]), &ns, make, drop_pool)?;
        options.bpf_root = pins.path().to_owned();
        let datapath = Ebpf::new(options.clone());
        Ok(Node { datapath, desired: Desired::default(), options, pods: 0, _pins: pins, ns })
    }

    pub(crate) fn clsact(options: &mut Options) {
        options.attach_mode = AttachMode::Clsact;
    }

    /// Two nodes, connected by a link for tunnels and a link for VLANs.
    pub(crate) fn pair(label: &str) -> Result<(Node, Node)> {
        Node::pair_with(label, |_| {})
    }

    /// A node whose uplink is connected to the interface `wire` in another namespace.
    pub(crate) fn on_wire(label: &str) -> Result<(Node, Netns)> {
        Node::on_wire_with(label, |_| {})
    }

    /// As `on_wire`, with options changed by `adjust`.
    pub(crate) fn on_wire_with(label: &str, adjust: impl FnOnce(&mut Options)) -> Result<(Node, Netns)> {
        let node = Node::with(label, |options| {
            options.uplinks = vec!["trunk".into()];
            adjust(options);
        })?;
        let outside = Netns::new(&format!("{label}-out"))?;
        node.ns.veth("trunk", &outside, "wire")?;
        node.ns.up("trunk")?;
        outside.up("wire")?;
        Ok((node, outside))
    }

    /// As `pair`, with the options of both nodes changed by `adjust`.
    pub(crate) fn pair_with(label: &str, adjust: impl Fn(&mut Options)) -> Result<(Node, Node)> {
        let node = |n: u8| {
            Node::with(&format!("{label}{n}"), |options| {
                options.vtep = Some(vtep(n).into());
                options.uplinks = vec!["trunk".into()];
                adjust(options);
            })
        };
        let (a, b) = (node(1)?, node(2)?);
        for link in ["under", "trunk"] {
            a.ns.veth(link, &b.ns, link)?;
            for (node, n) in [(&a, 1), (&b, 2)] {
                if link == "under" {
                    node.ns.address(link, &format!("{}/24", vtep(n)))?;
                }
                node.ns.up(link)?;
            }
        }
        Ok((a, b))
    }

    /// Adds an object to the desired state.
    pub(crate) fn want(&mut self, object: Object) -> &mut Self {
        self.desired.insert(object);
        self
    }

    pub(crate) fn want_network(&mut self, network: &Network) -> &mut Self {
        self.want(Object::Network(network.clone()))
    }

    /// A node that has the networks which are desired until now.
    pub(crate) fn want_peer(&mut self, n: u8) -> &mut Self {
        let peer = Peer::new(vtep(n), Options::VXLAN_PORT).with_networks(self.networks());
        self.want(Object::Peer(peer))
    }

    fn networks(&self) -> impl Iterator<Item = &Network> {
        self.desired.iter().filter_map(|(_, object)| match object {
            Object::Network(network) => Some(network),
            _ => None,
        })
    }

    /// Creates a pod on this node and adds it to the desired state.
    pub(crate) fn pod(&mut self, network: &Network, endpoint: Endpoint) -> Result<Pod> {
        let ns = Netns::new(&format!("pod{}", endpoint.0))?;
        self.endpoint(network, endpoint, ns, "eth0", Owner::Pod)
    }

    /// Adds the node itself as an endpoint, with the interface [`OWN`].
    pub(crate) fn own(&mut self, network: &Network, endpoint: Endpoint) -> Result<Pod> {
        self.endpoint(network, endpoint, self.ns.clone(), OWN, Owner::Node)
    }

    fn endpoint(
        &mut self,
        network: &Network,
        endpoint: Endpoint,
        ns: Netns,
        name: &str,
        owner: Owner,
    ) -> Result<Pod> {
        self.pods += 1;
        let port = format!("vvport{}", self.pods);
        self.ns.veth(&port, &ns, name)?;
        ns.mac(name, &Mac(endpoint.mac()).to_string())?;
        ns.mtu(name, 1450)?;
        // Only frames of the test may be sent, so that counters are exact.
        ns.sysctl(&format!("net/ipv6/conf/{name}/addr_gen_mode"), "1")?;
        self.ns.sysctl(&format!("net/ipv6/conf/{port}/disable_ipv6"), "1")?;
        ns.address(name, &format!("{}/24", endpoint.ip()))?;
        ns.address(name, &format!("{}/64", endpoint.ip6()))?;
        ns.up(name)?;
        self.ns.up(&port)?;
        let id = format!("{}-{}", network.id, endpoint.0);
        let addresses = (endpoint.ip(), Some(endpoint.ip6()));
        let local = Local { owner, ..Local::new(id, network, port, Mac(endpoint.mac()), addresses) };
        self.want(Object::Local(local.clone()));
        Ok(Pod { endpoint, ns, local })
    }

    pub(crate) fn ifindex(&self, link: &str) -> Result<u32> {
        self.ns.ifindex(link)
    }

    pub(crate) fn observe(&mut self) -> Result<Observed> {
        let Node { ns, datapath, desired, .. } = self;
        ns.run(|| Ok(runtime()?.block_on(datapath.observe(desired))?))
    }

    pub(crate) fn apply(&mut self, ops: &[Op]) -> Result<Vec<FailedOp>> {
        let Node { ns, datapath, .. } = self;
        ns.run(|| Ok(runtime()?.block_on(datapath.apply(ops))?))
    }

    /// Runs one cycle of the reconciler: sets missing objects and collects garbage. Fails unless everything is in
    /// sync then.
    pub(crate) fn converge(&mut self) -> Result<()> {
        let observed = self.observe()?;
        let missing = self.desired.iter().filter(|(id, _)| !observed.in_sync.contains(id));
        let mut ops: Vec<Op> = missing.map(|(_, object)| Op::Set(object.clone())).collect();
        ops.push(Op::GarbageCollect);
        let failed = self.apply(&ops)?;
        ensure!(failed.is_empty(), "{failed:?}");
        let observed = self.observe()?;
        ensure!(observed.in_sync.len() == self.desired.len(), "only {:?} are in place", observed.in_sync);
        ensure!(observed.orphans == 0, "{} orphans", observed.orphans);
        Ok(())
    }

    /// Replaces the datapath as a new process would; only the options are kept. Returns the previous datapath.
    pub(crate) fn restart(&mut self) -> Ebpf {
        std::mem::replace(&mut self.datapath, Ebpf::new(self.options.clone()))
    }

    /// Whether another datapath finds out that programs are attached.
    pub(crate) fn is_left_behind(&self) -> Result<bool> {
        self.ns.run(|| Ok(runtime()?.block_on(self.datapath.left_behind())?.is_some()))
    }

    /// Whether another datapath finds out that the attached programs pass every frame on.
    pub(crate) fn is_passive(&self) -> Result<bool> {
        self.ns.run(|| Ok(runtime()?.block_on(self.datapath.is_passive())?))
    }

    pub(crate) fn prepare(&mut self) -> Result<()> {
        let Node { ns, datapath, .. } = self;
        ns.run(|| Ok(runtime()?.block_on(datapath.prepare())?))
    }

    pub(crate) fn stop(&mut self) -> Result<()> {
        let Node { ns, datapath, .. } = self;
        ns.run(|| Ok(runtime()?.block_on(datapath.stop())?))
    }

    pub(crate) fn resume(&mut self) -> Result<()> {
        let Node { ns, datapath, .. } = self;
        ns.run(|| Ok(runtime()?.block_on(datapath.resume())?))
    }

    pub(crate) fn cleanup(&mut self) -> Result<()> {
        let Node { ns, datapath, .. } = self;
        ns.run(|| Ok(runtime()?.block_on(datapath.cleanup())?))
    }

    pub(crate) fn drops(&self) -> Result<BTreeMap<DropReason, u64>> {
        let counts = self.datapath.drops()?;
        Ok(counts.into_iter().map(|(reason, DropCount { packets, .. })| (reason, packets)).collect())
    }

    pub(crate) fn pin(&self, program: &str) -> std::path::PathBuf {
        self.datapath.program_pin(program)
    }

    pub(crate) fn bpf_root(&self) -> &Path {
        &self.options.bpf_root
    }
}

/// The node's own interface on a network.
pub(crate) const OWN: &str = "mgmt";

/// Tunnel address of node `n`.
pub(crate) fn vtep(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, n)
}

/// A runtime on the calling thread, so that its sockets are in the thread's network namespace.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
