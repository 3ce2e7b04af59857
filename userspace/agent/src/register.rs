//! What the agent tells the cluster of itself.
//!
//! Under leases: that it lives (INVENTORY 3). Without one: where the node's endpoints are to be reached, which stays
//! true when the agent is dead and its switch forwards on.

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
    backoff::Backoff,
    cni::Troubles,
    datapath::Kind,
    error::one_line,
    plan::Node,
    reconcile::Status,
    state::{Reader, Rejected},
};

/// How long a registration outlives its agent, as in the original.
const TTL: Duration = Duration::from_secs(10);
/// The ports of the original's two agents, which other programs look for.
const AGENT_PORTS: [u16; 2] = [9002, 9003];
/// The status is not written more often than this when only the revision moved on.
const REVISION_PERIOD: Duration = Duration::from_secs(10);
/// And not more often than this in any case.
const PERIOD: Duration = Duration::from_secs(1);

/// Who registers.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The node's name and VTEP.
    pub node: Node,
    /// The address to reach it at.
    pub control: IpAddr,
    /// The UDP port of its tunnels.
    pub vxlan_port: u16,
    /// What forwards.
    pub datapath: Kind,
}

impl Identity {
    /// The registrations: key and body.
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

    fn status(&self, status: &Status, troubles: &Troubles, rejected: &[Rejected]) -> node::Status {
        let degraded = status.degraded().into_iter().chain(troubles.lines());
        node::Status {
            host: self.node.host.to_string(),
            datapath: self.datapath.to_string(),
            vtep_ip: self.node.vtep.to_string(),
            vxlan_port: self.vxlan_port,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: status.known,
            applied_revision: status.revision,
            failed: status.failures.count() as u64,
            degraded: degraded.chain(Rejected::lines(rejected)).collect(),
        }
    }
}

/// Keeps the registrations until told to stop. They are not revoked then: the node goes on forwarding, and what
/// happens next is a restart more often than not.
pub async fn keep(
    identity: &Identity,
    store: &Store,
    registered: impl FnOnce(),
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut kept: Vec<Registration> = vec![];
    for (key, body) in identity.services()? {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            registration = persist(store, &key, &body) => kept.push(registration),
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
                tracing::warn!("register: {}; again in {wait:?}", one_line(&error));
                sleep(wait).await;
            }
        }
    }
}

/// Writes what the node says of itself whenever it changes.
pub async fn tell(
    identity: &Identity,
    store: &Store,
    (mut status, mut troubles): (watch::Receiver<Status>, watch::Receiver<Troubles>),
    reader: Reader,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut rejected = reader.rejected();
    let key = Key::NodeStatus(identity.node.host.clone()).to_string();
    let mut told: Option<(node::Status, Instant)> = None;
    let mut backoff = Backoff::default();
    loop {
        let now = identity.status(&status.borrow_and_update(), &troubles.borrow_and_update(), &rejected);
        let due = match &told {
            None => Some(Instant::now()),
            Some((before, _)) if *before == now => None,
            Some((before, at)) => {
                let same = node::Status { applied_revision: now.applied_revision, ..before.clone() } == now;
                Some(*at + if same { REVISION_PERIOD } else { PERIOD })
            }
        };
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            changed = status.changed() => if changed.is_err() {
                // The reconciler has ended; whoever waits for it says why.
                stop.cancelled().await;
                return Ok(());
            },
            // Ends with the reconciler, if at all.
            Ok(()) = troubles.changed() => {}
            other = reader.rejected_other_than(&rejected) => rejected = other,
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                let body = serde_json::to_vec(&now)?;
                match store.commit(Txn::new().put(&*key, body)).await {
                    Ok(_) => {
                        backoff.reset();
                        told = Some((now, Instant::now()));
                    }
                    Err(error) => {
                        let wait = backoff.pause();
                        tracing::warn!("tell the node's status: {}; again in {wait:?}", one_line(&error));
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
    fn registrations_are_the_originals() {
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
