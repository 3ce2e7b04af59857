//! Records of the store that outlive the process, for a successor that has no store.

use contiv_model::{
    event::Event,
    key::{AGENT_PREFIXES, ENDPOINTS, Key, POLICIES, policies_of},
};
use contiv_store::{Error, KeyValue, Store};
use serde::{Deserialize, Serialize};

use super::{decode::decode, endpoints::may_be_on, status_vteps};
use crate::state::{Needs, Source, Update};

/// Source of objects that are not read from the store.
const SOURCE: &str = "records";

/// A record in the form that it has in the store, which all releases share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    key: String,
    value: String,
    mod_revision: i64,
}

impl From<KeyValue> for Record {
    /// A value that is not UTF-8 is invalid, and remains so.
    fn from(read: KeyValue) -> Record {
        let value = String::from_utf8_lossy(&read.value).into_owned();
        Record { key: read.key, value, mod_revision: read.mod_revision }
    }
}

impl From<Record> for KeyValue {
    fn from(record: Record) -> KeyValue {
        let Record { key, value, mod_revision } = record;
        KeyValue {
            key,
            value: value.into_bytes().into(),
            create_revision: mod_revision,
            mod_revision,
            version: 1,
            lease: 0,
        }
    }
}

/// Reads the records from which [`Sources`](super::Sources) compute the state of a node with these needs.
///
/// # Errors
///
/// The store does not answer, or rejects a request.
pub async fn list_records(store: &Store, needs: &Needs) -> Result<Vec<Record>, Error> {
    let mut read = vec![];
    for prefix in AGENT_PREFIXES {
        read.extend(store.list(prefix).await?.items);
    }
    read.extend(store.list_where(ENDPOINTS, |record| may_be_on(record, &needs.networks)).await?.items);
    let policies = match &needs.groups {
        Some(groups) => groups.iter().map(policies_of).collect(),
        None => vec![POLICIES.to_owned()],
    };
    for prefix in policies {
        read.extend(store.list(&prefix).await?.items);
    }
    read.extend(status_vteps::list(store).await);
    Ok(read.into_iter().map(Record::from).collect())
}

/// Returns the state that consists of these records, as one snapshot.
pub fn snapshot_of(records: Vec<Record>) -> Vec<Update> {
    let records: Vec<KeyValue> = records.into_iter().map(KeyValue::from).collect();
    let revision = records.iter().map(|record| record.mod_revision).max().unwrap_or_default();
    let put = |record: &KeyValue| {
        let key: Key = record.key.parse().ok()?;
        decode(&key, record).map(|object| Event::InitApply(key, object))
    };
    let events = [Event::Init].into_iter().chain(records.iter().filter_map(put)).chain([Event::InitDone]);
    let updates = events.map(|event| Update { source: Source::from(SOURCE), revision, event });
    status_vteps::with_statuses(updates.collect(), &records)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use contiv_model::{endpoint, network};
    use contiv_store::{Config, Txn, embedded};
    use serde_json::{Value, json};

    use super::super::{Sources, prefixes};
    use super::*;
    use crate::state::{self, Reader};

    const HOST: &str = "h";

    fn put(txn: Txn, key: impl Into<String>, body: &Value) -> Txn {
        txn.put(key, serde_json::to_vec(body).unwrap())
    }

    /// A network and an endpoint of it.
    fn put_network(txn: Txn, number: u8, host: &str) -> Txn {
        let id = format!("n{number}.t");
        let network = network::State {
            id: id.clone(),
            tenant: "t".into(),
            network_name: format!("n{number}"),
            nw_type: "data".into(),
            pkt_tag_type: "vxlan".into(),
            pkt_tag: number.into(),
            ext_pkt_tag: 1000 + i64::from(number),
            subnet_ip: format!("10.1.{number}.0"),
            subnet_len: 24,
            ..network::State::default()
        };
        let endpoint = endpoint::State {
            id: format!("{id}-e"),
            net_id: id.clone(),
            endpoint_id: "e".into(),
            ip_address: format!("10.1.{number}.5"),
            mac_address: format!("02:02:0a:01:{number:02x}:05"),
            homing_host: host.to_owned(),
            ..endpoint::State::default()
        };
        let txn =
            put(txn, Key::Network(id.as_str().into()).to_string(), &serde_json::to_value(&network).unwrap());
        let key = Key::Endpoint(endpoint.id.as_str().into()).to_string();
        put(txn, key, &serde_json::to_value(&endpoint).unwrap())
    }

    #[tokio::test]
    async fn the_state_of_records_is_that_of_the_store() {
        let directory = tempfile::tempdir().unwrap();
        let server = embedded::Server::open(directory.path(), ([127, 0, 0, 1], 0).into()).await.unwrap();
        let store = Store::connect(&Config::new([server.endpoint()])).await.unwrap();
        let vtep = |host: &str, ip: &str| json!({ "host": host, "vtepIP": ip, "vxlanPort": 4789 });
        let settings = json!({ "id": "", "fwd-mode": "bridge", "arp-mode": "proxy" });
        let txn = put(Txn::new(), Key::MasterConfig.to_string(), &settings);
        // The node has no endpoint on the second network.
        let txn = put_network(put_network(txn, 1, HOST), 2, "other");
        let txn = put(txn, "/contiv.io/oper/vtep/other", &vtep("other", "10.0.0.1"));
        let txn = put(txn, "/contiv.io/oper/node/earlier", &vtep("earlier", "10.0.0.2"));
        let txn = txn.put("/contiv.io/state/nets/invalid.t", "{");
        // A transaction without guards cannot conflict.
        store.commit(txn).await.map(drop).unwrap();

        let (mut writer, _, reader, _) = state::new(prefixes());
        let mut sources = Sources::new(&store, HOST.into(), reader.clone());
        while !reader.awaited().is_empty() {
            sources.next().await.unwrap().apply(&mut writer);
        }
        let records = list_records(&store, &reader.needs(&HOST.into(), &BTreeSet::new())).await.unwrap();
        let text = serde_json::to_string(&records).unwrap();
        let (mut writer, _, read, _) = state::new([]);
        writer.apply_all(snapshot_of(serde_json::from_str(&text).unwrap()));
        let found = |reader: &Reader| {
            reader.with(|state| {
                let vteps = ["other", "earlier"].map(|host| state.vtep(&host.into()).cloned());
                let networks: Vec<_> = state.networks().cloned().collect();
                let endpoints: Vec<_> = state.endpoints().cloned().collect();
                let unreadable: Vec<Key> = state.unreadable().cloned().collect();
                (state.config().cloned(), networks, endpoints, vteps, unreadable)
            })
        };
        let (config, networks, endpoints, vteps, unreadable) = found(&read);
        assert!(config.is_some() && vteps.iter().all(Option::is_some));
        assert_eq!((networks.len(), endpoints.len(), unreadable.len()), (2, 1, 1));
        assert_eq!(found(&read), found(&reader));
        assert_eq!(read.rejected(), reader.rejected());
    }
}
