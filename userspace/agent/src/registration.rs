//! Records that the agent writes about its node.
//!
//! Registrations have leases: they state that the agent runs (INVENTORY 3). The node status has none: it contains the VTEP,
//! which stays valid when the agent stops and its switch continues to forward.

use std::{net::IpAddr, time::Duration};

use contiv_model::{
    key::Key,
    node,
    registry::{self, ServiceInfo},
};
use contiv_store::{Registration, Store, Txn};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    attach::NodeWarnings,
    backoff::Backoff,
    continuity::Regression,
    datapath::Kind,
    error::one_line,
    plan::Node,
    reconcile::Status,
    state::{Reader, Rejected},
};

/// Lease of a registration, as in the original.
const TTL: Duration = Duration::from_secs(10);
/// Ports of the original's two agent processes, which other programs look up.
const AGENT_PORTS: [u16; 2] = [9002, 9003];
/// Minimum interval between writes of the node status if only the revision changed.
const REVISION_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum interval between writes of the node status.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Identity of this node in its records.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Node's name and VTEP.
    pub node: Node,
    /// Address of the agent.
    pub control: IpAddr,
    /// UDP port of the VTEP.
    pub vxlan_port: u16,
    /// Datapath in use.
    pub datapath: Kind,
}

impl Identity {
    /// Keys and bodies of the registrations.
    fn services(&self) -> Result<Vec<(String, Vec<u8>)>, serde_json::Error> {
        let agents = AGENT_PORTS.map(|port| (registry::NETPLUGIN, self.control, port));
        let all = agents.into_iter().chain([(registry::VTEP, self.node.vtep, self.vxlan_port)]);
        all.map(|(name, address, port)| {
            let service = ServiceInfo {
                service_name: name.to_owned(),
                ttl: TTL.as_secs().cast_signed(),
                host_addr: address.to_string(),
                port,
                hostname: self.node.host.to_string(),
                ..ServiceInfo::default()
            };
            let key = Key::Service { name: name.to_owned(), address: format!("{address}:{port}") };
            Ok((key.to_string(), serde_json::to_vec(&service)?))
        })
        .collect()
    }

    fn status(
        &self,
        status: &Status,
        warnings: &NodeWarnings,
        regression: Option<&Regression>,
        rejected: &[Rejected],
    ) -> node::Status {
        let regressed = regression.map(ToString::to_string);
        let degraded = regressed.into_iter().chain(status.degraded()).chain(warnings.lines());
        node::Status {
            host: self.node.host.to_string(),
            datapath: self.datapath.to_string(),
            vtep_ip: self.node.vtep.to_string(),
            vxlan_port: self.vxlan_port,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: status.in_sync,
            applied_revision: status.revision,
            failed: status.failures.count() as u64,
            degraded: degraded.chain(Rejected::lines(rejected)).collect(),
        }
    }
}

/// Maintains the registrations until `stop` is cancelled. They are not revoked then, because the node continues to forward
/// and a restart usually follows.
pub async fn maintain(
    identity: &Identity,
    store: &Store,
    registered: impl FnOnce(),
    stop: CancellationToken,
) -> anyhow::Result<()> {
    // Dropping a registration ends its renewal.
    let mut registrations: Vec<Registration> = vec![];
    for (key, body) in identity.services()? {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            registration = persist(store, &key, &body) => registrations.push(registration),
        }
    }
    registered();
    stop.cancelled().await;
    Ok(())
}

async fn persist(store: &Store, key: &str, body: &[u8]) -> Registration {
    let mut backoff = Backoff::default();
    loop {
        match store.register(key, body.to_vec(), TTL).await {
            Ok(registration) => return registration,
            Err(error) => {
                let wait = backoff.pause();
                tracing::warn!("register: {}; retry in {wait:?}", one_line(&error));
                sleep(wait).await;
            }
        }
    }
}

/// What the node status is made of: status of the datapath, warnings about the node, and whether the store is regressed.
pub type Published =
    (watch::Receiver<Status>, watch::Receiver<NodeWarnings>, watch::Receiver<Option<Regression>>);

/// Writes the node status whenever it changes.
pub async fn publish_status(
    identity: &Identity,
    store: &Store,
    (mut status, mut warnings, mut regression): Published,
    reader: Reader,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut rejected = reader.rejected();
    let key = Key::NodeStatus(identity.node.host.clone()).to_string();
    let mut written: Option<(node::Status, Instant)> = None;
    let mut backoff = Backoff::default();
    loop {
        let regressed = regression.borrow_and_update().clone();
        let now = identity.status(
            &status.borrow_and_update(),
            &warnings.borrow_and_update(),
            regressed.as_ref(),
            &rejected,
        );
        let due = match &written {
            None => Some(Instant::now()),
            Some((before, _)) if *before == now => None,
            Some((before, at)) => {
                let same = node::Status { applied_revision: now.applied_revision, ..before.clone() } == now;
                Some(*at + if same { REVISION_INTERVAL } else { STATUS_INTERVAL })
            }
        };
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            changed = status.changed() => if changed.is_err() {
                // The reconciler has ended; its task reports the reason.
                stop.cancelled().await;
                return Ok(());
            },
            // An error means that the sender is gone, which happens at shutdown only.
            Ok(()) = warnings.changed() => {}
            Ok(()) = regression.changed() => {}
            other = reader.rejected_changed(&rejected) => rejected = other,
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                let body = serde_json::to_vec(&now)?;
                match store.commit(Txn::new().put(&*key, body)).await {
                    Ok(_) => {
                        backoff.reset();
                        written = Some((now, Instant::now()));
                    }
                    Err(error) => {
                        let wait = backoff.pause();
                        tracing::warn!("write node status: {}; retry in {wait:?}", one_line(&error));
                        tokio::select! {
                            () = stop.cancelled() => return Ok(()),
                            () = sleep(wait) => {}
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registrations_match_the_original() {
        let identity = Identity {
            node: Node { host: "A".into(), vtep: [192, 168, 77, 11].into() },
            control: [10, 0, 0, 1].into(),
            vxlan_port: 4789,
            datapath: Kind::Ovs,
        };
        let services = identity.services().unwrap();
        let keys: Vec<_> = services.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(
            keys,
            [
                "/contiv.io/service/netplugin/10.0.0.1:9002",
                "/contiv.io/service/netplugin/10.0.0.1:9003",
                "/contiv.io/service/netplugin.vtep/192.168.77.11:4789",
            ]
        );
        let body = String::from_utf8(services[2].1.clone()).unwrap();
        assert_eq!(
            body,
            r#"{"ServiceName":"netplugin.vtep","Role":"","Version":"","TTL":10,"HostAddr":"192.168.77.11","Port":4789,"Hostname":"A"}"#
        );
    }
}
