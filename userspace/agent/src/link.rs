//! The plumbing of a pod's interface, by netlink and in this process.
//!
//! One end of a veth pair, `vvport<N>`, stays on the node; the other is made in the pod's namespace.
//! The node's end carries the endpoint's id as its alias, so the kernel itself remembers what is
//! attached: an agent that starts again reads it back, and there is no file that could be half
//! written.

mod netns;
mod offload;
mod pod;
mod port;
mod traffic;

use std::{
    collections::BTreeSet,
    io,
    net::{Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    sync::Mutex,
    time::{Duration, Instant},
};

use contiv_model::{mac::Mac, name::EndpointId};
use futures::TryStreamExt as _;
use rtnetlink::{
    Handle, LinkMessageBuilder, LinkUnspec,
    packet_route::link::{LinkAttribute, LinkMessage, State},
};

pub use netns::Netns;
pub use port::Port;
pub(crate) use port::silence;
pub use traffic::PodTraffic;

use crate::datapath::Owner;

/// What the pod's end of a pair is to look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodInterface {
    /// Its name in the pod, e.g. `eth0`.
    pub name: String,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Its IPv4 address and prefix length.
    pub ip: (Ipv4Addr, u8),
    /// Its IPv6 address and prefix length.
    pub ip6: Option<(Ipv6Addr, u8)>,
    /// Where the IPv4 default route leads.
    pub gateway: Option<Ipv4Addr>,
    /// Where the IPv6 default route leads.
    pub gateway6: Option<Ipv6Addr>,
    /// Of both ends, in bytes.
    pub mtu: u32,
    /// Who has it.
    pub owner: Owner,
    /// Whether the pod must finish checksums itself.
    pub disable_tx_offload: bool,
}

/// A pair that is attached, as the kernel remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The name of the node's end.
    pub port: String,
    /// Whose it is.
    pub endpoint: EndpointId,
    /// Who has the other end.
    pub owner: Owner,
}

/// An interface could not be made, found, changed or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pod's namespace can not be entered.
    #[error("open the network namespace {} (it must be a path such as /run/netns/NAME or /proc/PID/ns/net)", path.display())]
    Namespace {
        /// As it was given.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The thread that works in a namespace could not be had, or ended early.
    #[error("work in the network namespace {}", path.display())]
    Thread {
        /// Of the namespace.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// A netlink request was refused.
    #[error("{operation} {link}")]
    Netlink {
        /// What was asked for.
        operation: &'static str,
        /// Of which interface.
        link: String,
        /// What the kernel said.
        #[source]
        source: rtnetlink::Error,
    },
    /// A setting that is not reached by netlink was refused.
    #[error("{operation} {link}")]
    Setting {
        /// What was asked for.
        operation: &'static str,
        /// Of which interface.
        link: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The pod has an interface of that name already.
    #[error("make {name} in {}: the pod has an interface of that name already", path.display())]
    Taken {
        /// The name.
        name: String,
        /// The pod's namespace.
        path: PathBuf,
    },
    /// The pair is complete and does not come up.
    #[error("bring up {port}: it has no carrier after {ACTIVE_WITHIN:?}")]
    Inactive {
        /// The node's end.
        port: String,
    },
    /// No port number is left.
    #[error("make a port: all {} are in use on this node", port::COUNT)]
    Exhausted,
}

impl Error {
    fn netlink(operation: &'static str, link: &str) -> impl FnOnce(rtnetlink::Error) -> Error {
        move |source| Error::Netlink { operation, link: link.to_owned(), source }
    }

    fn setting(operation: &'static str, link: &str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Setting { operation, link: link.to_owned(), source }
    }
}

/// The errno of a refused netlink request, positive.
fn errno(error: &rtnetlink::Error) -> Option<i32> {
    match error {
        rtnetlink::Error::NetlinkError(message) => Some(-message.raw_code()),
        _ => None,
    }
}

/// The interfaces of this node.
#[derive(Debug)]
pub struct Links {
    handle: Handle,
    ports: Mutex<port::Numbers>,
    /// A netlink socket takes one listing at a time.
    listing: tokio::sync::Mutex<()>,
}

impl Links {
    /// Opens a netlink socket in the namespace of the calling thread, and removes ports that an
    /// earlier run began and did not finish. Ports of others, such as those that Contiv netplugin made,
    /// stay. Needs a tokio runtime.
    pub async fn open() -> Result<Links, Error> {
        let (connection, handle, _) =
            rtnetlink::new_connection().map_err(Error::setting("open a netlink socket for", "this node"))?;
        tokio::spawn(connection);
        let links = Links { handle, ports: Mutex::default(), listing: tokio::sync::Mutex::default() };
        for link in links.list().await? {
            let Some(name) = name(&link) else { continue };
            let Some(port) = Port::parse(name) else { continue };
            if is_unfinished(&link) {
                tracing::info!(port = name, "removing a port that was never finished");
                links.delete(name).await?;
            } else {
                links.numbers().take(port);
            }
        }
        Ok(links)
    }

    /// What is attached.
    pub async fn attachments(&self) -> Result<Vec<Attachment>, Error> {
        let attachment = |link: &LinkMessage| {
            let port = name(link).filter(|name| Port::parse(name).is_some())?;
            let owner = owner(link);
            Some(Attachment { port: port.to_owned(), endpoint: alias(link)?.into(), owner })
        };
        Ok(self.list().await?.iter().filter_map(attachment).collect())
    }

    /// Makes a pair for `endpoint`: the node's end up, the pod's end complete but down. On an error
    /// nothing is left. [`Links::raise`] brings it to life.
    pub async fn attach(
        &self,
        endpoint: &EndpointId,
        netns: &Netns,
        pod: &PodInterface,
    ) -> Result<Attachment, Error> {
        let port = self.create(netns, pod).await?;
        let name = port.to_string();
        match self.finish(endpoint, &name, netns, pod).await {
            Ok(()) => Ok(Attachment { port: name, endpoint: endpoint.clone(), owner: pod.owner }),
            Err(error) => {
                if let Err(undo) = self.detach(&name).await {
                    tracing::error!(port = name, "after a failed attach: {undo}");
                }
                Err(error)
            }
        }
    }

    /// Brings the pod's end up and sets its routes; returns when the pair carries frames.
    pub async fn raise(&self, port: &str, netns: &Netns, pod: &PodInterface) -> Result<(), Error> {
        let pod = pod.clone();
        netns.run(move |handle| async move { pod::raise(&handle, &pod).await }).await?;
        carries_frames(&self.handle, port).await
    }

    /// Removes a pair by the node's end; true when it was there.
    pub async fn detach(&self, port: &str) -> Result<bool, Error> {
        let was_there = self.delete(port).await?;
        if let Some(port) = Port::parse(port) {
            self.numbers().give(port);
        }
        Ok(was_there)
    }

    /// Whether the interface `name` of the pod is the other end of `port`.
    pub async fn is_pair(&self, port: &str, netns: &Netns, name: &str) -> Result<bool, Error> {
        let Some(index) = self.index(port).await? else { return Ok(false) };
        let name = name.to_owned();
        netns.run(move |handle| async move { pod::is_other_end(&handle, &name, index).await }).await
    }

    /// Whether the node has an interface of this name.
    pub async fn is_there(&self, name: &str) -> Result<bool, Error> {
        Ok(self.index(name).await?.is_some())
    }

    /// The Ethernet address of an interface of the node.
    pub async fn mac(&self, name: &str) -> Result<Option<Mac>, Error> {
        let Some(link) = find(&self.handle, name).await? else { return Ok(None) };
        Ok(link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Address(octets) => octets.as_slice().try_into().ok().map(Mac),
            _ => None,
        }))
    }

    /// The lowest MTU of the node's own interfaces: what its pods' frames have to fit in.
    pub async fn lowest_mtu(&self) -> Result<u32, Error> {
        let links = self.list().await?;
        // The other ends of ports, where those are the node's: they have their MTU from here.
        let ends: BTreeSet<u32> = links.iter().filter_map(traffic::end_at_the_node).collect();
        let mtu = |link: &LinkMessage| {
            name(link).filter(|name| is_the_nodes_own(name) && !ends.contains(&link.header.index))?;
            link.attributes.iter().find_map(|a| match a {
                LinkAttribute::Mtu(mtu) => Some(*mtu),
                _ => None,
            })
        };
        Ok(links.iter().filter_map(mtu).min().unwrap_or(DEFAULT_MTU))
    }

    async fn create(&self, netns: &Netns, pod: &PodInterface) -> Result<Port, Error> {
        loop {
            let port = self.numbers().lowest().ok_or(Error::Exhausted)?;
            let name = port.to_string();
            match self.handle.link().add(pod::pair(&name, netns, pod)).execute().await {
                Ok(()) => return Ok(port),
                // Somebody else's interface has the name: it stays taken, the next one may be free.
                Err(error) if errno(&error) == Some(libc::EEXIST) && self.index(&name).await?.is_some() => {}
                Err(error) => {
                    self.numbers().give(port);
                    return Err(match errno(&error) {
                        Some(libc::EEXIST) => {
                            Error::Taken { name: pod.name.clone(), path: netns.path().to_owned() }
                        }
                        _ => Error::netlink("make the veth pair", &name)(error),
                    });
                }
            }
        }
    }

    /// What is left to do after [`Links::create`]. The alias comes last: it says that the rest is done.
    async fn finish(
        &self,
        endpoint: &EndpointId,
        port: &str,
        netns: &Netns,
        pod: &PodInterface,
    ) -> Result<(), Error> {
        silence(port)?;
        let spec = pod.clone();
        netns.run(move |handle| async move { pod::dress(&handle, &spec).await }).await?;
        let message = LinkMessageBuilder::<LinkUnspec>::new()
            .name(port)
            .up()
            .alias(endpoint.as_str())
            .link_group(0)
            .build();
        self.handle.link().set(message).execute().await.map_err(Error::netlink("bring up", port))
    }

    async fn delete(&self, name: &str) -> Result<bool, Error> {
        let Some(index) = self.index(name).await? else { return Ok(false) };
        match self.handle.link().del(index).execute().await {
            Ok(()) => Ok(true),
            Err(error) if errno(&error) == Some(libc::ENODEV) => Ok(false),
            Err(error) => Err(Error::netlink("remove", name)(error)),
        }
    }

    async fn index(&self, name: &str) -> Result<Option<u32>, Error> {
        index(&self.handle, name).await
    }

    async fn list(&self) -> Result<Vec<LinkMessage>, Error> {
        let _turn = self.listing.lock().await;
        let links = self.handle.link().get().execute().try_collect().await;
        links.map_err(Error::netlink("list", "the node's interfaces"))
    }

    fn numbers(&self) -> std::sync::MutexGuard<'_, port::Numbers> {
        self.ports.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

const DEFAULT_MTU: u32 = 1500;
/// How long the kernel may take to activate a pair.
const ACTIVE_WITHIN: Duration = Duration::from_secs(5);
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(1);

/// Interfaces that are there for pods and containers, or are not there at all when frames travel.
const NOT_THE_NODES_OWN: [&str; 10] =
    ["lo", "docker", "veth", "vport", "vvport", "vxif", "contiv", "ovs-", "vxlan_sys_", "genev_sys_"];

fn is_the_nodes_own(name: &str) -> bool {
    !NOT_THE_NODES_OWN.iter().any(|prefix| name.starts_with(prefix))
}

async fn index(handle: &Handle, name: &str) -> Result<Option<u32>, Error> {
    Ok(find(handle, name).await?.map(|link| link.header.index))
}

async fn find(handle: &Handle, name: &str) -> Result<Option<LinkMessage>, Error> {
    let mut found = handle.link().get().match_name(name.to_owned()).execute();
    match found.try_next().await {
        Ok(link) => Ok(link),
        Err(error) if errno(&error) == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(Error::netlink("look up", name)(error)),
    }
}

fn name(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}

/// The kernel activates an interface a moment after its carrier is there; what is sent meanwhile is
/// dropped by a queueing discipline called `noop`.
async fn carries_frames(handle: &Handle, port: &str) -> Result<(), Error> {
    let deadline = Instant::now() + ACTIVE_WITHIN;
    loop {
        match find(handle, port).await? {
            Some(link) if is_active(&link) => return Ok(()),
            _ if Instant::now() < deadline => tokio::time::sleep(ASK_AGAIN_AFTER).await,
            _ => return Err(Error::Inactive { port: port.to_owned() }),
        }
    }
}

fn is_active(link: &LinkMessage) -> bool {
    let up = link.attributes.contains(&LinkAttribute::OperState(State::Up));
    let sends = |a: &LinkAttribute| matches!(a, LinkAttribute::Qdisc(name) if name != "noop");
    up && link.attributes.iter().any(sends)
}

fn is_unfinished(link: &LinkMessage) -> bool {
    link.attributes.contains(&LinkAttribute::Group(pod::UNFINISHED))
}

/// Of a port.
fn owner(link: &LinkMessage) -> Owner {
    match traffic::end_at_the_node(link) {
        Some(_) => Owner::Node,
        None => Owner::Pod,
    }
}

fn alias(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfAlias(alias) => Some(alias.as_str()),
        _ => None,
    })
}
