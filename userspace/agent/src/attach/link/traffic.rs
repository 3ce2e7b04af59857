//! Traffic of endpoints, from the kernel's counters of their own interfaces.
//!
//! The host end does not count frames that a program redirects to the pod's end (`bpf_redirect_peer`), so the counters of
//! the pod's end are read, addressed by the id of its network namespace without entering it. They are independent of the
//! datapath.

use std::sync::Arc;

use rtnetlink::{Handle, packet_route::link::LinkAttribute};
use tokio::sync::Mutex;

use super::{
    dump,
    error::{Error, errno},
    interface::AttachedPort,
    port::Port,
    query::{Location, alias, name, other_end, owner},
};
use crate::datapath::telemetry::Traffic;

/// Traffic of one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodTraffic {
    /// Endpoint's port.
    pub port: AttachedPort,
    /// Frames sent by the endpoint.
    pub sent: Traffic,
    /// Frames received by the endpoint.
    pub received: Traffic,
}

/// Reads the traffic of endpoints. It has its own netlink socket, so that requests of container runtimes, which use the
/// socket of [`Links`](super::Links), do not wait for it. Clones share the socket.
#[derive(Clone, Debug)]
pub struct TrafficReader {
    handle: Handle,
    /// A netlink socket supports one dump at a time.
    dump: Arc<Mutex<()>>,
}

impl TrafficReader {
    /// Opens a netlink socket in the network namespace of the calling thread. Requires a tokio runtime.
    pub fn open() -> Result<TrafficReader, Error> {
        let (connection, handle, _) =
            rtnetlink::new_connection().map_err(Error::setting("open a netlink socket for", "this node"))?;
        tokio::spawn(connection);
        Ok(TrafficReader { handle, dump: Arc::default() })
    }

    /// Reads the traffic of all attached endpoints. Endpoints that are detached meanwhile are omitted.
    pub async fn read(&self) -> Result<Vec<PodTraffic>, Error> {
        let mut all = vec![];
        for link in dump::links(&self.handle, &self.dump).await? {
            let Some(port) = name(&link).filter(|name| Port::parse(name).is_some()) else { continue };
            let (Some(endpoint), Some(location)) = (alias(&link), other_end(&link)) else { continue };
            let owner = owner(&link);
            let attached = AttachedPort { port: port.to_owned(), endpoint: endpoint.into(), owner };
            if let Some((sent, received)) = read_counters(&self.handle, port, location).await? {
                all.push(PodTraffic { port: attached, sent, received });
            }
        }
        Ok(all)
    }
}

/// Traffic sent and received by the interface at a location; `None` if it no longer exists.
async fn read_counters(
    handle: &Handle,
    port: &str,
    (namespace, index): Location,
) -> Result<Option<(Traffic, Traffic)>, Error> {
    let mut request = handle.link().get().match_index(index);
    request.message_mut().attributes.extend(namespace.map(LinkAttribute::IfNetnsId));
    let link = match futures::TryStreamExt::try_next(&mut request.execute()).await {
        Ok(Some(link)) => link,
        Ok(None) => return Ok(None),
        Err(error) if matches!(errno(&error), Some(libc::ENODEV | libc::EINVAL)) => return Ok(None),
        Err(error) => return Err(Error::netlink("read the counters of the other end of", port)(error)),
    };
    Ok(link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Stats64(stats) => Some((
            Traffic { packets: stats.tx_packets, bytes: stats.tx_bytes },
            Traffic { packets: stats.rx_packets, bytes: stats.rx_bytes },
        )),
        _ => None,
    }))
}
