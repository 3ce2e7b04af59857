//! Links from an object to the objects that refer to it, such as those of a tenant to its networks.
//!
//! The links are derived from the referring objects. They are not part of the stored record, so that
//! creating an object does not write the records of the objects that it refers to. A record has only
//! the links that the request contained which created the object: like in the original, they are kept
//! and returned. They, and those that older releases and the original stored, are removed when a
//! netmaster becomes leader.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use contiv_model::api::{
    AppProfile, EndpointGroup, ExtContractsGroup, Link, LinkSet, Netprofile, Network, Policy, Rule,
    ServiceLb, Tenant,
};
use contiv_model::key::ObjectType;

use super::link_log::LinkLog;

/// Type and key of an object that another object refers to.
pub type Reference = (ObjectType, String);

/// A stored type that refers to API objects, or that API objects refer to.
pub trait Linked {
    /// None for types that are no API objects, or that have no links.
    const TYPE: Option<ObjectType> = None;
    /// Types of the objects that refer to objects of this type.
    const REFERRERS: &'static [ObjectType] = &[];

    /// Links to the referring objects of type `referrer`, one of [`Linked::REFERRERS`].
    fn link_set(&mut self, _referrer: ObjectType) -> Option<&mut LinkSet> {
        None
    }

    /// Objects that this one refers to. They link back if this type is one of their
    /// [`Linked::REFERRERS`]. They need not exist.
    fn references(&self) -> Vec<Reference> {
        Vec::new()
    }

    /// Gives back memory that the value does not need, before the cache keeps it.
    fn compact(&mut self) {}
}

fn of_tenant(kind: ObjectType, tenant: &str, name: &str) -> Option<Reference> {
    (!name.is_empty()).then(|| (kind, format!("{tenant}:{name}")))
}

impl Linked for Tenant {
    const TYPE: Option<ObjectType> = Some(ObjectType::Tenant);
    const REFERRERS: &'static [ObjectType] = &[
        ObjectType::AppProfile,
        ObjectType::EndpointGroup,
        ObjectType::Netprofile,
        ObjectType::Network,
        ObjectType::Policy,
        ObjectType::ServiceLb,
    ];

    fn link_set(&mut self, referrer: ObjectType) -> Option<&mut LinkSet> {
        let sets = &mut self.link_sets;
        match referrer {
            ObjectType::AppProfile => Some(&mut sets.app_profiles),
            ObjectType::EndpointGroup => Some(&mut sets.endpoint_groups),
            ObjectType::Netprofile => Some(&mut sets.net_profiles),
            ObjectType::Network => Some(&mut sets.networks),
            ObjectType::Policy => Some(&mut sets.policies),
            ObjectType::ServiceLb => Some(&mut sets.servicelbs),
            _ => None,
        }
    }
}

impl Linked for Network {
    const TYPE: Option<ObjectType> = Some(ObjectType::Network);
    const REFERRERS: &'static [ObjectType] = &[ObjectType::EndpointGroup, ObjectType::ServiceLb];

    fn link_set(&mut self, referrer: ObjectType) -> Option<&mut LinkSet> {
        match referrer {
            ObjectType::EndpointGroup => Some(&mut self.link_sets.endpoint_groups),
            ObjectType::ServiceLb => Some(&mut self.link_sets.servicelbs),
            _ => None,
        }
    }

    fn references(&self) -> Vec<Reference> {
        vec![(ObjectType::Tenant, self.tenant_name.clone())]
    }
}

impl Linked for EndpointGroup {
    const TYPE: Option<ObjectType> = Some(ObjectType::EndpointGroup);
    const REFERRERS: &'static [ObjectType] = &[ObjectType::Rule];

    fn link_set(&mut self, referrer: ObjectType) -> Option<&mut LinkSet> {
        (referrer == ObjectType::Rule).then_some(&mut self.link_sets.match_rules)
    }

    fn references(&self) -> Vec<Reference> {
        let of = |kind: ObjectType, name: &String| of_tenant(kind, &self.tenant_name, name);
        let tenant = (ObjectType::Tenant, self.tenant_name.clone());
        let policies = self.policies.iter().map(|name| of(ObjectType::Policy, name));
        let contracts = self.ext_contracts_grps.iter().map(|name| of(ObjectType::ExtContractsGroup, name));
        let others =
            [of(ObjectType::Network, &self.network_name), of(ObjectType::Netprofile, &self.net_profile)];
        others.into_iter().chain(policies).chain(contracts).flatten().chain([tenant]).collect()
    }
}

impl Linked for Netprofile {
    const TYPE: Option<ObjectType> = Some(ObjectType::Netprofile);
    const REFERRERS: &'static [ObjectType] = &[ObjectType::EndpointGroup];

    fn link_set(&mut self, referrer: ObjectType) -> Option<&mut LinkSet> {
        (referrer == ObjectType::EndpointGroup).then_some(&mut self.link_sets.endpoint_groups)
    }

    fn references(&self) -> Vec<Reference> {
        vec![(ObjectType::Tenant, self.tenant_name.clone())]
    }
}

impl Linked for Policy {
    const TYPE: Option<ObjectType> = Some(ObjectType::Policy);
    const REFERRERS: &'static [ObjectType] = &[ObjectType::EndpointGroup, ObjectType::Rule];

    fn link_set(&mut self, referrer: ObjectType) -> Option<&mut LinkSet> {
        match referrer {
            ObjectType::EndpointGroup => Some(&mut self.link_sets.endpoint_groups),
            ObjectType::Rule => Some(&mut self.link_sets.rules),
            _ => None,
        }
    }

    fn references(&self) -> Vec<Reference> {
        vec![(ObjectType::Tenant, self.tenant_name.clone())]
    }
}

impl Linked for Rule {
    const TYPE: Option<ObjectType> = Some(ObjectType::Rule);

    /// A network has no set of links to rules.
    fn references(&self) -> Vec<Reference> {
        let of = |kind: ObjectType, names: [&String; 2]| {
            let name = names.into_iter().find(|name| !name.is_empty())?;
            of_tenant(kind, &self.tenant_name, name)
        };
        let policy = of_tenant(ObjectType::Policy, &self.tenant_name, &self.policy_name);
        let group = of(ObjectType::EndpointGroup, [&self.from_endpoint_group, &self.to_endpoint_group]);
        let network = of(ObjectType::Network, [&self.from_network, &self.to_network]);
        [policy, group, network].into_iter().flatten().collect()
    }

    /// A set with one link has room for four, 216 bytes, and a cluster may have 400,000 rules.
    fn compact(&mut self) {
        let mut links = std::mem::take(&mut self.link_sets.policies).into_tuple_vec();
        links.shrink_to_fit();
        self.link_sets.policies = LinkSet::from_sorted_store_unchecked(links);
    }
}

impl Linked for AppProfile {
    const TYPE: Option<ObjectType> = Some(ObjectType::AppProfile);

    fn references(&self) -> Vec<Reference> {
        vec![(ObjectType::Tenant, self.tenant_name.clone())]
    }
}

impl Linked for ExtContractsGroup {
    const TYPE: Option<ObjectType> = Some(ObjectType::ExtContractsGroup);
    const REFERRERS: &'static [ObjectType] = &[ObjectType::EndpointGroup];

    fn link_set(&mut self, referrer: ObjectType) -> Option<&mut LinkSet> {
        (referrer == ObjectType::EndpointGroup).then_some(&mut self.link_sets.endpoint_groups)
    }

    /// A tenant has no set of links to contracts groups.
    fn references(&self) -> Vec<Reference> {
        vec![(ObjectType::Tenant, self.tenant_name.clone())]
    }
}

impl Linked for ServiceLb {
    const TYPE: Option<ObjectType> = Some(ObjectType::ServiceLb);

    fn references(&self) -> Vec<Reference> {
        let network = of_tenant(ObjectType::Network, &self.tenant_name, &self.network_name);
        network.into_iter().chain([(ObjectType::Tenant, self.tenant_name.clone())]).collect()
    }
}

/// Removes links to referring objects that are in the record.
pub fn clear_stored_links<T: Linked>(object: &mut T) {
    for referrer in T::REFERRERS {
        if let Some(set) = object.link_set(*referrer) {
            set.clear();
        }
    }
}

/// Derived links of one object, independent of later changes of the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links(Vec<(ObjectType, Arc<BTreeSet<String>>)>);

impl Links {
    pub(super) fn new(sets: impl Iterator<Item = (ObjectType, Arc<BTreeSet<String>>)>) -> Links {
        Links(sets.filter(|(_, keys)| !keys.is_empty()).collect())
    }

    /// The object with the derived links.
    pub fn added_to<T: Linked + Clone>(&self, object: &T) -> T {
        let mut object = object.clone();
        for (referrer, keys) in &self.0 {
            if let Some(set) = object.link_set(*referrer) {
                set.extend(keys.iter().map(|key| (key.clone(), Link::to(*referrer, key))));
            }
        }
        object
    }

    /// Digest of the links; none without links.
    fn digest(&self) -> Option<u64> {
        if self.0.is_empty() {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        for (referrer, keys) in &self.0 {
            (referrer.as_str(), keys).hash(&mut hasher);
        }
        Some(hasher.finish())
    }
}

/// Identifies what a GET of an object answers: the revision of its record, and its derived links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentVersion {
    revision: i64,
    links: Option<u64>,
}

impl ContentVersion {
    pub fn new(revision: i64, links: &Links) -> ContentVersion {
        ContentVersion { revision, links: links.digest() }
    }
}

impl fmt::Display for ContentVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.links {
            None => write!(f, "{}", self.revision),
            Some(digest) => write!(f, "{}-{digest:016x}", self.revision),
        }
    }
}

/// Keys of referring objects, by the key of the object.
type KeySets = HashMap<String, Arc<BTreeSet<String>>>;

/// Index of the references between objects.
#[derive(Default)]
pub(super) struct LinkIndex {
    /// By the type of the object and the type of the referring objects.
    sets: HashMap<(ObjectType, ObjectType), KeySets>,
    pub(super) log: LinkLog,
}

impl LinkIndex {
    pub(super) fn get(
        &self,
        target: ObjectType,
        referrer: ObjectType,
        key: &str,
    ) -> Option<&Arc<BTreeSet<String>>> {
        self.sets.get(&(target, referrer))?.get(key)
    }

    /// Replaces the references of the object with key `id`, which changed at `revision`.
    pub(super) fn replace<T: Linked>(&mut self, id: &str, old: Option<&T>, new: Option<&T>, revision: i64) {
        let Some(referrer) = T::TYPE else { return };
        let references = |object: Option<&T>| object.map(Linked::references).unwrap_or_default();
        let (old, new) = (references(old), references(new));
        let (before, after): (HashSet<&Reference>, HashSet<&Reference>) =
            (old.iter().collect(), new.iter().collect());
        // A network is answered as before.
        let is_shown = |target: ObjectType| (target, referrer) != (ObjectType::Network, ObjectType::Rule);
        for (target, key) in old.iter().filter(|reference| !after.contains(reference)) {
            self.remove(*target, referrer, key, id);
            if is_shown(*target) {
                self.log.push(*target, key, revision);
            }
        }
        for (target, key) in new.iter().filter(|reference| !before.contains(reference)) {
            if is_shown(*target) {
                self.log.push(*target, key, revision);
            }
            let keys = self.sets.entry((*target, referrer)).or_default().entry(key.clone()).or_default();
            Arc::make_mut(keys).insert(id.to_owned());
        }
    }

    fn remove(&mut self, target: ObjectType, referrer: ObjectType, key: &str, id: &str) {
        let Some(sets) = self.sets.get_mut(&(target, referrer)) else { return };
        let Some(keys) = sets.get_mut(key) else { return };
        Arc::make_mut(keys).remove(id);
        if keys.is_empty() {
            sets.remove(key);
        }
    }
}
