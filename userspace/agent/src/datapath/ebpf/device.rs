//! Interfaces: netlink and ethtool requests for the VXLAN device and the uplink.

use std::{io, net::IpAddr};

use futures::{StreamExt as _, TryStreamExt as _, channel::mpsc::UnboundedReceiver};
use rtnetlink::{
    Handle, LinkMessageBuilder, LinkUnspec, LinkVxlan, MulticastGroup,
    packet_core::{NetlinkMessage, NetlinkPayload},
    packet_route::{
        RouteNetlinkMessage,
        link::{InfoData, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
    },
    sys::SocketAddr,
};

use crate::{
    addresses,
    datapath::{
        Error,
        ebpf::{
            failure::{errno, failed},
            maps::writes::Writes,
        },
    },
    netdevice::Requests,
};

/// Netlink socket in the network namespace of the calling thread.
pub(crate) struct Netlink {
    handle: Handle,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Netlink {
    pub(crate) fn open() -> Result<Netlink, Error> {
        let (connection, handle, _) =
            rtnetlink::new_connection().map_err(|error| failed("open a netlink socket", error))?;
        Ok(Netlink { handle, task: tokio::spawn(connection) })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) async fn link(&self, name: &str) -> Result<Option<LinkMessage>, Error> {
        let mut links = self.handle.link().get().match_name(name.to_owned()).execute();
        match links.try_next().await {
            Ok(link) => Ok(link),
            Err(error) if errno(&error) == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(failed(format!("query the interface {name}"), error)),
        }
    }

    /// Creates the VXLAN device, or replaces a device with other parameters. Returns its index.
    pub(crate) async fn ensure_vxlan(&self, name: &str, port: u16, writes: &Writes) -> Result<u32, Error> {
        if let Some(link) = self.link(name).await? {
            if is_our_vxlan(&link, port) {
                if !link.header.flags.contains(LinkFlags::Up) {
                    self.change(name, LinkUnspec::new_with_index(link.header.index).up().build(), writes)
                        .await?;
                }
                return Ok(link.header.index);
            }
            self.delete(name, link.header.index, writes).await?;
        }
        let message = LinkMessageBuilder::<LinkVxlan>::new(name)
            .collect_metadata(true)
            .learning(false)
            // Other implementations may send no checksum over IPv6 either.
            .udp_zero_csum6_rx(true)
            .port(port)
            .up()
            .build();
        writes.count();
        self.handle.link().add(message).execute().await.map_err(|error| {
            let advice = match errno(&error) {
                Some(libc::EEXIST | libc::EADDRINUSE) if has_tunnels_of_ovs(port) => {
                    "; check for VXLAN tunnels on this port with `ovs-vsctl show`"
                }
                Some(libc::EEXIST | libc::EADDRINUSE) => {
                    "; check for another VXLAN device on this port with `ip -d link show type vxlan`"
                }
                Some(libc::EOPNOTSUPP) => "; load the kernel module with `modprobe vxlan`",
                _ => "",
            };
            failed(format!("create the VXLAN device {name} on UDP port {port}{advice}"), error)
        })?;
        match self.link(name).await? {
            Some(link) => Ok(link.header.index),
            None => Err(failed(
                format!("find the VXLAN device {name}"),
                io::Error::from_raw_os_error(libc::ENODEV),
            )),
        }
    }

    /// Makes the uplink promiscuous, so that it receives frames for all pods, and returns its index and whether it has a
    /// carrier; `None` if it does not exist. Brings it up only together with that change: an operator may take it down
    /// later on purpose.
    pub(crate) async fn ensure_uplink(
        &self,
        name: &str,
        writes: &Writes,
    ) -> Result<Option<(u32, bool)>, Error> {
        let Some(mut link) = self.link(name).await? else { return Ok(None) };
        let index = link.header.index;
        if !link.header.flags.contains(LinkFlags::Promisc) {
            let message = LinkUnspec::new_with_index(index).up().promiscuous(true).build();
            self.change(name, message, writes).await?;
            let Some(changed) = self.link(name).await? else { return Ok(None) };
            link = changed;
        }
        Ok(Some((index, has_carrier(&link))))
    }

    /// Ends the promiscuous mode of the uplink. It stays up for the traffic of the node.
    pub(crate) async fn release_uplink(&self, name: &str, writes: &Writes) -> Result<(), Error> {
        match self.link(name).await? {
            Some(link) if link.header.flags.contains(LinkFlags::Promisc) => {
                let message = LinkUnspec::new_with_index(link.header.index).promiscuous(false).build();
                self.change(name, message, writes).await
            }
            _ => Ok(()),
        }
    }

    async fn change(&self, name: &str, message: LinkMessage, writes: &Writes) -> Result<(), Error> {
        writes.count();
        let changed = self.handle.link().set(message).execute().await;
        changed.map_err(|error| failed(format!("set flags of the interface {name}"), error))
    }

    pub(crate) async fn delete(&self, name: &str, index: u32, writes: &Writes) -> Result<(), Error> {
        writes.count();
        let deleted = self.handle.link().del(index).execute().await;
        deleted.map_err(|error| failed(format!("delete the interface {name}"), error))
    }

    /// Names of all interfaces.
    pub(crate) async fn names(&self) -> Result<Vec<String>, Error> {
        let links: Vec<LinkMessage> = self
            .handle
            .link()
            .get()
            .execute()
            .try_collect()
            .await
            .map_err(|error| failed("list the interfaces", error))?;
        Ok(links.iter().filter_map(name_of).collect())
    }
}

/// Subscription to interface notifications.
pub(crate) struct InterfaceMonitor {
    notifications: UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for InterfaceMonitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl InterfaceMonitor {
    pub(crate) fn open() -> Result<InterfaceMonitor, Error> {
        let (connection, _, notifications) = rtnetlink::new_multicast_connection(&[MulticastGroup::Link])
            .map_err(|error| failed("open a netlink socket for interface notifications", error))?;
        Ok(InterfaceMonitor { notifications, task: tokio::spawn(connection) })
    }

    /// Whether the subscription is still active.
    pub(crate) fn is_open(&self) -> bool {
        !self.task.is_finished()
    }

    /// Waits for the next notification about an interface: its index, and whether it has a carrier. `None` when the
    /// subscription has ended.
    pub(crate) async fn next(&mut self) -> Option<(u32, bool)> {
        loop {
            let (message, _) = self.notifications.next().await?;
            match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                    return Some((link.header.index, has_carrier(&link)));
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link)) => {
                    return Some((link.header.index, false));
                }
                _ => {}
            }
        }
    }

    /// Resolves when one of the interfaces is deleted, when one of those that are `missing` exists, or when the subscription ends.
    pub(crate) async fn changed(&mut self, interfaces: &[u32], missing: &[String]) {
        while let Some((message, _)) = self.notifications.next().await {
            let is_awaited = match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link)) => {
                    interfaces.contains(&link.header.index)
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                    !missing.is_empty() && name_of(&link).is_some_and(|name| missing.contains(&name))
                }
                _ => false,
            };
            if is_awaited {
                return;
            }
        }
    }
}

/// Whether the interface is up, and connected to a live one.
fn has_carrier(link: &LinkMessage) -> bool {
    link.header.flags.contains(LinkFlags::Up | LinkFlags::LowerUp)
}

fn name_of(link: &LinkMessage) -> Option<String> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    })
}

fn is_our_vxlan(link: &LinkMessage, port: u16) -> bool {
    let options = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => infos.iter().find_map(|info| match info {
            LinkInfo::Data(InfoData::Vxlan(options)) => Some(options),
            _ => None,
        }),
        _ => None,
    });
    options.is_some_and(|options| {
        options.contains(&InfoVxlan::CollectMetadata(true)) && options.contains(&InfoVxlan::Port(port))
    })
}

/// Reports whether the VXLAN device could not be created because the kernel datapath of Open vSwitch uses the UDP port.
/// It has its own device for all tunnels on a port (dpif_netlink_rtnl in lib/dpif-netlink-rtnl.c).
pub(crate) fn is_port_of_ovs(error: &Error, port: u16) -> bool {
    matches!(errno(error), Some(libc::EEXIST | libc::EADDRINUSE)) && has_tunnels_of_ovs(port)
}

fn has_tunnels_of_ovs(port: u16) -> bool {
    ifindex(&format!("vxlan_sys_{port}")).is_some()
}

/// Index of an interface in the network namespace of the calling thread.
pub(crate) fn ifindex(name: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(name).ok()
}

/// Name of the interface with this address.
pub(crate) fn with_address(address: IpAddr) -> Option<String> {
    let mut addresses = addresses::read().ok()?.into_iter();
    addresses.find(|(_, found)| found.addr() == address).map(|(interface, _)| interface)
}

/// Whether the interface is a veth, which does not complete partial checksums.
pub(crate) fn is_veth(name: &str) -> bool {
    let driver = Requests::new(name).and_then(|mut requests| requests.driver());
    driver.is_ok_and(|driver| driver.starts_with(b"veth\0"))
}

/// Disables TX checksum offload, so that the kernel completes checksums before it sends frames through this interface.
pub(crate) fn ensure_tx_checksum_off(name: &str, writes: &Writes) -> Result<(), Error> {
    let what = |error| failed(format!("disable TX checksum offload of {name}"), error);
    let mut requests = Requests::new(name).map_err(what)?;
    if requests.tx_checksum_offload().map_err(what)? {
        writes.count();
        requests.set_tx_checksum_offload(false).map_err(what)?;
    }
    Ok(())
}

/// Whether RX VLAN offload is enabled, which removes VLAN tags from received frames. False if the driver does not
/// report it.
pub(crate) fn has_rx_vlan_offload(name: &str) -> bool {
    const ETH_FLAG_RXVLAN: u32 = 1 << 8;
    let flags = Requests::new(name).and_then(|mut requests| requests.ethtool_flags());
    flags.is_ok_and(|flags| flags & ETH_FLAG_RXVLAN != 0)
}
