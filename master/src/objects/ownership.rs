//! Checks that a request stays within the objects that its sender's role covers.

use contiv_model::key::ObjectType;
use serde_json::Value;

use super::{Fields, Object};
use crate::access::Scope;
use crate::cache::StagedTxn;
use crate::problem::Problem;

/// Fails if the requested object, or an object that it links to, is not in the scope.
///
/// The original accepts links in requests and stores them, and later changes follow them. References
/// by name are names within the tenant of the object.
pub(super) fn check_request<T: Object>(request: &Fields, scope: &Scope) -> Result<(), Problem> {
    if *scope == Scope::All {
        return Ok(());
    }
    let text = |name: &str| request.get(name).and_then(Value::as_str);
    let tenant = text("tenantName").filter(|_| T::KEY.first() == Some(&"tenantName"));
    scope.require_tenant(tenant)?;
    for name in ["links", "link-sets"] {
        let mut keys = Vec::new();
        request.get(name).into_iter().for_each(|links| linked_keys(links, &mut keys));
        for key in keys {
            scope.require_tenant(Some(key.split_once(':').map_or(key, |(tenant, _)| tenant)))?;
        }
    }
    // Endpoints of infra networks reach the nodes.
    if T::KIND == ObjectType::Network && text("nwType") == Some("infra") {
        return Err(Problem::forbidden("not allowed: infra networks require admin"));
    }
    Ok(())
}

/// Fails if the object with this key exists and is not in the scope.
pub(super) fn check_record<T: Object>(
    key: &str,
    scope: &Scope,
    staged: &StagedTxn<'_>,
) -> Result<(), Problem> {
    match staged.get::<T>(key) {
        Some(object) => scope.require_tenant(object.tenant()),
        None => Ok(()),
    }
}

/// Keys of the objects in `links`: links by name (`{"Tenant": LINK}`), or sets of links by key
/// (`{"Rules": {KEY: LINK}}`).
fn linked_keys<'v>(links: &'v Value, keys: &mut Vec<&'v str>) {
    for member in links.as_object().into_iter().flat_map(|links| links.values()) {
        let Some(member) = member.as_object() else { continue };
        for (name, value) in member {
            match value {
                Value::String(key) if name == "key" && !key.is_empty() => keys.push(key),
                Value::Object(link) => {
                    keys.push(name);
                    keys.extend(link.get("key").and_then(Value::as_str).filter(|key| !key.is_empty()));
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use contiv_model::api::{Bgp, Netprofile, Network, Policy};
    use serde_json::json;

    use super::*;

    fn check<T: Object>(request: &Value) -> bool {
        let blue = Scope::Tenants(["blue".to_owned()].into());
        let request = request.as_object().unwrap();
        assert_eq!(check_request::<T>(request, &Scope::All), Ok(()));
        check_request::<T>(request, &blue).is_ok()
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
        ] {
            let request = json!({"tenantName": "blue", "links": links});
            assert_eq!(check::<Policy>(&request), within, "{request}");
        }
        assert!(!check::<Policy>(&json!({"tenantName": "red"})));
        assert!(!check::<Policy>(&json!({})));
        assert!(!check::<Bgp>(&json!({"hostname": "h", "tenantName": "blue"})));
        assert!(check::<Network>(&json!({"tenantName": "blue", "nwType": "data"})));
        assert!(!check::<Network>(&json!({"tenantName": "blue", "nwType": "infra"})));
    }
}
