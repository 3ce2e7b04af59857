//! Queues of ports whose groups have a bandwidth limit.
//!
//! ```text
//! pod -> vvportN -> ctv_from_pod -> [ htb, one class per port ] contivq0 == contivq1 -> ctv_from_queue -> ...
//! ... -> [ tbf ] vvportN -> pod
//! ```
//!
//! Queued packets keep the reference to the sending socket, so TCP in the pod is throttled instead of losing packets. The
//! queues are in the node's namespace, where a pod cannot change them.

use std::collections::{BTreeMap, BTreeSet};

use contiv_abi::Port;
use rtnetlink::{
    LinkMessageBuilder, LinkUnspec, LinkVeth,
    packet_route::link::{InfoData, InfoVeth},
};

use super::{
    limit::Limit,
    qdisc::{self, Installed},
};
use crate::{
    datapath::{
        Error,
        ebpf::{
            device::{self, Netlink},
            failure::{errno, failed},
            maps::writes::Writes,
        },
    },
    sysctl::disable_ipv6,
};

/// Interface with the classes; packets enter the queue here.
pub(crate) const ENTRY: &str = "contivq0";
/// The other end of the veth pair; queued packets leave here.
pub(crate) const EXIT: &str = "contivq1";
/// Maximum MTU, for packets of any size.
const MTU: u32 = 65_535;

/// Interface indices of the veth pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VethPair {
    pub(crate) entry: u32,
    pub(crate) exit: u32,
}

/// State of the queues in the kernel.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    pair: Option<VethPair>,
    installed: Installed,
    /// The kernel has no `htb` or `tbf`.
    unsupported: bool,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Create or change the class with this minor number.
    SetClass(u16, Limit),
    /// Create or change the limit of a port.
    SetLimit(u32, Limit),
    /// Write the map entry of a port. The caller executes this step.
    SetPort(u32, Port),
    /// Delete a class that no port uses.
    DeleteClass(u16),
    /// Delete the limit of an interface that is not a port.
    DeleteLimit(u32),
}

impl Queues {
    /// Reads the state from the kernel.
    pub(crate) async fn read(&mut self, netlink: &Netlink) -> Result<(), Error> {
        self.pair = match (netlink.link(ENTRY).await?, device::ifindex(EXIT)) {
            (Some(entry), Some(exit)) => Some(VethPair { entry: entry.header.index, exit }),
            _ => None,
        };
        self.installed = qdisc::list(netlink, self.pair.map_or(0, |pair| pair.entry)).await?;
        Ok(())
    }

    pub(crate) fn pair(&self) -> Option<VethPair> {
        self.pair
    }

    /// Whether the kernel has no queues, so that the programs drop traffic above the limit.
    pub(crate) fn are_unsupported(&self) -> bool {
        self.unsupported
    }

    /// Whether the queue of the port has this limit.
    pub(crate) fn is_current(&self, ifindex: u32, port: &Port, limit: Option<Limit>) -> bool {
        if self.unsupported {
            return port.queue == 0;
        }
        let Some(limit) = limit else { return port.queue == 0 };
        let queued = self.pair.is_some_and(|pair| port.queue == pair.entry) && self.installed.root;
        queued
            && self.installed.classes.get(&port.class) == Some(&limit)
            && self.installed.ports.get(&ifindex) == Some(&limit)
    }

    /// Number of classes and limits that belong to no port.
    pub(crate) fn orphans<'a>(&self, ports: impl Iterator<Item = (&'a u32, &'a Port)>) -> usize {
        let ports: Vec<_> = ports.map(|(ifindex, port)| (*ifindex, *port, None)).collect();
        self.orphan_steps(&ports).count()
    }

    fn orphan_steps(&self, ports: &[(u32, Port, Option<Limit>)]) -> impl Iterator<Item = Step> {
        let classes: BTreeSet<u16> = ports.iter().map(|(_, port, _)| port.class).collect();
        let interfaces: BTreeSet<u32> = ports.iter().map(|(ifindex, ..)| *ifindex).collect();
        let Installed { classes: installed, ports: limited, .. } = &self.installed;
        let orphan_classes = installed.keys().filter(move |class| !classes.contains(class));
        let orphan_limits = limited.keys().filter(move |ifindex| !interfaces.contains(ifindex));
        orphan_classes
            .map(|class| Step::DeleteClass(*class))
            .chain(orphan_limits.map(|ifindex| Step::DeleteLimit(*ifindex)))
    }

    /// Steps that give each port its limit, each with the port that it concerns. A queue is created before the port uses
    /// it. An unused queue of a port becomes unlimited, so that its queued packets leave.
    pub(crate) fn plan(&self, ports: &[(u32, Port, Option<Limit>)]) -> Vec<(Option<u32>, Step)> {
        let entry = self.pair.map_or(0, |pair| pair.entry);
        let mut used: BTreeMap<u16, u32> = BTreeMap::new();
        for (ifindex, port, _) in ports {
            if port.class != 0 {
                used.entry(port.class).or_insert(*ifindex);
            }
        }
        let mut steps = vec![];
        for (ifindex, port, limit) in ports {
            let limit = if self.unsupported { None } else { *limit };
            let queue = if limit.is_some() { entry } else { 0 };
            let class = match used.get(&port.class) {
                Some(owner) if owner == ifindex => port.class,
                _ if limit.is_none() => 0,
                _ => {
                    let free = (1..=u16::MAX).find(|class| !used.contains_key(class)).unwrap_or_default();
                    used.insert(free, *ifindex);
                    free
                }
            };
            let mut step = |step| steps.push((Some(*ifindex), step));
            let desired = Port { class, queue, ..*port };
            if limit.is_none() && desired != *port {
                step(Step::SetPort(*ifindex, desired));
            }
            let limit = limit.unwrap_or(Limit::UNLIMITED);
            let differs = |current: Option<&Limit>| match current {
                Some(current) => *current != limit,
                None => queue != 0,
            };
            if differs(self.installed.classes.get(&class)) {
                step(Step::SetClass(class, limit));
            }
            if differs(self.installed.ports.get(ifindex)) {
                step(Step::SetLimit(*ifindex, limit));
            }
            if queue != 0 && desired != *port {
                step(Step::SetPort(*ifindex, desired));
            }
        }
        steps.extend(self.orphan_steps(ports).map(|step| (None, step)));
        steps
    }

    /// Creates the veth pair and its queue. `None`, with a warning the first time, if the kernel does not support them. The
    /// caller attaches the program.
    pub(crate) async fn ensure(
        &mut self,
        netlink: &Netlink,
        writes: &Writes,
    ) -> Result<Option<VethPair>, Error> {
        if self.unsupported {
            return Ok(None);
        }
        let pair = match self.pair {
            Some(pair) => pair,
            None => create(netlink, writes).await?,
        };
        self.pair = Some(pair);
        // The queue is created last, so its presence shows that the pair is complete.
        if !self.installed.root {
            bring_up(netlink, pair, writes).await?;
            if let Err(error) = create_qdiscs(netlink, pair, writes).await {
                if errno(&error) != Some(libc::ENOENT) {
                    return Err(error);
                }
                tracing::warn!(
                    "the kernel has no sch_htb or sch_tbf: traffic above a group's rate is dropped instead of queued, and TCP \
                     stays far below the rate; run `modprobe -a sch_htb sch_tbf` and restart the agent"
                );
                netlink.delete(ENTRY, pair.entry, writes).await?;
                *self = Queues { unsupported: true, ..Queues::default() };
                return Ok(None);
            }
            self.installed.root = true;
        }
        Ok(Some(pair))
    }

    /// Executes a step, except [`Step::SetPort`].
    pub(crate) async fn execute(
        &mut self,
        step: &Step,
        netlink: &Netlink,
        writes: &Writes,
    ) -> Result<(), Error> {
        let entry = self.pair.map_or(0, |pair| pair.entry);
        let Installed { classes, ports, .. } = &mut self.installed;
        match step {
            Step::SetClass(class, limit) => {
                qdisc::set_class(netlink, entry, *class, limit, writes).await?;
                classes.insert(*class, *limit);
            }
            Step::SetLimit(ifindex, limit) => {
                qdisc::set_port(netlink, *ifindex, limit, writes).await?;
                ports.insert(*ifindex, *limit);
            }
            Step::DeleteClass(class) => {
                qdisc::delete_class(netlink, entry, *class, writes).await?;
                classes.remove(class);
            }
            Step::DeleteLimit(ifindex) => {
                qdisc::delete_port(netlink, *ifindex, writes).await?;
                ports.remove(ifindex);
            }
            Step::SetPort(..) => {}
        }
        Ok(())
    }
}

/// Removes the queues and limits that any process of the agent created.
pub(crate) async fn cleanup(netlink: &Netlink, writes: &Writes) -> Result<(), Error> {
    if let Some(link) = netlink.link(ENTRY).await? {
        netlink.delete(ENTRY, link.header.index, writes).await?;
    }
    for ifindex in qdisc::list(netlink, 0).await?.ports.into_keys() {
        qdisc::delete_port(netlink, ifindex, writes).await?;
    }
    Ok(())
}

async fn create(netlink: &Netlink, writes: &Writes) -> Result<VethPair, Error> {
    let what = || format!("create the interfaces {ENTRY} and {EXIT}");
    let exit = LinkMessageBuilder::<LinkUnspec>::new().name(EXIT.to_owned()).mtu(MTU).build();
    let pair = LinkMessageBuilder::<LinkVeth>::new(ENTRY, EXIT)
        .mtu(MTU)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(exit)))
        .build();
    writes.count();
    netlink.handle().link().add(pair).execute().await.map_err(|error| failed(what(), error))?;
    match (device::ifindex(ENTRY), device::ifindex(EXIT)) {
        (Some(entry), Some(exit)) => Ok(VethPair { entry, exit }),
        _ => Err(failed(what(), "they do not exist")),
    }
}

/// Brings both interfaces up, without addresses of the node.
async fn bring_up(netlink: &Netlink, pair: VethPair, writes: &Writes) -> Result<(), Error> {
    for (name, index) in [(ENTRY, pair.entry), (EXIT, pair.exit)] {
        let what = || format!("bring up the interface {name}");
        disable_ipv6(name).map_err(|error| failed(what(), error))?;
        let up = LinkUnspec::new_with_index(index).up().build();
        writes.count();
        netlink.handle().link().set(up).execute().await.map_err(|error| failed(what(), error))?;
    }
    Ok(())
}

/// Creates the queue. First checks on the unused end that the kernel has `tbf`.
async fn create_qdiscs(netlink: &Netlink, pair: VethPair, writes: &Writes) -> Result<(), Error> {
    qdisc::set_port(netlink, pair.exit, &Limit::UNLIMITED, writes).await?;
    qdisc::delete_port(netlink, pair.exit, writes).await?;
    qdisc::create_root(netlink, pair.entry, writes).await
}
