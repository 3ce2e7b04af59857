//! Checks that a request stays within the objects that its sender's role covers.

use std::borrow::Cow;

use contiv_model::api::{AppProfile, EndpointGroup, Network, ServiceLb};
use contiv_model::global;
use contiv_model::key::ObjectType;
use serde_json::Value;

use super::{Cluster, Fields, Object};
use crate::access::Scope;
use crate::cache::{ONLY, StagedTxn};
use crate::domain::object_key;
use crate::problem::Problem;

/// Type of networks whose endpoints reach the nodes.
const INFRA: &str = "infra";
/// Infra network by which the nodes have routes to the VXLAN networks of its tenant.
const HOST_ROUTES: &str = "contivh1";
/// Tenant of an ACI fabric whose contracts are for all tenants.
const COMMON: &str = "common";
/// Fields with links.
const LINKS: [&str; 2] = ["links", "link-sets"];

/// Fails if the requested object, or an object that it refers to, is not in the scope.
///
/// The original accepts links in requests and stores them, and later changes follow them; [`without_links`] drops those
/// that are within the scope. References by name are names within the tenant of the object.
pub(super) fn check_request<T: Object>(
    request: &Fields,
    scope: &Scope,
    cluster: &Cluster,
    staged: &StagedTxn<'_>,
) -> Result<(), Problem> {
    if *scope == Scope::All {
        return Ok(());
    }
    let text = |name: &str| request.get(name).and_then(Value::as_str);
    let tenant = text("tenantName").filter(|_| T::KEY.first() == Some(&"tenantName"));
    scope.require_tenant(tenant)?;
    for (set, key) in links(request) {
        // State has the parts of a key in another order: a key must have all of them.
        match (set, key.split_once(':')) {
            ("Tenant", _) => scope.require_tenant(Some(key))?,
            (_, Some((tenant, _))) => scope.require_tenant(Some(tenant))?,
            (_, None) => {
                let why = format!("not allowed: the link to {key:?} is not of the form TENANT:NAME");
                return Err(Problem::forbidden(why));
            }
        }
    }
    let network = object_key(tenant.unwrap_or_default(), text("networkName").unwrap_or_default());
    match T::KIND {
        ObjectType::Network if text("nwType") == Some(INFRA) => Err(no_infra()),
        ObjectType::Network => check_routed(request, cluster, staged),
        ObjectType::EndpointGroup | ObjectType::ServiceLb if is_infra(&network, staged) => Err(no_infra()),
        ObjectType::AppProfile => {
            let names = request.get("endpointGroups").and_then(Value::as_array);
            let names = names.into_iter().flatten().filter_map(Value::as_str);
            let mut groups = names.map(|name| object_key(tenant.unwrap_or_default(), name));
            match groups.any(|group| is_on_infra(&group, staged)) {
                true => Err(no_infra()),
                false => Ok(()),
            }
        }
        ObjectType::ExtContractsGroup => check_contracts(request, scope),
        _ => Ok(()),
    }
}

/// The request without its links, unless the scope has all objects. Links are derived; those of requests are stored only for
/// clients of the original, which have no roles. Stored ones would let a role for tenants keep objects from being deleted,
/// and make the record of each later update as large as the largest request.
pub(super) fn without_links<'r>(request: &'r Fields, scope: &Scope) -> Cow<'r, Fields> {
    if *scope == Scope::All {
        return Cow::Borrowed(request);
    }
    let others = request.iter().filter(|(name, _)| !LINKS.contains(&name.as_str()));
    Cow::Owned(others.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// Fails if the object with this key exists and is not in the scope.
pub(super) fn check_record<T: Object>(
    key: &str,
    scope: &Scope,
    staged: &StagedTxn<'_>,
) -> Result<(), Problem> {
    let Some(object) = staged.get::<T>(key).filter(|_| *scope != Scope::All) else { return Ok(()) };
    scope.require_tenant(object.tenant())?;
    let needs_admin = match T::KIND {
        ObjectType::Network => is_infra(key, staged),
        ObjectType::EndpointGroup => is_on_infra(key, staged),
        ObjectType::ServiceLb => staged.get::<ServiceLb>(key).is_some_and(|service| {
            is_infra(&object_key(&service.tenant_name, &service.network_name), staged)
        }),
        // A change of the profile changes its groups, and a group of a profile cannot be deleted.
        ObjectType::AppProfile => staged.get::<AppProfile>(key).is_some_and(|profile| {
            profile.link_sets.endpoint_groups.keys().any(|group| is_on_infra(group, staged))
        }),
        _ => false,
    };
    match needs_admin {
        true => Err(no_infra()),
        false => Ok(()),
    }
}

/// Whether the group is on an infra network.
fn is_on_infra(group: &str, staged: &StagedTxn<'_>) -> bool {
    staged
        .get::<EndpointGroup>(group)
        .is_some_and(|group| is_infra(&object_key(&group.tenant_name, &group.network_name), staged))
}

fn is_infra(network: &str, staged: &StagedTxn<'_>) -> bool {
    staged.get::<Network>(network).is_some_and(|network| network.nw_type == INFRA)
}

/// Endpoints of infra networks reach the nodes, and addresses on them may be those of machines.
fn no_infra() -> Problem {
    Problem::forbidden("not allowed: infra networks, and what is on them, require admin")
}

/// Fails if the request creates a network that nodes route, and that hosts outside of the cluster may need. Networks keep their subnets.
///
/// * All tenants share the physical network, which leads to the endpoints of a routed VLAN network: they would take over hosts with
///   these addresses, or those of another tenant.
/// * The nodes themselves have routes to the VXLAN networks of a tenant with the infra network `contivh1`: endpoints would get what the
///   nodes send to others with these addresses.
fn check_routed(request: &Fields, cluster: &Cluster, staged: &StagedTxn<'_>) -> Result<(), Problem> {
    let text = |name: &str| request.get(name).and_then(Value::as_str).unwrap_or_default();
    // Nodes may route if that cannot be read.
    let is_routing = staged.cache().is_unreadable::<global::Config>(ONLY)
        || staged.get::<global::Config>(ONLY).is_some_and(|config| config.fwd_mode == "routing");
    let is_new = staged.get::<Network>(text("key")).is_none();
    let has_gateway = |fields: &[&str]| fields.iter().any(|field| !text(field).is_empty());
    if !is_routing || !is_new {
        return Ok(());
    }
    let (subnet, subnet_v6, tenant) = (text("subnet"), text("ipv6Subnet"), text("tenantName"));
    if text("encap") == "vlan" {
        if !cluster.routes_vlans || !has_gateway(&["gateway"]) {
            return Ok(());
        }
        return Err(Problem::forbidden(format!(
            "not allowed: nodes route a VLAN network with a gateway, and the physical network, which all tenants share, leads to its \
             subnet {subnet}: requires admin; use encap vxlan"
        )));
    }
    let joined = object_key(tenant, HOST_ROUTES);
    let is_joined = staged.cache().is_unreadable::<Network>(&joined)
        || staged
            .get::<Network>(&joined)
            .is_some_and(|network| network.nw_type == INFRA && network.encap != "vlan");
    if !is_joined || !has_gateway(&["gateway", "ipv6Gateway"]) {
        return Ok(());
    }
    let subnets =
        [subnet, subnet_v6].into_iter().filter(|subnet| !subnet.is_empty()).collect::<Vec<_>>().join(" and ");
    Err(Problem::forbidden(format!(
        "not allowed: nodes have routes to the VXLAN networks with a gateway of tenant {tenant}, because they are on its infra network \
         {HOST_ROUTES}, and would send there what is for other hosts with addresses of {subnets}: requires admin"
    )))
}

/// Contracts of the fabric have names such as `uni/tn-TENANT/brc-NAME`. The gateway uses them with its
/// own credentials.
fn check_contracts(request: &Fields, scope: &Scope) -> Result<(), Problem> {
    let contracts = request.get("contracts").and_then(Value::as_array);
    for name in contracts.into_iter().flatten().filter_map(Value::as_str) {
        let tenant = name.strip_prefix("uni/tn-").and_then(|rest| rest.split_once('/')).map(|(t, _)| t);
        if tenant != Some(COMMON) && !scope.has_tenant(tenant) {
            return Err(Problem::forbidden(format!(
                "not allowed: contract {name:?} is neither of a tenant of the role nor of the fabric's tenant \
                 {COMMON}: requires admin"
            )));
        }
    }
    Ok(())
}

/// Names of links, or of sets of links, with keys of the objects: `{"Tenant": LINK}`, or
/// `{"Rules": {KEY: LINK}}`.
fn links(request: &Fields) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let members = LINKS.into_iter().filter_map(|name| request.get(name)?.as_object());
    for (set, member) in members.flatten() {
        for (name, value) in member.as_object().into_iter().flatten() {
            match value {
                Value::String(key) if name == "key" && !key.is_empty() => {
                    found.push((set.as_str(), key.as_str()));
                }
                Value::Object(link) => {
                    let key = link.get("key").and_then(Value::as_str).filter(|key| !key.is_empty());
                    found.extend(
                        [Some(name.as_str()), key].into_iter().flatten().map(|key| (set.as_str(), key)),
                    );
                }
                _ => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use contiv_model::api::{Bgp, ExtContractsGroup, Netprofile, Policy};
    use serde_json::json;

    use super::*;
    use crate::cache::ClusterCache;

    fn blue() -> Scope {
        Scope::Tenants(["blue".to_owned()].into())
    }

    /// Calls `ask` in a store with the networks `net` and `mgmt`, an infra network, of tenant `blue`, each
    /// with a group and a service of its name.
    fn with_networks<R>(ask: impl FnOnce(&StagedTxn<'_>) -> R) -> R {
        let cache = ClusterCache::default();
        let mut staged = StagedTxn::new(&cache);
        for (name, nw_type) in [("net", "data"), ("mgmt", INFRA)] {
            let (key, tenant_name) = (object_key("blue", name), "blue".to_owned());
            let network_name = name.to_owned();
            let group = EndpointGroup {
                tenant_name: tenant_name.clone(),
                network_name: network_name.clone(),
                ..Default::default()
            };
            let service = ServiceLb {
                tenant_name: tenant_name.clone(),
                network_name: network_name.clone(),
                ..Default::default()
            };
            let nw_type = nw_type.to_owned();
            staged.put(&key, Network { tenant_name, network_name, nw_type, ..Default::default() });
            staged.put(&key, group);
            staged.put(&key, service);
        }
        ask(&staged)
    }

    fn check<T: Object>(request: &Value) -> bool {
        let request = request.as_object().unwrap();
        with_networks(|staged| {
            let cluster = Cluster::default();
            assert_eq!(check_request::<T>(request, &Scope::All, &cluster, staged), Ok(()));
            check_request::<T>(request, &blue(), &cluster, staged).is_ok()
        })
    }

    #[test]
    fn requests_stay_within_the_tenant() {
        let link = |key: &str| json!({"type": "x", "key": key});
        for (links, within) in [
            (json!({}), true),
            (json!({"EndpointGroups": {}}), true),
            (json!({"EndpointGroups": {"blue:g": link("blue:g")}}), true),
            (json!({"EndpointGroups": {"blue:g": link("")}}), true),
            (json!({"EndpointGroups": {"red:g": link("blue:g")}}), false),
            (json!({"EndpointGroups": {"blue:g": link("red:g")}}), false),
            (json!({"EndpointGroups": {"blue:g": link("blue:g"), "g": link("")}}), false),
            (json!({"EndpointGroups": {"blue": link("blue")}}), false),
            (json!({"EndpointGroups": {"blue:g": link("blue")}}), false),
        ] {
            let request = json!({"tenantName": "blue", "key": "blue:p", "link-sets": links});
            assert_eq!(check::<Policy>(&request), within, "{request}");
            assert_eq!(check::<Netprofile>(&request), within, "{request}");
        }
        for (links, within) in [
            (json!({"Tenant": link("blue")}), true),
            (json!({"Tenant": link("")}), true),
            (json!({"Tenant": link("red")}), false),
            (json!({"Tenant": link("blue.red")}), false),
            (json!({"Network": link("blue:net")}), true),
            (json!({"Network": link("blue")}), false),
        ] {
            let request = json!({"tenantName": "blue", "links": links});
            assert_eq!(check::<Policy>(&request), within, "{request}");
        }
        assert!(!check::<Policy>(&json!({"tenantName": "red"})));
        assert!(!check::<Policy>(&json!({})));
        assert!(!check::<Bgp>(&json!({"hostname": "h", "tenantName": "blue"})));
    }

    #[test]
    fn infra_networks_are_for_admins() {
        assert!(check::<Network>(&json!({"tenantName": "blue", "nwType": "data"})));
        assert!(!check::<Network>(&json!({"tenantName": "blue", "nwType": "infra"})));
        for (network, within) in [("net", true), ("mgmt", false), ("none", true)] {
            let request = json!({"tenantName": "blue", "networkName": network});
            assert_eq!(check::<EndpointGroup>(&request), within, "{network}");
            assert_eq!(check::<ServiceLb>(&request), within, "{network}");
            let profile = json!({"tenantName": "blue", "endpointGroups": ["other", network]});
            assert_eq!(check::<AppProfile>(&profile), within, "{network}");
            let key = object_key("blue", network);
            with_networks(|staged| {
                for scope in [Scope::All, blue()] {
                    let expected = within || scope == Scope::All;
                    assert_eq!(check_record::<Network>(&key, &scope, staged).is_ok(), expected, "{key}");
                    assert_eq!(
                        check_record::<EndpointGroup>(&key, &scope, staged).is_ok(),
                        expected,
                        "{key}"
                    );
                    assert_eq!(check_record::<ServiceLb>(&key, &scope, staged).is_ok(), expected, "{key}");
                }
            });
        }
    }

    #[test]
    fn contracts_are_those_of_the_tenant_or_of_all() {
        for (contract, within) in [
            ("uni/tn-blue/brc-web", true),
            ("uni/tn-common/brc-web", true),
            ("uni/tn-red/brc-web", false),
            ("uni/tn-blue", false),
            ("uni/tn-blue.red/brc-web", false),
            ("brc-web", false),
            ("", false),
        ] {
            let request = json!({"tenantName": "blue", "contracts": ["uni/tn-blue/brc-x", contract]});
            assert_eq!(check::<ExtContractsGroup>(&request), within, "{contract}");
        }
    }
}
