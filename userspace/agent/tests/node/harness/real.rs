//! A node in a network namespace, with one more namespace for each pod and one for the wire.

use std::{collections::BTreeMap, fs, net::IpAddr, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use contiv_model::mac::Mac;
use futures::FutureExt as _;
use netplugin::datapath::{
    Datapath, Desired, FailedOp, KERNEL_PORT, Object, Observed, Op,
    fake::{Delivery, Origin, Target},
    host_access::HOST_PORT,
};
use testkit::{
    Netns,
    capture::Tap,
    packet::mac,
    skip::{binary, root},
    wait_until,
};
use tokio::runtime::{Builder, Runtime};

use super::{Damage, Difference, Harness, Programs};
use crate::node::{
    topology::{self, VTEPS},
    wire,
};

/// Datapath-specific parts of a node.
pub(crate) trait Site: Sized + Sync + Send {
    type Path: Datapath;

    const DIFFERENCES: &'static [Difference] = &[];
    const REORDERS: bool = false;
    const OPEN_ATTACKS: &'static [(&'static str, &'static str)] = &[];

    fn joins_fragments() -> bool {
        false
    }

    fn open_controls() -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Interfaces of the node that belong neither to the datapath nor to pods.
    const LINKS: &'static [&'static str];

    fn missing() -> Option<String>;

    /// Sets up a node whose NIC [`UNDERLAY`] is up, with its address.
    fn start(host: &Netns) -> Result<Self>;

    /// Creates a new instance of the datapath.
    async fn open(&self) -> Result<Self::Path>;

    /// Interface with the address of the node.
    fn underlay(&self) -> &'static str;

    /// Announces the VTEP of another node.
    fn neighbour(&self, vtep: IpAddr, mac: &str) -> Result<()>;

    fn forward(&self) -> Result<()> {
        Ok(())
    }

    /// Waits until applied changes are in effect.
    fn settle(&self) -> Result<()>;

    fn forget(&self) -> Result<()>;

    fn pass_second(&self) -> Result<()> {
        Ok(())
    }

    fn damage(&self, host: &Netns, damage: Damage) -> Result<()>;
}

pub(crate) const UNDERLAY: &str = "eth0";
pub(crate) const UPLINK: &str = "up0";
const SOON: Duration = Duration::from_secs(5);
const PODS_LINK: &str = "eth0";
/// MTU of pods: 1500 bytes less the outer headers of a tunnel.
const PODS_MTU: u16 = 1450;

pub(crate) struct Real<S: Site> {
    // Dropped in this order: the datapath, its threads, then its environment.
    path: Option<S::Path>,
    runtime: Runtime,
    site: S,
    pods: BTreeMap<String, Pod>,
    wire: Wire,
    /// The port of the node's kernel, while the datapath has one, and its name.
    kernel: Option<(&'static str, Tap)>,
    host: Netns,
    node_mac: [u8; 6],
}

struct Pod {
    namespace: Netns,
    tap: Tap,
}

/// The network outside of the node.
struct Wire {
    namespace: Netns,
    underlay: Tap,
    trunk: Tap,
    mac: [u8; 6],
}

impl Wire {
    fn start(host: &Netns) -> Result<Wire> {
        let namespace = quiet_namespace("wire")?;
        for (near, far) in [(UNDERLAY, "eth0"), (UPLINK, "trunk0")] {
            host.veth(near, &namespace, far)?;
            namespace.up(far)?;
            host.up(near)?;
            carries(&namespace, far)?;
            carries(host, near)?;
        }
        for vtep in VTEPS {
            namespace.address("eth0", &format!("{vtep}/24"))?;
        }
        let (underlay, trunk) = (Tap::open(&namespace, "eth0")?, Tap::open(&namespace, "trunk0")?);
        let mac = mac(&namespace.interface("eth0")?.mac);
        Ok(Wire { namespace, underlay, trunk, mac })
    }

    fn arrivals(&self, found: &mut Vec<Delivery>) -> Result<()> {
        for frame in self.underlay.drain()? {
            found.extend(wire::decapsulated(&frame.bytes)?);
        }
        for frame in self.trunk.drain()? {
            found.push(Delivery { to: Target::Uplink, frame: frame.bytes });
        }
        Ok(())
    }
}

/// Creates a namespace whose links send no frames of their own.
fn quiet_namespace(label: &str) -> Result<Netns> {
    let namespace = Netns::new(label)?;
    for links in ["all", "default"] {
        ip6(&namespace, links, false)?;
    }
    Ok(namespace)
}

fn ip6(namespace: &Netns, link: &str, on: bool) -> Result<()> {
    let path = format!("/proc/sys/net/ipv6/conf/{link}/disable_ipv6");
    let value = if on { "0" } else { "1" };
    namespace.run(|| fs::write(&path, value).with_context(|| format!("write {path}")))
}

/// Waits until the link forwards frames: it drops them for some time after both ends are up.
fn carries(namespace: &Netns, link: &str) -> Result<()> {
    wait_until(SOON, &format!("{link} to carry frames"), || {
        Ok(namespace.interface(link)?.carries.then_some(()))
    })
}

impl<S: Site> Real<S> {
    /// Runs a function with the datapath in the namespace of the node.
    fn with_path<T: Send>(
        &mut self,
        work: impl AsyncFnOnce(&mut S::Path) -> Result<T, netplugin::datapath::Error> + Send,
    ) -> Result<T> {
        let (runtime, path) = (&self.runtime, self.path.as_mut().context("no agent runs")?);
        self.host.run(|| Ok(runtime.block_on(work(path))?))
    }
}

impl<S: Site> Real<S> {
    /// Takes the place of the node's kernel at the port that the datapath has for it.
    fn follow_kernel_port(&mut self) -> Result<()> {
        let links = self.host.links()?;
        match [KERNEL_PORT, HOST_PORT].into_iter().find(|port| links.iter().any(|link| link == port)) {
            None => self.kernel = None,
            Some(port) if self.kernel.as_ref().is_none_or(|(known, _)| *known != port) => {
                self.host.up(port)?;
                // Both ends of a pair; an internal port of a switch has one.
                let is_end = |link: &&String| {
                    link.strip_prefix(port).is_some_and(|end| end.is_empty() || end == "-peer")
                };
                for link in links.iter().filter(is_end) {
                    if self.host.interface(link)?.peer.is_some() {
                        carries(&self.host, link)?;
                    }
                }
                self.kernel = Some((port, Tap::open(&self.host, port)?));
            }
            Some(_) => {}
        }
        Ok(())
    }
}

impl<S: Site> Programs for Real<S> {
    fn pod(&self, port: &str) -> Result<&Netns> {
        self.pods.get(port).map(|pod| &pod.namespace).with_context(|| format!("find the pod on {port}"))
    }

    fn wire(&self) -> &Netns {
        &self.wire.namespace
    }

    fn give_addresses(&self, port: &str, last: u8) -> Result<()> {
        let pod = self.pod(port)?;
        pod.mac(PODS_LINK, &Mac(topology::mac(last)).to_string())?;
        ip6(pod, PODS_LINK, true)?;
        pod.address(PODS_LINK, &format!("{}/24", topology::ip(last)))?;
        pod.address(PODS_LINK, &format!("{}/64", topology::ip6(last)))?;
        // The kernel uses an IPv6 address some time after it has confirmed it.
        let address = topology::ip6(last).to_string();
        wait_until(SOON, &format!("{address} is in use"), || {
            Ok(pod.ip(&format!("-6 route get {address}"))?.starts_with("local").then_some(()))
        })
    }
}

impl<S: Site> Harness for Real<S> {
    const DIFFERENCES: &'static [Difference] = S::DIFFERENCES;
    const REORDERS: bool = S::REORDERS;
    const OPEN_ATTACKS: &'static [(&'static str, &'static str)] = S::OPEN_ATTACKS;

    fn joins_fragments() -> bool {
        S::joins_fragments()
    }

    fn open_controls() -> &'static [(&'static str, &'static str)] {
        S::open_controls()
    }

    fn missing() -> Option<String> {
        root().or_else(|| binary("ip")).or_else(|| binary("ping")).or_else(S::missing)
    }

    fn start() -> Result<Real<S>> {
        let host = quiet_namespace("node")?;
        let wire = Wire::start(&host)?;
        let site = S::start(&host).context("prepare the node")?;
        for vtep in VTEPS {
            site.neighbour(vtep.into(), &wire.namespace.interface("eth0")?.mac)?;
        }
        let node_mac = mac(&host.interface(site.underlay())?.mac);
        // Threads inherit the namespace of their creator.
        let runtime =
            host.run(|| Ok(Builder::new_multi_thread().worker_threads(1).enable_all().build()?))?;
        let path = host.run(|| runtime.block_on(site.open()))?;
        let pods = BTreeMap::new();
        Ok(Real { path: Some(path), runtime, site, pods, wire, kernel: None, host, node_mac })
    }

    fn plug(&mut self, port: &str) -> Result<()> {
        let namespace = quiet_namespace("pod")?;
        self.host.veth(port, &namespace, PODS_LINK)?;
        namespace.mtu(PODS_LINK, PODS_MTU)?;
        if self.path.as_ref().is_some_and(|path| path.port_requirements().disable_tx_offload) {
            namespace.tx_checksum_off(PODS_LINK)?;
        }
        namespace.up(PODS_LINK)?;
        self.host.up(port)?;
        carries(&namespace, PODS_LINK)?;
        carries(&self.host, port)?;
        let tap = Tap::open(&namespace, PODS_LINK)?;
        // The host end of a deleted endpoint is down.
        tap.wait_for_carrier()?;
        self.pods.insert(port.to_owned(), Pod { namespace, tap });
        Ok(())
    }

    fn retain_orphans(&mut self, retain: bool) {
        if let Some(path) = &mut self.path {
            path.retain_orphans(retain);
        }
    }

    fn observe(&mut self, desired: &Desired) -> Result<Observed> {
        let observed = self.with_path(async |path: &mut S::Path| path.observe(desired).await)?;
        self.follow_kernel_port()?;
        self.site.settle()?;
        Ok(observed)
    }

    fn apply(&mut self, ops: &[Op]) -> Result<Vec<FailedOp>> {
        let failures = self.with_path(async |path: &mut S::Path| path.apply(ops).await)?;
        for (index, op) in ops.iter().enumerate() {
            // Host ends of deleted endpoints were down. Frames are lost until the kernel has noticed the change.
            if let Op::Set(Object::Local(local)) = op
                && let Some(pod) = self.pods.get(&local.port)
                && failures.iter().all(|failed| failed.index != index)
            {
                carries(&pod.namespace, PODS_LINK)?;
                carries(&self.host, &local.port)?;
            }
        }
        // Else what the kernel tells about interfaces would add up: the agent takes it, too.
        self.with_path(async |path: &mut S::Path| {
            path.resync_needed().now_or_never();
            Ok(())
        })?;
        self.follow_kernel_port()?;
        self.site.settle()?;
        Ok(failures)
    }

    fn writes(&self) -> u64 {
        self.path.as_ref().map_or(0, Datapath::writes)
    }

    fn restart(&mut self) -> Result<()> {
        let (runtime, site, path) = (&self.runtime, &self.site, &mut self.path);
        self.host.run(|| {
            drop(path.take());
            *path = Some(runtime.block_on(site.open())?);
            Ok(())
        })
    }

    fn cleanup(&mut self) -> Result<()> {
        let before = self.host.links()?;
        self.with_path(async |path: &mut S::Path| path.cleanup().await)?;
        let left = self.host.links()?;
        let kept = |link: &String| self.pods.contains_key(link) || S::LINKS.contains(&link.as_str());
        let ours: Vec<_> = left.iter().filter(|link| !kept(link)).collect();
        ensure!(ours.is_empty(), "of {before:?} are left {ours:?}");
        ensure!(self.pods.keys().all(|port| left.contains(port)), "removed what others made: {left:?}");
        self.site.settle()
    }

    fn emit(&mut self, from: &Origin, frame: &[u8]) -> Result<()> {
        match from {
            Origin::Pod(port) => {
                let pod = self.pods.get(port).with_context(|| format!("find the pod on {port}"))?;
                pod.tap.send(frame)
            }
            Origin::Tunnel { vtep: IpAddr::V4(vtep), vni } => {
                let macs = (self.wire.mac, self.node_mac);
                self.wire.underlay.send(&wire::encapsulated(macs, *vtep, *vni, frame))
            }
            Origin::Tunnel { vtep, .. } => bail!("the wire has no IPv6 for {vtep}"),
            Origin::Uplink => self.wire.trunk.send(frame),
            Origin::Kernel => self.kernel.as_ref().context("find the port of the kernel")?.1.send(frame),
        }
    }

    fn arrivals(&mut self) -> Result<Vec<Delivery>> {
        let mut found = vec![];
        for (port, pod) in &self.pods {
            for frame in pod.tap.drain()? {
                found.push(Delivery { to: Target::Pod(port.clone()), frame: frame.bytes });
            }
        }
        if let Some((_, kernel)) = &self.kernel {
            for frame in kernel.drain()? {
                found.push(Delivery { to: Target::Kernel, frame: frame.bytes });
            }
        }
        self.wire.arrivals(&mut found)?;
        Ok(found)
    }

    fn forward(&self) -> Result<()> {
        self.site.forward()
    }

    fn settle(&self) -> Result<()> {
        self.site.settle()
    }

    fn forget(&self) -> Result<()> {
        self.site.forget()
    }

    fn pass_second(&self) -> Result<()> {
        self.site.pass_second()
    }

    fn damage(&mut self, damage: Damage) -> Result<()> {
        self.site.damage(&self.host, damage)
    }
}
