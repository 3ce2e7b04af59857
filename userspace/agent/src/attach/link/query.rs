use futures::TryStreamExt as _;
use rtnetlink::{
    Handle,
    packet_route::link::{LinkAttribute, LinkMessage},
};

use super::{
    error::{Error, errno},
    port::Port,
};
use crate::datapath::Owner;

/// Index of the interface `name`, if it exists.
pub(super) async fn index(handle: &Handle, name: &str) -> Result<Option<u32>, Error> {
    Ok(find(handle, name).await?.map(|link| link.header.index))
}

/// Looks up the interface `name`; `None` if it does not exist.
pub(super) async fn find(handle: &Handle, name: &str) -> Result<Option<LinkMessage>, Error> {
    let mut found = handle.link().get().match_name(name.to_owned()).execute();
    match found.try_next().await {
        Ok(link) => Ok(link),
        Err(error) if errno(&error) == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(Error::netlink("look up", name)(error)),
    }
}

/// Interface name.
pub(super) fn name(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}

/// MTU in bytes.
pub(super) fn mtu(link: &LinkMessage) -> Option<u32> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    })
}

/// Owner of a port's other end.
pub(super) fn owner(link: &LinkMessage) -> Owner {
    match node_end(link) {
        Some(_) => Owner::Node,
        None => Owner::Pod,
    }
}

/// Interface alias: the endpoint's id on complete ports.
pub(super) fn alias(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfAlias(alias) => Some(alias.as_str()),
        _ => None,
    })
}

/// Location of an interface: the id of its network namespace (`None` for this one), and its index there.
pub(super) type Location = (Option<i32>, u32);

/// Location of the other end of a pair.
pub(super) fn other_end(link: &LinkMessage) -> Option<Location> {
    let namespace = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkNetNsId(id) => Some(*id),
        _ => None,
    });
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Link(index) => Some((namespace, *index)),
        _ => None,
    })
}

/// Index of the other end of a port, if it is in this network namespace.
pub(super) fn node_end(link: &LinkMessage) -> Option<u32> {
    name(link).and_then(Port::parse)?;
    match other_end(link)? {
        (None, index) => Some(index),
        (Some(_), _) => None,
    }
}
