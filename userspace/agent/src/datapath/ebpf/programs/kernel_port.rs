//! The interfaces to the node's kernel: veth pairs. The programs are attached to their other ends.

use std::io;

use rtnetlink::{
    LinkMessageBuilder, LinkUnspec, LinkVeth,
    packet_route::link::{InfoData, InfoVeth, LinkAttribute, LinkFlags},
};

use crate::{
    datapath::{
        Error, KERNEL_MAC, KERNEL_PORT, Object,
        ebpf::{
            device::Netlink,
            failure::{errno, failed},
            maps::writes::Writes,
        },
        host_access::HOST_PORT,
    },
    sysctl,
};

/// Larger than the MTU of any network: the pods' MTU and the routes of the node apply. A veth silently drops larger
/// packets.
const MTU: u32 = 65_535;

/// An interface to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelPort {
    /// For host access: pods of VXLAN networks reach addresses outside the cluster through it.
    HostAccess,
    /// For VLAN networks that the kernel routes.
    Vlans,
}

impl KernelPort {
    pub(crate) const ALL: [KernelPort; 2] = [KernelPort::HostAccess, KernelPort::Vlans];

    /// The interface that an object needs.
    pub(crate) fn of(object: &Object) -> Option<KernelPort> {
        match object {
            Object::Route(route) => route.private_subnet().map(|_| KernelPort::HostAccess),
            Object::Subnet(subnet) => subnet.is_routed_vlan().then_some(KernelPort::Vlans),
            _ => None,
        }
    }

    /// Name of the kernel's end.
    pub(crate) fn name(self) -> &'static str {
        match self {
            KernelPort::HostAccess => HOST_PORT,
            KernelPort::Vlans => KERNEL_PORT,
        }
    }

    /// Name of the datapath's end.
    pub(crate) fn peer(self) -> &'static str {
        match self {
            KernelPort::HostAccess => "contivh0-peer",
            KernelPort::Vlans => "inb01-peer",
        }
    }

    /// Creates the pair unless it exists, and reverts manual changes. Returns the index of the datapath's end, which is
    /// up. The kernel's end is brought up when it is configured.
    pub(crate) async fn ensure(self, netlink: &Netlink, writes: &Writes) -> Result<u32, Error> {
        let (name, end) = (self.name(), self.peer());
        let what = || format!("create the interface {name}");
        if netlink.link(end).await?.is_none() {
            let peer = LinkMessageBuilder::<LinkUnspec>::new().name(end.to_owned()).mtu(MTU).build();
            let pair = LinkMessageBuilder::<LinkVeth>::new(name, end)
                .address(KERNEL_MAC.0.to_vec())
                .mtu(MTU)
                .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
                .build();
            writes.count();
            netlink.handle().link().add(pair).execute().await.map_err(|error| match errno(&error) {
                Some(libc::EEXIST) => failed(
                    format!("{}; remove the interface of this name, or wait until it is", what()),
                    error,
                ),
                _ => failed(what(), error),
            })?;
        }
        let gone = || failed(what(), io::Error::from_raw_os_error(libc::ENODEV));
        let link = netlink.link(end).await?.ok_or_else(gone)?;
        let kernel = netlink.link(name).await?.ok_or_else(gone)?;
        if !kernel.attributes.contains(&LinkAttribute::Address(KERNEL_MAC.0.to_vec()))
            || !kernel.attributes.contains(&LinkAttribute::Mtu(MTU))
        {
            let repaired =
                LinkUnspec::new_with_index(kernel.header.index).address(KERNEL_MAC.0.to_vec()).mtu(MTU);
            writes.count();
            let set = netlink.handle().link().set(repaired.build()).execute().await;
            set.map_err(|error| failed(what(), error))?;
        }
        if !link.header.flags.contains(LinkFlags::Up) {
            sysctl::disable_ipv6(end).map_err(|error| failed(what(), error))?;
            let up = LinkUnspec::new_with_index(link.header.index).up().build();
            writes.count();
            netlink.handle().link().set(up).execute().await.map_err(|error| failed(what(), error))?;
        }
        Ok(link.header.index)
    }

    /// Deletes the pair, if it exists.
    pub(crate) async fn remove(self, netlink: &Netlink, writes: &Writes) -> Result<(), Error> {
        match netlink.link(self.peer()).await? {
            Some(link) => netlink.delete(self.peer(), link.header.index, writes).await,
            None => Ok(()),
        }
    }
}
