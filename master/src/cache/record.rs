//! Entries that the cache keeps exactly as the store has them.

use std::collections::BTreeMap;
use std::sync::Arc;

use contiv_model::{
    api, bgp, endpoint, global,
    key::{Key, ObjectType},
    node,
    policy::{DirectionalRuleState, PolicyState},
    registry, service,
};
use contiv_store::Op;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::derived::{Derived, DerivedOverlays, DerivedTables};
use super::links::{LinkIndex, Linked};
use super::revisions::Revisions;
use super::unknown_fields::UnknownFields;

/// A value and the store revision of it.
#[derive(Debug)]
pub struct Versioned<T> {
    pub value: Arc<T>,
    pub revision: i64,
    pub(super) unknown: UnknownFields,
}

/// Entries by the last part of their key; [`ONLY`] for singletons.
pub type Table<T> = BTreeMap<String, Versioned<T>>;
/// Id of a singleton: a key without a variable part.
pub const ONLY: &str = "";
/// Staged changes of a table: a put (`Some`) or a deletion.
pub(super) type Overlay<T> = BTreeMap<String, Option<Arc<T>>>;

/// A value with a key of its own in the store.
pub trait Entry: Linked + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Key of the value in the store.
    fn path(id: &str) -> String;
    #[doc(hidden)]
    fn table(tables: &Tables) -> &Table<Self>
    where
        Self: Sized;
    #[doc(hidden)]
    fn table_mut(tables: &mut Tables) -> &mut Table<Self>
    where
        Self: Sized;
    #[doc(hidden)]
    fn overlay(overlays: &Overlays) -> &Overlay<Self>
    where
        Self: Sized;
    #[doc(hidden)]
    fn overlay_mut(overlays: &mut Overlays) -> &mut Overlay<Self>
    where
        Self: Sized;
}

/// Next endpoint group id: `state/group-ids`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupIds {
    pub id: String,
    pub next: i64,
}

/// `/contiv.io/state/aci-pending/<tenant>:<profile>`: the profile must be synchronised to the ACI
/// gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// `<tenant>:<profile>`.
    pub id: String,
}

macro_rules! records {
    (@links $type:ty, linked) => {};
    (@links $type:ty) => { impl Linked for $type {} };
    ($($field:ident: $type:ty, |$id:ident| $key:expr $(, $linked:ident)?;)*) => {
        $(records!(@links $type $(, $linked)?);)*

        #[derive(Default)]
        pub struct Tables { pub(super) derived: DerivedTables, $($field: Table<$type>,)* }

        #[derive(Default)]
        pub struct Overlays { pub(super) derived: DerivedOverlays, $($field: Overlay<$type>,)* }

        $(impl Entry for $type {
            fn path($id: &str) -> String { $key.to_string() }
            fn table(tables: &Tables) -> &Table<Self> { &tables.$field }
            fn table_mut(tables: &mut Tables) -> &mut Table<Self> { &mut tables.$field }
            fn overlay(overlays: &Overlays) -> &Overlay<Self> { &overlays.$field }
            fn overlay_mut(overlays: &mut Overlays) -> &mut Overlay<Self> { &mut overlays.$field }
        })*

        impl Overlays {
            pub(super) fn len(&self) -> usize {
                self.derived.len() $(+ self.$field.len())*
            }

            /// Number of puts and of deletions.
            pub(super) fn counts(&self) -> (usize, usize) {
                let puts = self.derived.puts() $(+ self.$field.values().flatten().count())*;
                (puts, self.len() - puts)
            }

            /// Drops the changes of entries whose keys `keep` does not select. Derived records are no entries.
            pub(super) fn retain_entries(&mut self, keep: impl Fn(&str) -> bool) {
                $(self.$field.retain(|id, _| keep(&<$type>::path(id)));)*
            }

            /// Passes each change to `each`: key, revision guard and operation.
            pub(super) fn ops(&self, tables: &Tables, mut each: impl FnMut(String, i64, Option<Op>)) -> serde_json::Result<()> {
                $(for (id, value) in &self.$field {
                    let key = <$type>::path(id);
                    let known = tables.$field.get(id);
                    let revision = known.map_or(0, |known| known.revision);
                    let encode = |value: &$type| match known {
                        Some(known) => known.unknown.encode(value),
                        None => serde_json::to_vec(value),
                    };
                    let op = match value {
                        Some(value) => Op::Put { key: key.clone(), value: encode(value)?.into(), lease: None },
                        None => Op::Delete { key: key.clone() },
                    };
                    each(key, revision, Some(op));
                })*
                self.derived.ops(&tables.derived, each)
            }

            /// Applies the changes to the tables, except where the table has a newer revision.
            /// Passes each deleted key and its revision to `deleted`.
            pub(super) fn apply(
                self,
                tables: &mut Tables,
                links: &mut LinkIndex,
                at: &Revisions,
                mut deleted: impl FnMut(String, i64),
            ) {
                $(for (id, value) in self.$field {
                    let revision = at.of(&<$type>::path(&id));
                    if tables.$field.get(&id).is_some_and(|known| known.revision > revision) {
                        continue;
                    }
                    let known = tables.$field.get(&id).map(|known| &*known.value);
                    links.replace(&id, known, value.as_deref(), revision);
                    match value {
                        Some(value) => {
                            let known = tables.$field.remove(&id);
                            let unknown = known.map(|known| known.unknown).unwrap_or_default();
                            tables.$field.insert(id, Versioned { value, revision, unknown });
                        }
                        None => {
                            tables.$field.remove(&id);
                            deleted(<$type>::path(&id), revision);
                        }
                    }
                })*
                self.derived.apply(&mut tables.derived, at, deleted);
            }
        }

        #[cfg(test)]
        mod tests {
            use super::*;

            /// A release that adds a field to a stored type must be able to rely on it.
            #[test]
            fn every_type_keeps_unknown_fields() {
                $(keeps_unknown_fields::<$type>();)*
                keeps_unknown_fields::<PolicyState>();
                keeps_unknown_fields::<DirectionalRuleState>();
            }

            fn keeps_unknown_fields<T: Serialize + DeserializeOwned + Default>() {
                let mut stored = serde_json::to_value(T::default()).unwrap();
                stored["newer"] = serde_json::json!({"x": [1]});
                let (value, unknown) = UnknownFields::read::<T>(stored.to_string().as_bytes()).unwrap();
                let written: serde_json::Value =
                    serde_json::from_slice(&unknown.encode(&value).unwrap()).unwrap();
                assert_eq!(written, stored, "{}", std::any::type_name::<T>());
            }
        }
    };
}

records! {
    globals: api::Global, |id| Key::Object(ObjectType::Global, id.to_owned());
    tenants: api::Tenant, |id| Key::Object(ObjectType::Tenant, id.to_owned()), linked;
    networks: api::Network, |id| Key::Object(ObjectType::Network, id.to_owned()), linked;
    groups: api::EndpointGroup, |id| Key::Object(ObjectType::EndpointGroup, id.to_owned()), linked;
    netprofiles: api::Netprofile, |id| Key::Object(ObjectType::Netprofile, id.to_owned()), linked;
    policies: api::Policy, |id| Key::Object(ObjectType::Policy, id.to_owned()), linked;
    rules: api::Rule, |id| Key::Object(ObjectType::Rule, id.to_owned()), linked;
    app_profiles: api::AppProfile, |id| Key::Object(ObjectType::AppProfile, id.to_owned()), linked;
    ext_contracts: api::ExtContractsGroup, |id| Key::Object(ObjectType::ExtContractsGroup, id.to_owned()), linked;
    aci_gws: api::AciGw, |id| Key::Object(ObjectType::AciGw, id.to_owned());
    volumes: api::Volume, |id| Key::Object(ObjectType::Volume, id.to_owned());
    volume_profiles: api::VolumeProfile, |id| Key::Object(ObjectType::VolumeProfile, id.to_owned());
    aci_pending: Pending, |id| Key::AciPending(id.to_owned());
    service_lbs: api::ServiceLb, |id| Key::Object(ObjectType::ServiceLb, id.to_owned()), linked;
    service_states: service::State, |id| Key::ServiceLb(id.into());
    providers: service::Providers, |id| Key::Providers(id.into());
    bgps: api::Bgp, |id| Key::Object(ObjectType::Bgp, id.to_owned());
    bgp_states: bgp::State, |id| Key::Bgp(id.into());
    config: global::Config, |_id| Key::MasterConfig;
    identity: global::ClusterIdentity, |_id| Key::ClusterIdentity;
    global_state: global::State, |_id| Key::GlobalState;
    global_oper: global::Oper, |_id| Key::GlobalOper;
    vlans: global::VlanPool, |_id| Key::VlanPool;
    vlans_oper: global::VlanPoolOper, |_id| Key::VlanPoolOper;
    vxlans: global::VxlanPool, |_id| Key::VxlanPool;
    vxlans_oper: global::VxlanPoolOper, |_id| Key::VxlanPoolOper;
    group_ids: GroupIds, |_id| Key::GroupIds;
    endpoints: endpoint::State, |id| Key::Endpoint(id.into());
    endpoints_oper: endpoint::Oper, |id| Key::EndpointOper(id.into());
    nodes: node::Status, |id| Key::NodeStatus(id.into());
    node_vteps: node::Vtep, |id| Key::NodeVtep(id.into());
    bgp_opers: bgp::Oper, |id| Key::BgpOper(id.into());
    accepted_stores: node::AcceptedStore, |id| Key::AcceptedStore(id.into());
    node_datapaths: node::ChosenDatapath, |id| Key::NodeDatapath(id.into());
    gone_nodes: node::Gone, |id| Key::GoneNode(id.into());
    // `<name>/<address>`.
    services: registry::ServiceInfo, |id| {
        let (name, address) = id.split_once('/').unwrap_or((id, ""));
        Key::Service { name: name.to_owned(), address: address.to_owned() }
    };
}

/// What is done with a key, by the type of its value.
pub(super) trait ByType {
    type Output;
    fn entry<T: Entry>(self, id: &str) -> Self::Output;
    fn derived<T: Derived>(self, id: &str) -> Self::Output;
}

/// Calls `visitor` with the type of the key's value and the last part of the key. None for the keys of allocation
/// records, which are handled separately, and for those that do not belong to netmaster.
pub(super) fn by_type<V: ByType>(key: &Key, visitor: V) -> Option<V::Output> {
    Some(match key {
        Key::Object(ObjectType::Global, id) => visitor.entry::<api::Global>(id),
        Key::Object(ObjectType::Tenant, id) => visitor.entry::<api::Tenant>(id),
        Key::Object(ObjectType::Network, id) => visitor.entry::<api::Network>(id),
        Key::Object(ObjectType::EndpointGroup, id) => visitor.entry::<api::EndpointGroup>(id),
        Key::Object(ObjectType::Netprofile, id) => visitor.entry::<api::Netprofile>(id),
        Key::Object(ObjectType::Bgp, id) => visitor.entry::<api::Bgp>(id),
        Key::Object(ObjectType::Policy, id) => visitor.entry::<api::Policy>(id),
        Key::Object(ObjectType::Rule, id) => visitor.entry::<api::Rule>(id),
        Key::Object(ObjectType::AppProfile, id) => visitor.entry::<api::AppProfile>(id),
        Key::Object(ObjectType::ExtContractsGroup, id) => visitor.entry::<api::ExtContractsGroup>(id),
        Key::Object(ObjectType::AciGw, id) => visitor.entry::<api::AciGw>(id),
        Key::Object(ObjectType::Volume, id) => visitor.entry::<api::Volume>(id),
        Key::Object(ObjectType::VolumeProfile, id) => visitor.entry::<api::VolumeProfile>(id),
        Key::Object(ObjectType::ServiceLb, id) => visitor.entry::<api::ServiceLb>(id),
        Key::MasterConfig => visitor.entry::<global::Config>(ONLY),
        Key::ClusterIdentity => visitor.entry::<global::ClusterIdentity>(ONLY),
        Key::GlobalState => visitor.entry::<global::State>(ONLY),
        Key::GlobalOper => visitor.entry::<global::Oper>(ONLY),
        Key::VlanPool => visitor.entry::<global::VlanPool>(ONLY),
        Key::VlanPoolOper => visitor.entry::<global::VlanPoolOper>(ONLY),
        Key::VxlanPool => visitor.entry::<global::VxlanPool>(ONLY),
        Key::VxlanPoolOper => visitor.entry::<global::VxlanPoolOper>(ONLY),
        Key::GroupIds => visitor.entry::<GroupIds>(ONLY),
        Key::Policy(id) => visitor.derived::<PolicyState>(id.as_str()),
        Key::PolicyRule(id) => visitor.derived::<DirectionalRuleState>(id.as_str()),
        Key::Bgp(host) => visitor.entry::<bgp::State>(host.as_str()),
        Key::AciPending(id) => visitor.entry::<Pending>(id),
        Key::ServiceLb(id) => visitor.entry::<service::State>(id.as_str()),
        Key::Providers(id) => visitor.entry::<service::Providers>(id.as_str()),
        Key::Endpoint(id) => visitor.entry::<endpoint::State>(id.as_str()),
        Key::EndpointOper(id) => visitor.entry::<endpoint::Oper>(id.as_str()),
        Key::NodeStatus(host) => visitor.entry::<node::Status>(host.as_str()),
        Key::NodeVtep(host) => visitor.entry::<node::Vtep>(host.as_str()),
        Key::BgpOper(host) => visitor.entry::<bgp::Oper>(host.as_str()),
        Key::AcceptedStore(host) => visitor.entry::<node::AcceptedStore>(host.as_str()),
        Key::NodeDatapath(host) => visitor.entry::<node::ChosenDatapath>(host.as_str()),
        Key::GoneNode(host) => visitor.entry::<node::Gone>(host.as_str()),
        Key::Service { name, address } => {
            visitor.entry::<registry::ServiceInfo>(&format!("{name}/{address}"))
        }
        _ => return None,
    })
}
