//! The queues of pods whose groups have a rate.
//!
//! ```text
//! pod -> vvportN -> ctv_from_pod -> [ htb, a class for each port ] contivq0 == contivq1 -> ctv_from_queue -> ...
//! ... -> [ tbf ] vvportN -> pod
//! ```
//!
//! What waits is still the sender's: a TCP socket of the pod is told to wait instead of losing packets. The queues
//! are in the node's namespace, where a pod has no hand in them.

use std::collections::{BTreeMap, BTreeSet};

use contiv_abi::Port;
use rtnetlink::{
    LinkMessageBuilder, LinkUnspec, LinkVeth,
    packet_route::link::{InfoData, InfoVeth},
};

use crate::{
    datapath::{
        Error,
        ebpf::{
            device::{self, Netlink},
            failure::{errno, failed},
            maps::writes::Writes,
            rate::qdisc::{Found, Limit},
        },
    },
    sysctl::disable_ipv6,
};

/// What the classes are in front of.
pub(crate) const ENTRY: &str = "contivq0";
/// Its other end.
pub(crate) const EXIT: &str = "contivq1";
/// Takes whatever pods send.
const MTU: u32 = 65_535;

/// Indices of the two interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) entry: u32,
    pub(crate) exit: u32,
}

/// The queues as they are in the kernel.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    pair: Option<Pair>,
    found: Found,
    /// The kernel has no queues.
    missing: bool,
}

/// One thing to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The class with this number is to be there.
    Class(u16, Limit),
    /// What the interface is sent is to be limited.
    End(u32, Limit),
    /// The port is to be as this.
    Port(u32, Port),
    /// Nobody's class is to go.
    NoClass(u16),
    /// What is no port any more is to be without a limit.
    NoEnd(u32),
}

impl Queues {
    /// Reads what is there.
    pub(crate) async fn read(&mut self, netlink: &Netlink) -> Result<(), Error> {
        self.pair = match (netlink.link(ENTRY).await?, device::ifindex(EXIT)) {
            (Some(entry), Some(exit)) => Some(Pair { entry: entry.header.index, exit }),
            _ => None,
        };
        self.found = netlink.limits(self.pair.map_or(0, |pair| pair.entry)).await?;
        Ok(())
    }

    pub(crate) fn pair(&self) -> Option<Pair> {
        self.pair
    }

    /// True when the kernel has no queues, and what is too much is dropped.
    pub(crate) fn are_missing(&self) -> bool {
        self.missing
    }

    /// Whether the port's frames wait as they should.
    pub(crate) fn suits(&self, ifindex: u32, port: &Port, limit: Option<Limit>) -> bool {
        if self.missing {
            return port.queue == 0;
        }
        let Some(limit) = limit else { return port.queue == 0 };
        let waits = self.pair.is_some_and(|pair| port.queue == pair.entry) && self.found.root;
        waits
            && self.found.classes.get(&port.class) == Some(&limit)
            && self.found.ends.get(&ifindex) == Some(&limit)
    }

    /// What no port accounts for.
    pub(crate) fn strays<'a>(&self, ports: impl Iterator<Item = (&'a u32, &'a Port)>) -> usize {
        let ports: Vec<_> = ports.map(|(ifindex, port)| (*ifindex, *port, None)).collect();
        self.stray_steps(&ports).count()
    }

    fn stray_steps(&self, ports: &[(u32, Port, Option<Limit>)]) -> impl Iterator<Item = Step> {
        let classes: BTreeSet<u16> = ports.iter().map(|(_, port, _)| port.class).collect();
        let ends: BTreeSet<u32> = ports.iter().map(|(ifindex, ..)| *ifindex).collect();
        let Found { classes: found, ends: limited, .. } = &self.found;
        let stray_classes = found.keys().filter(move |class| !classes.contains(class));
        let stray_ends = limited.keys().filter(move |ifindex| !ends.contains(ifindex));
        stray_classes.map(|class| Step::NoClass(*class)).chain(stray_ends.map(|end| Step::NoEnd(*end)))
    }

    /// What is to be done so that each port has its limit; ports that a step is about with it. A queue is there before
    /// frames are led to it. One that is not wanted any more is left open, so that what waits in it arrives.
    pub(crate) fn plan(&self, ports: &[(u32, Port, Option<Limit>)]) -> Vec<(Option<u32>, Step)> {
        let entry = self.pair.map_or(0, |pair| pair.entry);
        let mut taken: BTreeMap<u16, u32> = BTreeMap::new();
        for (ifindex, port, _) in ports {
            if port.class != 0 {
                taken.entry(port.class).or_insert(*ifindex);
            }
        }
        let mut steps = vec![];
        for (ifindex, port, limit) in ports {
            let limit = if self.missing { None } else { *limit };
            let queue = if limit.is_some() { entry } else { 0 };
            let class = match taken.get(&port.class) {
                Some(owner) if owner == ifindex => port.class,
                _ if limit.is_none() => 0,
                _ => {
                    let free = (1..=u16::MAX).find(|class| !taken.contains_key(class)).unwrap_or_default();
                    taken.insert(free, *ifindex);
                    free
                }
            };
            let mut step = |step| steps.push((Some(*ifindex), step));
            let wanted = Port { class, queue, ..*port };
            if limit.is_none() && wanted != *port {
                step(Step::Port(*ifindex, wanted));
            }
            let limit = limit.unwrap_or(Limit::OPEN);
            let differs = |there: Option<&Limit>| match there {
                Some(there) => *there != limit,
                None => queue != 0,
            };
            if differs(self.found.classes.get(&class)) {
                step(Step::Class(class, limit));
            }
            if differs(self.found.ends.get(ifindex)) {
                step(Step::End(*ifindex, limit));
            }
            if queue != 0 && wanted != *port {
                step(Step::Port(*ifindex, wanted));
            }
        }
        steps.extend(self.stray_steps(ports).map(|step| (None, step)));
        steps
    }

    /// Makes the pair with its queue be there; `None` when the kernel has no such thing, which is said once. The caller
    /// sees to the program.
    pub(crate) async fn ensure(&mut self, netlink: &Netlink, writes: &Writes) -> Result<Option<Pair>, Error> {
        if self.missing {
            return Ok(None);
        }
        let pair = match self.pair {
            Some(pair) => pair,
            None => make(netlink, writes).await?,
        };
        self.pair = Some(pair);
        // The queue comes last: where it is, everything is.
        if !self.found.root {
            raise(netlink, pair, writes).await?;
            if let Err(error) = try_kinds(netlink, pair, writes).await {
                if errno(&error) != Some(libc::ENOENT) {
                    return Err(error);
                }
                tracing::warn!(
                    "the kernel has no queues for rates (modprobe sch_htb, sch_tbf; then start again): what is too much for \
                     a group's rate is dropped, and TCP will stay far below it"
                );
                netlink.delete(ENTRY, pair.entry, writes).await?;
                *self = Queues { missing: true, ..Queues::default() };
                return Ok(None);
            }
            self.found.root = true;
        }
        Ok(Some(pair))
    }

    /// Takes a step in the kernel, but for those that are the caller's.
    pub(crate) async fn take(
        &mut self,
        step: &Step,
        netlink: &Netlink,
        writes: &Writes,
    ) -> Result<(), Error> {
        let entry = self.pair.map_or(0, |pair| pair.entry);
        let Found { classes, ends, .. } = &mut self.found;
        match step {
            Step::Class(class, limit) => {
                netlink.set_class(entry, *class, limit, writes).await?;
                classes.insert(*class, *limit);
            }
            Step::End(ifindex, limit) => {
                netlink.set_end(*ifindex, limit, writes).await?;
                ends.insert(*ifindex, *limit);
            }
            Step::NoClass(class) => {
                netlink.delete_class(entry, *class, writes).await?;
                classes.remove(class);
            }
            Step::NoEnd(ifindex) => {
                netlink.delete_end(*ifindex, writes).await?;
                ends.remove(ifindex);
            }
            Step::Port(..) => {}
        }
        Ok(())
    }
}

/// Removes all that any run has made.
pub(crate) async fn cleanup(netlink: &Netlink, writes: &Writes) -> Result<(), Error> {
    if let Some(link) = netlink.link(ENTRY).await? {
        netlink.delete(ENTRY, link.header.index, writes).await?;
    }
    for ifindex in netlink.limits(0).await?.ends.into_keys() {
        netlink.delete_end(ifindex, writes).await?;
    }
    Ok(())
}

async fn make(netlink: &Netlink, writes: &Writes) -> Result<Pair, Error> {
    let what = || format!("make the interfaces {ENTRY} and {EXIT}");
    let exit = LinkMessageBuilder::<LinkUnspec>::new().name(EXIT.to_owned()).mtu(MTU).build();
    let pair = LinkMessageBuilder::<LinkVeth>::new(ENTRY, EXIT)
        .mtu(MTU)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(exit)))
        .build();
    writes.count();
    netlink.handle().link().add(pair).execute().await.map_err(|error| failed(what(), error))?;
    match (device::ifindex(ENTRY), device::ifindex(EXIT)) {
        (Some(entry), Some(exit)) => Ok(Pair { entry, exit }),
        _ => Err(failed(what(), "they are gone again")),
    }
}

/// Brings both up. The node itself has nothing to say there.
async fn raise(netlink: &Netlink, pair: Pair, writes: &Writes) -> Result<(), Error> {
    for (name, index) in [(ENTRY, pair.entry), (EXIT, pair.exit)] {
        let what = || format!("bring up the interface {name}");
        disable_ipv6(name).map_err(|error| failed(what(), error))?;
        let up = LinkUnspec::new_with_index(index).up().build();
        writes.count();
        netlink.handle().link().set(up).execute().await.map_err(|error| failed(what(), error))?;
    }
    Ok(())
}

/// Makes the queue; and looks whether the kernel has the other kind, too, where nothing is ever sent.
async fn try_kinds(netlink: &Netlink, pair: Pair, writes: &Writes) -> Result<(), Error> {
    netlink.set_end(pair.exit, &Limit::OPEN, writes).await?;
    netlink.delete_end(pair.exit, writes).await?;
    netlink.make_root(pair.entry, writes).await
}
