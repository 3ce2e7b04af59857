//! Objects that a list takes out of the cache.
//!
//! Keys begin with the tenant. A list of a tenant's objects visits no objects of other tenants.

use std::ops::Bound;
use std::sync::Arc;

use super::Object;
use super::listing::{FieldSelector, Selection};
use crate::access::Scope;
use crate::cache::ClusterCache;

/// Field with the tenant, which is the first part of a key.
const TENANT: &str = "tenantName";

/// Objects of the scope and of the tenant in the selector, sorted by key: as many as the page can have,
/// and one more. The caller evaluates other requirements, which may leave out any number of objects, so
/// with them the number is not limited.
pub(super) fn candidates<T: Object>(
    cache: &ClusterCache,
    scope: &Scope,
    selection: &Selection,
) -> Vec<Arc<T>> {
    let selector = &selection.selector;
    let (limit, _) = selection.bounds();
    let is_complete = selector.is_empty() || selector.requires_only(TENANT);
    let taken = if is_complete { limit.saturating_add(1) } else { usize::MAX };
    let ranges = ranges::<T>(scope, selector);
    let found = ranges.iter().flat_map(|range| {
        let entries = cache.shared_from::<T>(range.start(selection.after.as_deref()));
        entries.take_while(move |(key, _)| range.contains(key)).map(|(_, object)| object)
    });
    let tenant = selector.required(TENANT);
    let is_of_tenant = |object: &Arc<T>| tenant.is_none_or(|tenant| object.tenant() == Some(tenant));
    let in_scope = found.filter(|object| scope.has_tenant(object.tenant()) && is_of_tenant(object));
    in_scope.take(taken).collect()
}

/// Ranges that contain the keys of all objects to return, in the order of the keys.
fn ranges<T: Object>(scope: &Scope, selector: &FieldSelector) -> Vec<KeyRange> {
    if let Some(key) = selector.required("key") {
        return vec![KeyRange::One(key.to_owned())];
    }
    if T::KEY.first() != Some(&TENANT) {
        return vec![KeyRange::All];
    }
    let of_tenant = |tenant: &str| match T::KEY.len() {
        1 => KeyRange::One(tenant.to_owned()),
        _ => KeyRange::Prefix(format!("{tenant}:")),
    };
    let mut ranges = match (selector.required(TENANT), scope) {
        (Some(tenant), _) => vec![of_tenant(tenant)],
        (None, Scope::All) => vec![KeyRange::All],
        (None, Scope::Tenants(tenants)) => tenants.iter().map(|tenant| of_tenant(tenant)).collect(),
        (None, Scope::Node(_)) => vec![],
    };
    // The prefix of tenant `a.b` precedes that of `a`: a dot precedes a colon.
    ranges.sort_unstable();
    ranges
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum KeyRange {
    All,
    One(String),
    /// Keys with this prefix.
    Prefix(String),
}

impl KeyRange {
    fn contains(&self, key: &str) -> bool {
        match self {
            KeyRange::All => true,
            KeyRange::One(one) => key == one,
            KeyRange::Prefix(prefix) => key.starts_with(prefix.as_str()),
        }
    }

    /// Lower bound of the keys that follow `after` in the range.
    fn start<'k>(&'k self, after: Option<&'k str>) -> Bound<&'k str> {
        let first = match self {
            KeyRange::All => "",
            KeyRange::One(first) | KeyRange::Prefix(first) => first.as_str(),
        };
        match after {
            Some(after) if after >= first => Bound::Excluded(after),
            _ => Bound::Included(first),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use contiv_model::api::{Bgp, Policy, Tenant};

    use super::*;
    use crate::cache::StagedTxn;

    /// Three policies of each of the tenants `a`, `a.b` and `b`.
    fn cache() -> ClusterCache {
        let mut cache = ClusterCache::default();
        let mut staged = StagedTxn::new(&cache);
        for tenant_name in ["a", "a.b", "b"].map(str::to_owned) {
            for name in ["0", "1", "2"].map(str::to_owned) {
                let (key, tenant_name) = (format!("{tenant_name}:{name}"), tenant_name.clone());
                let policy = Policy { key: key.clone(), tenant_name, policy_name: name, ..Policy::default() };
                staged.put(&key, policy);
            }
            let key = tenant_name.clone();
            staged.put(&key, Tenant { key: key.clone(), tenant_name, ..Tenant::default() });
        }
        staged.put("node", Bgp { key: "node".to_owned(), ..Bgp::default() });
        let (_, change) = staged.finish().unwrap();
        cache.commit(change, 1_i64);
        cache
    }

    fn selection(selector: &str, after: &str, limit: usize) -> Selection {
        Selection {
            selector: FieldSelector::parse(selector, Policy::SCHEMA).unwrap(),
            after: Some(after.to_owned()).filter(|after| !after.is_empty()),
            limit: NonZeroUsize::new(limit),
        }
    }

    fn keys<T: Object>(scope: &Scope, selection: &Selection) -> Vec<String> {
        candidates::<T>(&cache(), scope, selection).iter().map(|object| object.key().to_owned()).collect()
    }

    fn tenants(names: &[&str]) -> Scope {
        Scope::Tenants(names.iter().map(|&name| name.to_owned()).collect())
    }

    #[test]
    fn a_page_takes_no_objects_of_other_tenants() {
        for (scope, selector, after, limit, wanted) in [
            (Scope::All, "", "", 2, &["a.b:0", "a.b:1", "a.b:2"][..]),
            (Scope::All, "", "a:1", 9, &["a:2", "b:0", "b:1", "b:2"]),
            (Scope::All, "tenantName=a", "", 1, &["a:0", "a:1"]),
            (Scope::All, "tenantName=a", "a:0", 5, &["a:1", "a:2"]),
            (Scope::All, "tenantName=a", "b:0", 5, &[]),
            (Scope::All, "tenantName=a,policyName!=0", "", 1, &["a:0", "a:1", "a:2"]),
            (Scope::All, "tenantName=a,tenantName=b", "", 1, &["a:0", "a:1", "a:2"]),
            (Scope::All, "tenantName=c", "", 1, &[]),
            (Scope::All, "key=b:1", "", 1, &["b:1"]),
            (Scope::All, "key=b:1", "b:1", 1, &[]),
            (tenants(&["a", "a.b"]), "", "", 0, &["a.b:0", "a.b:1", "a.b:2", "a:0", "a:1", "a:2"]),
            (tenants(&["a", "a.b"]), "", "a.b:1", 1, &["a.b:2", "a:0"]),
            (tenants(&["a", "b"]), "", "a.b:1", 1, &["a:0", "a:1"]),
            (tenants(&["a", "b"]), "", "a:2", 1, &["b:0", "b:1"]),
            (tenants(&["b"]), "tenantName=a", "", 1, &[]),
            (tenants(&["b"]), "key=a:1", "", 1, &[]),
            (Scope::Node("a".to_owned()), "", "", 1, &[]),
        ] {
            let found = keys::<Policy>(&scope, &selection(selector, after, limit));
            assert_eq!(found, wanted, "{scope:?} {selector:?} {after:?} {limit}");
        }
    }

    #[test]
    fn tenants_and_objects_of_the_cluster_are_listed_by_scope() {
        let all = selection("", "", 0);
        assert_eq!(keys::<Tenant>(&Scope::All, &all), ["a", "a.b", "b"]);
        assert_eq!(keys::<Tenant>(&tenants(&["a", "b", "c"]), &all), ["a", "b"]);
        assert_eq!(keys::<Tenant>(&tenants(&["a", "b"]), &selection("", "a", 1)), ["b"]);
        assert_eq!(keys::<Tenant>(&Scope::All, &selection("tenantName=a", "", 1)), ["a"]);
        assert_eq!(keys::<Bgp>(&Scope::All, &all), ["node"]);
        assert_eq!(keys::<Bgp>(&tenants(&["a"]), &all), [""; 0]);
    }
}
