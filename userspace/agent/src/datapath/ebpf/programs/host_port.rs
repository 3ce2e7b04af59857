//! The interface to the node's kernel, by which pods reach addresses outside of the cluster: a veth pair. The programs are at its
//! other end.

use std::io;

use rtnetlink::{
    LinkMessageBuilder, LinkUnspec, LinkVeth,
    packet_route::link::{InfoData, InfoVeth, LinkFlags},
};

use crate::{
    datapath::{
        Error, KERNEL_MAC,
        ebpf::{
            device::Netlink,
            failure::{errno, failed},
            maps::writes::Writes,
        },
        host_access::HOST_PORT,
    },
    sysctl,
};

/// The datapath's end of the pair.
pub(crate) const PEER: &str = "contivh0-peer";

/// Creates the pair, unless it exists. Returns the index of the datapath's end, which is up. The kernel's end is brought up with its
/// address.
pub(crate) async fn ensure(netlink: &Netlink, writes: &Writes) -> Result<u32, Error> {
    let what = || format!("create the interface {HOST_PORT}");
    if netlink.link(PEER).await?.is_none() {
        let peer = LinkMessageBuilder::<LinkUnspec>::new().name(PEER.to_owned()).build();
        let pair = LinkMessageBuilder::<LinkVeth>::new(HOST_PORT, PEER)
            .address(KERNEL_MAC.0.to_vec())
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .build();
        writes.count();
        netlink.handle().link().add(pair).execute().await.map_err(|error| match errno(&error) {
            Some(libc::EEXIST) => {
                failed(format!("{}; remove the interface of this name, or wait until it is", what()), error)
            }
            _ => failed(what(), error),
        })?;
    }
    let gone = || failed(what(), io::Error::from_raw_os_error(libc::ENODEV));
    let link = netlink.link(PEER).await?.ok_or_else(gone)?;
    if !link.header.flags.contains(LinkFlags::Up) {
        sysctl::disable_ipv6(PEER).map_err(|error| failed(what(), error))?;
        let up = LinkUnspec::new_with_index(link.header.index).up().build();
        writes.count();
        netlink.handle().link().set(up).execute().await.map_err(|error| failed(what(), error))?;
    }
    Ok(link.header.index)
}

/// Deletes the pair, if it exists.
pub(crate) async fn remove(netlink: &Netlink, writes: &Writes) -> Result<(), Error> {
    match netlink.link(PEER).await? {
        Some(link) => netlink.delete(PEER, link.header.index, writes).await,
        None => Ok(()),
    }
}
