use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use contiv_model::{mac::Mac, name::EndpointId};
use rtnetlink::{
    Handle, LinkMessageBuilder, LinkUnspec,
    packet_route::link::{LinkAttribute, LinkMessage, State},
};
use tokio_util::task::TaskTracker;

use super::{
    dump,
    error::{ACTIVE_TIMEOUT, Error, errno},
    interface::{AttachedPort, DefaultRoutes, ExpectedLink, PodInterface},
    netns::Netns,
    pod_end,
    port::{self, Port},
    query::{self, alias, find, name, owner},
};
use crate::{fail_point::reach, sysctl};

/// Interval between checks whether a pair is active.
const ACTIVE_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Interfaces of this node. Clones share them.
#[derive(Clone, Debug)]
pub struct Links {
    handle: Handle,
    ports: Arc<Mutex<port::Numbers>>,
    /// A netlink socket supports one dump at a time.
    dump: Arc<tokio::sync::Mutex<()>>,
    /// Interfaces that are being created.
    attaching: TaskTracker,
}

impl Links {
    /// Opens a netlink socket in the network namespace of the calling thread, and deletes the incomplete ports of an
    /// earlier process. Other ports, for example those of the original netplugin, remain. Requires a tokio runtime.
    pub async fn open() -> Result<Links, Error> {
        let (connection, handle, _) =
            rtnetlink::new_connection().map_err(Error::setting("open a netlink socket for", "this node"))?;
        tokio::spawn(connection);
        let links =
            Links { handle, ports: Arc::default(), dump: Arc::default(), attaching: TaskTracker::new() };
        for link in links.list().await? {
            let Some(name) = name(&link) else { continue };
            let Some(port) = Port::parse(name) else { continue };
            if is_incomplete(&link) {
                tracing::info!(port = name, "deleting an incomplete port");
                links.delete(name).await?;
            } else {
                links.numbers().reserve(port);
            }
        }
        Ok(links)
    }

    /// Lists the attached ports.
    pub async fn attachments(&self) -> Result<Vec<AttachedPort>, Error> {
        let attachment = |link: &LinkMessage| {
            let port = name(link).filter(|name| Port::parse(name).is_some())?;
            let owner = owner(link);
            Some(AttachedPort { port: port.to_owned(), endpoint: alias(link)?.into(), owner })
        };
        Ok(self.list().await?.iter().filter_map(attachment).collect())
    }

    /// Whether a port is attached to a switch in the kernel, which forwards its frames.
    pub async fn are_switched(&self) -> Result<bool, Error> {
        let is_port = |link: &LinkMessage| name(link).and_then(Port::parse).is_some();
        let is_switched =
            |link: &LinkMessage| link.attributes.iter().any(|it| matches!(it, LinkAttribute::Controller(_)));
        Ok(self.list().await?.iter().any(|link| is_port(link) && is_switched(link)))
    }

    /// Creates a pair for `endpoint`. The host end is down until the datapath has the endpoint and sets it up: otherwise
    /// frames of the pod would enter the network stack of the node. The pod's end is configured, and down until
    /// [`Links::raise`]. An error leaves no interface behind. Continues to the end if the future is dropped, see
    /// [`Links::attached`].
    pub async fn attach(
        &self,
        endpoint: &EndpointId,
        netns: &Netns,
        pod: &PodInterface,
    ) -> Result<AttachedPort, Error> {
        let (links, id, netns, pod) = (self.clone(), endpoint.clone(), netns.clone(), pod.clone());
        let attaching = self.attaching.spawn(async move { links.create_pair(&id, &netns, &pod).await });
        let failed = Error::setting("create an interface for", endpoint.as_str());
        attaching.await.unwrap_or_else(|error| Err(failed(error.into())))
    }

    /// Waits until no interface is being created, so that an earlier run of the agent creates none while the next one
    /// runs.
    pub async fn attached(&self) {
        self.attaching.close();
        self.attaching.wait().await;
    }

    async fn create_pair(
        &self,
        endpoint: &EndpointId,
        netns: &Netns,
        pod: &PodInterface,
    ) -> Result<AttachedPort, Error> {
        let port = self.create(netns, pod).await?;
        let name = port.to_string();
        match self.finish(endpoint, &name, netns, pod).await {
            Ok(()) => Ok(AttachedPort { port: name, endpoint: endpoint.clone(), owner: pod.owner }),
            Err(error) => {
                if let Err(undo) = self.detach(&name).await {
                    tracing::error!(port = name, "roll back a failed attach: {undo}");
                }
                Err(error)
            }
        }
    }

    /// Sets the pod's end up, sets the default routes that no other interface of the pod has, and waits until the pair
    /// forwards frames. Returns the default routes that lead through the interface. The host end must be up.
    pub async fn raise(&self, port: &str, netns: &Netns, pod: &PodInterface) -> Result<DefaultRoutes, Error> {
        let pod = pod.clone();
        let routes = netns.run(move |handle| async move { pod_end::raise(&handle, &pod).await }).await?;
        wait_until_active(&self.handle, port).await?;
        Ok(routes)
    }

    /// Deletes a pair by its host end. Returns true if it existed.
    pub async fn detach(&self, port: &str) -> Result<bool, Error> {
        let existed = self.delete(port).await?;
        if let Some(port) = Port::parse(port) {
            self.numbers().release(port);
        }
        Ok(existed)
    }

    /// Whether the pod's interface `name` is the other end of `port`.
    pub async fn is_pair(&self, port: &str, netns: &Netns, name: &str) -> Result<bool, Error> {
        let Some(index) = self.index(port).await? else { return Ok(false) };
        let name = name.to_owned();
        netns.run(move |handle| async move { pod_end::is_other_end(&handle, &name, index).await }).await
    }

    /// Returns how a pair differs from what ADD configured, and the pod's end from what is expected; `None` if they do
    /// not differ.
    pub async fn difference(
        &self,
        port: &str,
        netns: &Netns,
        pod: &PodInterface,
        expected: ExpectedLink,
    ) -> Result<Option<String>, Error> {
        match find(&self.handle, port).await? {
            Some(link) if is_active(&link) => {}
            _ => return Ok(Some(format!("interface {port} of the node is down"))),
        }
        let pod = pod.clone();
        netns.run(move |handle| async move { pod_end::difference(&handle, &pod, expected).await }).await
    }

    /// Whether the node has an interface with this name.
    pub async fn exists(&self, name: &str) -> Result<bool, Error> {
        Ok(self.index(name).await?.is_some())
    }

    /// MTU of an interface of the node, in bytes; `None` if the interface does not exist.
    pub async fn mtu(&self, name: &str) -> Result<Option<u32>, Error> {
        Ok(find(&self.handle, name).await?.as_ref().and_then(query::mtu))
    }

    /// Ethernet address of an interface of the node; `None` if the interface does not exist.
    pub async fn mac(&self, name: &str) -> Result<Option<Mac>, Error> {
        let Some(link) = find(&self.handle, name).await? else { return Ok(None) };
        Ok(link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Address(octets) => octets.as_slice().try_into().ok().map(Mac),
            _ => None,
        }))
    }

    /// Name of the port of an endpoint; `None` if the endpoint has no complete port.
    pub async fn port_of(&self, endpoint: &EndpointId) -> Result<Option<String>, Error> {
        let attached = self.attachments().await?;
        Ok(attached.into_iter().find(|port| port.endpoint == *endpoint).map(|port| port.port))
    }

    /// Names of the node's own interfaces on infra networks: the other ends of their ports.
    pub async fn node_ends(&self) -> Result<Vec<String>, Error> {
        let links = self.list().await?;
        let attached = links.iter().filter(|link| alias(link).is_some());
        let ends: BTreeSet<u32> = attached.filter_map(query::node_end).collect();
        let is_end = |link: &&LinkMessage| ends.contains(&link.header.index);
        Ok(links.iter().filter(is_end).filter_map(name).map(str::to_owned).collect())
    }

    /// Makes the number of a port available again, if no interface has its name.
    pub async fn release(&self, port: &str) -> Result<(), Error> {
        if !self.exists(port).await?
            && let Some(port) = Port::parse(port)
        {
            self.numbers().release(port);
        }
        Ok(())
    }

    async fn create(&self, netns: &Netns, pod: &PodInterface) -> Result<Port, Error> {
        loop {
            let port = self.numbers().allocate().ok_or(Error::Exhausted)?;
            let name = port.to_string();
            match self.handle.link().add(pod_end::pair(&name, netns, pod)).execute().await {
                Ok(()) => {
                    reach("incomplete interface");
                    return Ok(port);
                }
                // An interface of another program has the name: the number stays reserved, and the next one is tried.
                Err(error) if errno(&error) == Some(libc::EEXIST) && self.index(&name).await?.is_some() => {}
                Err(error) => {
                    self.numbers().release(port);
                    return Err(match errno(&error) {
                        Some(libc::EEXIST) => {
                            Error::Taken { name: pod.name.clone(), path: netns.path().to_owned() }
                        }
                        _ => Error::netlink("create the veth pair", &name)(error),
                    });
                }
            }
        }
    }

    /// Configures a new pair. The alias is set last: it marks the pair as complete.
    async fn finish(
        &self,
        endpoint: &EndpointId,
        port: &str,
        netns: &Netns,
        pod: &PodInterface,
    ) -> Result<(), Error> {
        // The pod must not receive the node's router solicitations and link-local traffic.
        sysctl::disable_ipv6(port).map_err(Error::setting("disable IPv6 on", port))?;
        let spec = pod.clone();
        netns.run(move |handle| async move { pod_end::configure(&handle, &spec).await }).await?;
        let message =
            LinkMessageBuilder::<LinkUnspec>::new().name(port).alias(endpoint.as_str()).link_group(0).build();
        self.handle.link().set(message).execute().await.map_err(Error::netlink("set the alias of", port))
    }

    async fn delete(&self, name: &str) -> Result<bool, Error> {
        let Some(index) = self.index(name).await? else { return Ok(false) };
        match self.handle.link().del(index).execute().await {
            Ok(()) => Ok(true),
            Err(error) if errno(&error) == Some(libc::ENODEV) => Ok(false),
            Err(error) => Err(Error::netlink("delete", name)(error)),
        }
    }

    async fn index(&self, name: &str) -> Result<Option<u32>, Error> {
        query::index(&self.handle, name).await
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// A netlink socket supports one dump at a time.
    pub(super) async fn dump_lock(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.dump.lock().await
    }

    pub(super) async fn list(&self) -> Result<Vec<LinkMessage>, Error> {
        dump::links(&self.handle, &self.dump).await
    }

    fn numbers(&self) -> std::sync::MutexGuard<'_, port::Numbers> {
        self.ports.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Waits until the kernel has activated an interface, which happens shortly after its carrier is up. Until then the
/// queueing discipline `noop` drops all frames.
async fn wait_until_active(handle: &Handle, port: &str) -> Result<(), Error> {
    let deadline = Instant::now() + ACTIVE_TIMEOUT;
    loop {
        match find(handle, port).await? {
            Some(link) if is_active(&link) => return Ok(()),
            _ if Instant::now() < deadline => tokio::time::sleep(ACTIVE_POLL_INTERVAL).await,
            _ => return Err(Error::Inactive { port: port.to_owned() }),
        }
    }
}

fn is_active(link: &LinkMessage) -> bool {
    let up = link.attributes.contains(&LinkAttribute::OperState(State::Up));
    let sends = |a: &LinkAttribute| matches!(a, LinkAttribute::Qdisc(name) if name != "noop");
    up && link.attributes.iter().any(sends)
}

fn is_incomplete(link: &LinkMessage) -> bool {
    link.attributes.contains(&LinkAttribute::Group(pod_end::INCOMPLETE_GROUP))
}
