use std::collections::BTreeSet;

use contiv_model::{
    key::{Key, ObjectType},
    name::NetworkId,
    service::Providers,
};
use contiv_store::{Error, Store};
use serde::{Deserialize, Serialize};

use crate::state::State;

/// Writes of netmaster in the transaction that deletes or creates a record. Fields are keys of the store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Witness {
    /// The API object is deleted, or was created after this revision, up to which its record had been deleted.
    Deleted {
        object: String,
        #[serde(default = "never")]
        revision: i64,
    },
    /// The group or the policy is deleted or written at this revision or later, or the settings of the cluster are
    /// written.
    Detached { group: String, policy: String, revision: i64 },
    /// The network's record, or the journal of its changes, is written at this revision or later, or the network is
    /// deleted. For a slice of providers: the first slice is written, or the service is deleted.
    Counted { record: String, journal: String, object: Option<String>, revision: i64 },
    /// The API object has its record, or is deleted.
    Recorded { object: String, record: String },
}

/// Revision of witnesses that an agent wrote without one.
fn never() -> i64 {
    i64::MAX
}

/// A deletion that the agent has seen, at a revision in this range.
#[derive(Clone, Debug)]
pub(super) struct Deletion {
    pub(super) key: Key,
    pub(super) earliest: i64,
    pub(super) latest: i64,
}

fn object(kind: ObjectType, tenant: &str, name: &str) -> String {
    Key::Object(kind, format!("{tenant}:{name}")).to_string()
}

fn network_object(id: &NetworkId, state: &State) -> Option<String> {
    let network = state.network(id)?;
    Some(object(ObjectType::Network, network.tenant.as_str(), network.name.as_str()))
}

/// The object of an id of the form `name:tenant`.
fn of_state_id(kind: ObjectType, id: &str) -> Option<String> {
    let (name, tenant) = id.split_once(':')?;
    Some(object(kind, tenant, name))
}

/// Revision of the key's last put; `None` if the key does not exist.
async fn written(store: &Store, key: &str) -> Result<Option<i64>, Error> {
    Ok(store.get(key).await?.map(|kv| kv.mod_revision))
}

impl Witness {
    /// Returns the witness of a deletion; `None` for records that agents write, and for unknown records.
    fn of(deletion: &Deletion, state: &State) -> Option<Witness> {
        let Deletion { key, earliest: revision, latest } = deletion;
        let revision = *revision;
        let gone = |object| Witness::Deleted { object, revision: *latest };
        match key {
            Key::MasterConfig => Some(gone(Key::Object(ObjectType::Global, "global".to_owned()).to_string())),
            Key::Network(id) => network_object(id, state).map(gone),
            Key::Group(key) => of_state_id(ObjectType::EndpointGroup, key.as_str()).map(gone),
            Key::Bgp(host) => Some(gone(Key::Object(ObjectType::Bgp, host.to_string()).to_string())),
            Key::ServiceLb(id) => of_state_id(ObjectType::ServiceLb, id.as_str()).map(gone),
            Key::Providers(id) => {
                let service = Providers::service_of(id.as_str());
                let object = of_state_id(ObjectType::ServiceLb, service)?;
                if service == id.as_str() {
                    return Some(gone(object));
                }
                // A netmaster without slices moves the providers to the first slice.
                let first = Key::Providers(service.into()).to_string();
                Some(Witness::Counted {
                    record: first.clone(),
                    journal: first,
                    object: Some(object),
                    revision,
                })
            }
            Key::Policy(id) => {
                let mut parts = id.as_str().splitn(3, ':');
                let (tenant, group, policy) = (parts.next()?, parts.next()?, parts.next()?);
                let group = object(ObjectType::EndpointGroup, tenant, group);
                let policy = Key::Object(ObjectType::Policy, policy.to_owned()).to_string();
                Some(Witness::Detached { group, policy, revision })
            }
            Key::Endpoint(id) => {
                let network = &state.endpoint(id)?.network;
                Some(Witness::Counted {
                    record: Key::Network(network.clone()).to_string(),
                    journal: Key::NetworkJournal(network.clone()).to_string(),
                    object: network_object(network, state),
                    revision,
                })
            }
            _ => None,
        }
    }

    /// Reads the store; returns the contradiction to the deletion.
    pub(super) async fn missing(&self, store: &Store) -> Result<Option<String>, Error> {
        let remains = |key: &str| format!("the record of {key} was deleted, but not the object");
        match self {
            Witness::Deleted { object, revision } => {
                let created = store.get(object).await?.map(|kv| kv.create_revision);
                Ok(created.filter(|at| at <= revision).map(|_| remains(object)))
            }
            Witness::Detached { group, policy, revision } => {
                for key in [group, policy] {
                    if written(store, key).await?.is_none_or(|at| at >= *revision) {
                        return Ok(None);
                    }
                }
                // A change of the fabric's mode attaches or detaches all policies.
                for kind in [ObjectType::Global, ObjectType::AciGw] {
                    let prefix = Key::Object(kind, String::new()).to_string();
                    if store.list(&prefix).await?.items.iter().any(|kv| kv.mod_revision >= *revision) {
                        return Ok(None);
                    }
                }
                Ok(Some(format!("records of {policy} were deleted, but neither it nor {group} changed")))
            }
            Witness::Counted { record, journal, object, revision } => {
                let at = written(store, record).await?.max(written(store, journal).await?);
                match (at, object) {
                    (Some(at), _) if at < *revision => Ok(Some(format!(
                        "endpoints or providers were deleted, but {record}, which counts them, did not change"
                    ))),
                    (None, Some(object)) => Ok(written(store, object).await?.map(|_| remains(object))),
                    _ => Ok(None),
                }
            }
            Witness::Recorded { object, record } => {
                let lost = written(store, record).await?.is_none() && written(store, object).await?.is_some();
                Ok(lost.then(|| format!("{object} exists without its record {record}")))
            }
        }
    }
}

/// Returns the witnesses of these deletions, without duplicates, at most `limit`.
pub(super) fn witnesses(deleted: &[Deletion], state: &State, limit: usize) -> Vec<Witness> {
    let mut found = BTreeSet::new();
    for witness in deleted.iter().filter_map(|deletion| Witness::of(deletion, state)) {
        found.insert(witness);
        if found.len() == limit {
            break;
        }
    }
    found.into_iter().collect()
}

/// Witnesses of the networks of the API that are not among `listed`.
pub(super) async fn unlisted_networks(
    store: &Store,
    listed: &BTreeSet<NetworkId>,
) -> Result<Vec<Witness>, Error> {
    let objects = store.list(&Key::Object(ObjectType::Network, String::new()).to_string()).await?;
    let unlisted = objects.items.into_iter().filter_map(|object| {
        let (tenant, name) = object.key.rsplit_once('/')?.1.split_once(':')?;
        let id = NetworkId::new(&name.parse().ok()?, &tenant.parse().ok()?);
        (!listed.contains(&id))
            .then(|| Witness::Recorded { record: Key::Network(id).to_string(), object: object.key })
    });
    Ok(unlisted.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_witness_without_a_revision_is_contradicted_by_any_object() {
        let read: Witness = serde_json::from_str(r#"{"Deleted":{"object":"o"}}"#).unwrap();
        assert_eq!(read, Witness::Deleted { object: "o".to_owned(), revision: i64::MAX });
    }

    #[test]
    fn a_slice_of_providers_is_deleted_with_its_service_or_when_the_first_is_written() {
        let of = |key: &str| {
            let deletion = Deletion { key: key.parse().unwrap(), earliest: 7, latest: 9 };
            Witness::of(&deletion, &State::default())
        };
        let object = || "/contiv.io/obj/modeldb/serviceLB/t:web".to_owned();
        assert_eq!(
            of("/contiv.io/state/provider/web:t"),
            Some(Witness::Deleted { object: object(), revision: 9 })
        );
        let first = "/contiv.io/state/provider/web:t".to_owned();
        let (record, journal) = (first.clone(), first);
        assert_eq!(
            of("/contiv.io/state/provider/web:t/2"),
            Some(Witness::Counted { record, journal, object: Some(object()), revision: 7 })
        );
    }
}
