//! VTEPs in node statuses.
//!
//! Agents of releases without VTEP records (`oper/vtep/`) write the VTEP only to the node status. Other nodes use it
//! while such an agent is stopped for longer than its lease, as in an upgrade.

use std::{collections::BTreeSet, time::Duration};

use contiv_model::{event::Event, key::Key};
use contiv_store::{KeyValue, Store};
use tokio::time::sleep;

use super::decode::vtep_of_status;
use crate::{
    error::one_line,
    state::{ClusterObject, Update},
};

const STATUSES: &str = "/contiv.io/oper/node/";
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Adds the VTEPs that no record has to a snapshot of the records.
pub(super) async fn complete(store: &Store, snapshot: Vec<Update>) -> Vec<Update> {
    with_statuses(snapshot, &list(store).await)
}

/// Returns the node statuses; none if the store rejects the request. Waits until the store answers.
pub(super) async fn list(store: &Store) -> Vec<KeyValue> {
    loop {
        match store.list(STATUSES).await {
            Ok(statuses) => return statuses.items,
            Err(error) if error.is_transient() => {
                tracing::warn!("read the node statuses: {}; retrying", one_line(&error));
                sleep(RETRY_INTERVAL).await;
            }
            Err(error) => {
                tracing::warn!("read the node statuses: {}; continuing without them", one_line(&error));
                return vec![];
            }
        }
    }
}

/// Adds the VTEPs in `statuses` that no record has to a snapshot of the records. Other records among the statuses do not matter.
pub(super) fn with_statuses(mut snapshot: Vec<Update>, statuses: &[KeyValue]) -> Vec<Update> {
    let recorded: BTreeSet<Key> =
        snapshot.iter().filter_map(|update| put_key(&update.event)).cloned().collect();
    let Some(end) = snapshot.pop() else { return snapshot };
    let missing = statuses.iter().filter_map(|status| {
        let Ok(Key::NodeStatus(host)) = status.key.parse() else { return None };
        let vtep = vtep_of_status(&host, status)?;
        Some((Key::NodeVtep(host), ClusterObject::Node(vtep))).filter(|(key, _)| !recorded.contains(key))
    });
    snapshot.extend(missing.map(|(key, object)| Update {
        source: end.source.clone(),
        revision: end.revision,
        event: Event::InitApply(key, Ok(object)),
    }));
    snapshot.push(end);
    snapshot
}

fn put_key<V>(event: &Event<Key, V>) -> Option<&Key> {
    match event {
        Event::InitApply(key, _) => Some(key),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use contiv_store::{Config, Txn, embedded};

    use super::super::{Batch, Sources};
    use super::*;
    use crate::state;

    #[tokio::test]
    async fn nodes_of_earlier_releases_have_a_vtep() {
        let directory = tempfile::tempdir().unwrap();
        let server = embedded::Server::open(directory.path(), ([127, 0, 0, 1], 0).into()).await.unwrap();
        let config = Config::new([server.endpoint()]);
        let store = Store::connect(&config).await.unwrap();
        let body = |host: &str, ip: &str| format!(r#"{{"host":"{host}","vtepIP":"{ip}","vxlanPort":4789}}"#);
        let mut txn = Txn::new().put("/contiv.io/oper/vtep/new", body("new", "10.0.0.1"));
        for (host, ip) in [("new", "10.0.0.9"), ("old", "10.0.0.2"), ("none", "")] {
            txn = txn.put(format!("/contiv.io/oper/node/{host}"), body(host, ip));
        }
        let _committed = store.commit(txn).await.unwrap();

        let mut sources = Sources::new(&store, "new".into(), state::new([]).2);
        let batch = next(&mut sources).await;
        let vteps = batch.updates.iter().filter_map(|update| match &update.event {
            Event::InitApply(Key::NodeVtep(host), Ok(ClusterObject::Node(vtep))) => {
                Some((host.as_str().to_owned(), vtep.address.to_string()))
            }
            _ => None,
        });
        let expected =
            [("new", "10.0.0.1"), ("old", "10.0.0.2")].map(|(host, ip)| (host.to_owned(), ip.to_owned()));
        assert_eq!(vteps.collect::<Vec<_>>(), expected);
        assert!(matches!(batch.updates.first().unwrap().event, Event::Init));
        assert!(matches!(batch.updates.last().unwrap().event, Event::InitDone));
        // A record takes precedence over the status.
        let moved = Txn::new().put("/contiv.io/oper/vtep/old", body("old", "10.0.0.3"));
        let _committed = store.commit(moved).await.unwrap();
        let batch = next(&mut sources).await;
        let change = &batch.updates.first().unwrap().event;
        assert!(
            matches!(change, Event::Apply(Key::NodeVtep(host), _) if host.as_str() == "old"),
            "{batch:?}"
        );
    }

    /// The next updates of VTEPs.
    async fn next(sources: &mut Sources) -> Batch {
        loop {
            let batch = sources.next().await.unwrap();
            if batch.source.prefix() == "/contiv.io/oper/vtep/" && !batch.updates.is_empty() {
                return batch;
            }
        }
    }
}
