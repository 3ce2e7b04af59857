//! What pods have sent and received, as their own interfaces count it.
//!
//! The node's end of a pair does not see what a program hands to the pod's end at once (`bpf_redirect_peer`), so the pod's
//! end is asked, in its namespace, by the number that the kernel has for that here: nobody enters it. The counts are the
//! kernel's, whatever the datapath.

use rtnetlink::{
    Handle,
    packet_route::link::{LinkAttribute, LinkMessage},
};

use super::{Attachment, Error, Links, Port, alias, errno, name, owner};
use crate::datapath::telemetry::Traffic;

/// What one pod has sent and received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodTraffic {
    /// Whose interface.
    pub attachment: Attachment,
    /// By the pod.
    pub sent: Traffic,
    /// By the pod.
    pub received: Traffic,
}

impl Links {
    /// Of every pod that is attached. Pods that go meanwhile are left out.
    pub async fn traffic(&self) -> Result<Vec<PodTraffic>, Error> {
        let mut all = vec![];
        for link in self.list().await? {
            let Some(port) = name(&link).filter(|name| Port::parse(name).is_some()) else { continue };
            let (Some(endpoint), Some(place)) = (alias(&link), other_end(&link)) else { continue };
            let owner = owner(&link);
            let attachment = Attachment { port: port.to_owned(), endpoint: endpoint.into(), owner };
            if let Some((sent, received)) = count(&self.handle, port, place).await? {
                all.push(PodTraffic { attachment, sent, received });
            }
        }
        Ok(all)
    }
}

/// An interface of another namespace: the kernel's number of that, and the interface's there. Without the first, it is in
/// ours.
type Place = (Option<i32>, u32);

fn other_end(link: &LinkMessage) -> Option<Place> {
    let namespace = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkNetNsId(id) => Some(*id),
        _ => None,
    });
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Link(index) => Some((namespace, *index)),
        _ => None,
    })
}

/// The other end of a port, if it is in our namespace.
pub(super) fn end_at_the_node(link: &LinkMessage) -> Option<u32> {
    name(link).and_then(Port::parse)?;
    match other_end(link)? {
        (None, index) => Some(index),
        (Some(_), _) => None,
    }
}

async fn count(
    handle: &Handle,
    port: &str,
    (namespace, index): Place,
) -> Result<Option<(Traffic, Traffic)>, Error> {
    let mut request = handle.link().get().match_index(index);
    request.message_mut().attributes.extend(namespace.map(LinkAttribute::IfNetnsId));
    let link = match futures::TryStreamExt::try_next(&mut request.execute()).await {
        Ok(Some(link)) => link,
        Ok(None) => return Ok(None),
        Err(error) if matches!(errno(&error), Some(libc::ENODEV | libc::EINVAL)) => return Ok(None),
        Err(error) => return Err(Error::netlink("count what passes the other end of", port)(error)),
    };
    Ok(link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Stats64(stats) => Some((
            Traffic { packets: stats.tx_packets, bytes: stats.tx_bytes },
            Traffic { packets: stats.rx_packets, bytes: stats.rx_bytes },
        )),
        _ => None,
    }))
}
