//! Detection of configuration changes by other processes, and of lost connections.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
};

use super::{ovsdb::Database, session::Session};
use crate::datapath::ovs::bridge::BridgeKind;

/// Returns a hash over the configuration of both bridges. It changes when a bridge, a port, a port number, the active member of
/// the bond or the state of its LACP does, and when `ovs-ctl` begins or ends to restore flows, which may be those of before.
pub(crate) fn fingerprint(database: &Database) -> u64 {
    fingerprint_without(database, &BTreeSet::new())
}

/// As [`fingerprint`], without the ports with these names.
pub(crate) fn fingerprint_without(database: &Database, names: &BTreeSet<String>) -> u64 {
    let mut hasher = DefaultHasher::new();
    database.restores_flows.hash(&mut hasher);
    for kind in BridgeKind::ALL {
        let Some((uuid, bridge)) = database.bridge(kind.name()) else { continue };
        (uuid, &bridge.fail_mode, &bridge.protocols, &bridge.datapath_type).hash(&mut hasher);
        for (uuid, port, interfaces) in database.ports_of(bridge) {
            if names.contains(&port.name) {
                continue;
            }
            (uuid, &port.name, port.tag, &port.vlan_mode, port.is_protected).hash(&mut hasher);
            port.active_member.hash(&mut hasher);
            let qos = port.qos.as_ref().and_then(|qos| database.qos.get(qos));
            let queues = qos.iter().flat_map(|qos| qos.queues.values());
            let queues: Vec<_> = queues.map(|queue| database.queues.get(queue)).collect();
            (&port.qos, qos, queues).hash(&mut hasher);
            for (uuid, interface) in interfaces {
                (uuid, &interface.interface_type, &interface.options, interface.number()).hash(&mut hasher);
                interface.mac.hash(&mut hasher);
                interface.lacp_current.hash(&mut hasher);
                interface.ingress_policing.hash(&mut hasher);
            }
        }
    }
    hasher.finish()
}

/// Waits until a connection is closed, or the fingerprint differs from `expected`.
pub(crate) async fn wait(session: &Session, expected: u64) {
    let closed = BridgeKind::ALL.map(|bridge| {
        let connection = session.bridge(bridge).cloned();
        Box::pin(async move {
            match connection {
                Some(connection) => connection.closed().await,
                None => std::future::pending().await,
            }
        })
    });
    let mut database = session.client().watch();
    let changed = async {
        // An error means that the connection to the database is closed.
        let _changed = database.wait_for(|database| fingerprint(database) != expected).await;
    };
    tokio::select! {
        _ = futures::future::select_all(closed) => {}
        () = session.client().closed() => {}
        () = changed => {}
    }
}
