//! Templates of routes, as the OpenAPI document writes them: labels of metrics, without keys.

use std::borrow::Cow;

use crate::objects::Type;
use crate::plugin;

/// Template of all paths that no route has.
const OTHER: &str = "other";

/// Template of the route of a path, given as segments.
pub(super) fn of(parts: &[String]) -> Cow<'static, str> {
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let object = |types: &str| Type::by_plural(types).is_some();
    match parts.as_slice() {
        ["api", "v1", "openapi.json"] => super::openapi::PATH.into(),
        ["api", "v1", "inspect", "endpoints", _, ""] => "/api/v1/inspect/endpoints/{name}/".into(),
        ["api", "v1", "inspect", "nodes", ""] => "/api/v1/inspect/nodes/".into(),
        ["api", "v1", "inspect", "nodes", _, ""] => "/api/v1/inspect/nodes/{host}/".into(),
        ["api", "v1", "nodes", _, ""] => "/api/v1/nodes/{host}/".into(),
        ["api", "v1", "nodes", _, "acceptedStore", ""] => "/api/v1/nodes/{host}/acceptedStore/".into(),
        ["api", "v1", "nodes", _, "datapath", _, ""] => "/api/v1/nodes/{host}/datapath/{datapath}/".into(),
        ["api", "v1", "inspect", types, _, ""] if object(types) => {
            format!("/api/v1/inspect/{types}/{{key}}/").into()
        }
        ["api", "v1", types, ""] if object(types) => format!("/api/v1/{types}/").into(),
        ["api", "v1", types, _, ""] if object(types) => format!("/api/v1/{types}/{{key}}/").into(),
        ["plugin", call] if plugin::CALLS.iter().any(|known| known.name == *call) => {
            format!("/plugin/{call}").into()
        }
        ["debug", "epcleanup", "tenant", _, _, _] => "/debug/epcleanup/tenant/{tenant}/{kind}/{name}".into(),
        ["debug", "ofnet"] => "/debug/ofnet".into(),
        ["service", _] => "/service/{id}".into(),
        ["services"] => "/services".into(),
        ["version"] => "/version".into(),
        ["info"] => "/info".into(),
        ["healthz"] => "/healthz".into(),
        ["readyz"] => "/readyz".into(),
        ["metrics"] => "/metrics".into(),
        _ => OTHER.into(),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Uri;
    use serde_json::Value;

    use super::super::{openapi, path};
    use super::*;

    #[test]
    fn templates_are_the_paths_of_the_document() {
        let document: Value = serde_json::from_str(&openapi::DOCUMENT).unwrap();
        let paths = document["paths"].as_object().unwrap();
        assert!(paths.len() > 40);
        for template in paths.keys() {
            let words = template.split('/').map(|word| if word.starts_with('{') { "a.b:c" } else { word });
            let uri: Uri = words.collect::<Vec<_>>().join("/").parse().unwrap();
            assert_eq!(of(&path::parts(&uri)), template.as_str(), "{uri}");
        }
    }

    #[test]
    fn keys_and_unknown_paths_have_no_labels_of_their_own() {
        for uri in [
            "/",
            "/x",
            "/api/v1/xs/",
            "/api/v1/xs/a/",
            "/plugin/x",
            "/api/v1/inspect/xs/a/",
            "/api/v1/networks/a%2Fb/",
            "/a/b/c",
        ] {
            assert_eq!(of(&path::parts(&Uri::from_static(uri))), OTHER, "{uri}");
        }
    }
}
