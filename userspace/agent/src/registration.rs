//! Records that the agent writes about its node.
//!
//! Registrations have a lease: they state that the agent runs (INVENTORY 3). The record of the VTEP has none: it stays valid
//! when the agent stops and its switch continues to forward. All agents follow it, so it is apart from the node status, which
//! changes often.

use std::{net::IpAddr, time::Duration};

use bytes::Bytes;
use contiv_model::{
    key::Key,
    node,
    registry::{self, ServiceInfo},
};
use contiv_store::{Error, Guard, Outcome, Registration, Store, Txn};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    attach::NodeWarnings,
    backoff::Backoff,
    bgp,
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
    fn services(&self) -> Result<Vec<(String, Bytes)>, serde_json::Error> {
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
            Ok((key.to_string(), serde_json::to_vec(&service)?.into()))
        })
        .collect()
    }

    fn vtep(&self) -> node::Vtep {
        node::Vtep {
            host: self.node.host.to_string(),
            vtep_ip: self.node.vtep.to_string(),
            vxlan_port: self.vxlan_port,
        }
    }

    fn status(
        &self,
        status: &Status,
        warnings: &NodeWarnings,
        regression: Option<&Regression>,
        (session, routing): (&bgp::Report, &[String]),
        rejected: &[Rejected],
    ) -> node::Status {
        let regressed = regression.map(ToString::to_string);
        let degraded = regressed.into_iter().chain(status.degraded()).chain(warnings.lines());
        let degraded = degraded.chain(session.degraded()).chain(routing.iter().cloned());
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
            regression_id: regression.map(|regression| regression.id.clone()).unwrap_or_default(),
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
    let services = identity.services()?;
    // Dropping the registration ends its renewal.
    let _registration = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        registration = persist(store, &services) => registration,
    };
    registered();
    stop.cancelled().await;
    Ok(())
}

async fn persist(store: &Store, services: &[(String, Bytes)]) -> Registration {
    let mut backoff = Backoff::default();
    loop {
        match store.register_all(services.to_vec(), TTL).await {
            Ok(registration) => return registration,
            Err(error) => {
                let wait = backoff.pause();
                tracing::warn!("register: {}; retry in {wait:?}", one_line(&error));
                sleep(wait).await;
            }
        }
    }
}

/// What the node status is made of.
#[derive(Clone, Debug)]
pub struct Published {
    /// Status of the datapath.
    pub status: watch::Receiver<Status>,
    /// Warnings about the node.
    pub warnings: watch::Receiver<NodeWarnings>,
    /// Whether the store is regressed.
    pub regression: watch::Receiver<Option<Regression>>,
    /// BGP session.
    pub bgp: watch::Receiver<bgp::Report>,
    /// What is not in effect of the routing of VLAN networks.
    pub routing: watch::Receiver<Vec<String>>,
}

/// Writes the node status whenever it changes.
pub async fn publish_status(
    identity: &Identity,
    store: &Store,
    Published { mut status, mut warnings, mut regression, mut bgp, mut routing }: Published,
    reader: Reader,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut rejected = reader.rejected();
    let mut records = NodeRecords::new(identity)?;
    let mut written: Option<(node::Status, Instant)> = None;
    let mut backoff = Backoff::default();
    loop {
        let regressed = regression.borrow_and_update().clone();
        let now = identity.status(
            &status.borrow_and_update(),
            &warnings.borrow_and_update(),
            regressed.as_ref(),
            (&bgp.borrow_and_update(), &routing.borrow_and_update()),
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
            Ok(()) = bgp.changed() => {}
            Ok(()) = routing.changed() => {}
            other = reader.rejected_changed(&rejected) => rejected = other,
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                let body = serde_json::to_vec(&now)?;
                match records.write(store, body).await {
                    Ok(()) => {
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

/// Keys of a node's records without a lease.
struct NodeRecords {
    status_key: String,
    vtep_key: String,
    vtep: Bytes,
    /// The store's revision of the VTEP's record as this process has written it.
    vtep_revision: Option<i64>,
    /// The store's user may not write the VTEP's record, which was logged.
    refused: bool,
}

impl NodeRecords {
    fn new(identity: &Identity) -> Result<NodeRecords, serde_json::Error> {
        let host = &identity.node.host;
        Ok(NodeRecords {
            status_key: Key::NodeStatus(host.clone()).to_string(),
            vtep_key: Key::NodeVtep(host.clone()).to_string(),
            vtep: serde_json::to_vec(&identity.vtep())?.into(),
            vtep_revision: None,
            refused: false,
        })
    }

    /// Writes the status, and the record of the VTEP unless it is in the store as written last. A netmaster deletes both when
    /// the node is gone for long.
    async fn write(&mut self, store: &Store, status: Vec<u8>) -> Result<(), Error> {
        let status = Bytes::from(status);
        if let Some(revision) = self.vtep_revision {
            let guard = Guard::ModRevision { key: self.vtep_key.clone(), revision };
            let txn = Txn::new().guard(guard).put(&*self.status_key, status.clone());
            if let Outcome::Committed { .. } = store.commit(txn).await? {
                return Ok(());
            }
        }
        let alone = Txn::new().put(&*self.status_key, status);
        match store.commit(alone.clone().put(&*self.vtep_key, self.vtep.clone())).await {
            Ok(Outcome::Committed { revision }) => self.vtep_revision = Some(revision),
            // A transaction without guards cannot conflict.
            Ok(Outcome::Conflict) => {}
            // etcd's role for agents may be that of a release without the record. netmaster writes it then.
            Err(error) if error.is_permission_denied() => {
                if !self.refused {
                    tracing::warn!(
                        "{}; grant the role of agents readwrite on /contiv.io/oper/vtep/",
                        one_line(&error)
                    );
                }
                self.refused = true;
                store.commit(alone).await.map(drop)?;
            }
            Err(error) => return Err(error),
        }
        Ok(())
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
        let body = String::from_utf8(services[2].1.to_vec()).unwrap();
        assert_eq!(
            body,
            r#"{"ServiceName":"netplugin.vtep","Role":"","Version":"","TTL":10,"HostAddr":"192.168.77.11","Port":4789,"Hostname":"A"}"#
        );
    }
}
