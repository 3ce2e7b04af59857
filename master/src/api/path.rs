//! Request paths, normalised and split as the original's router does.

use axum::http::Uri;
use percent_encoding::percent_decode_str;

/// Path to redirect to, if the path contains `//`, `/./` or `/../`.
pub(super) fn cleaned(uri: &Uri) -> Option<String> {
    let path = uri.path();
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let mut clean = format!("/{}", parts.join("/"));
    if path.ends_with('/') && !parts.is_empty() {
        clean.push('/');
    }
    if clean == path {
        return None;
    }
    Some(match uri.query() {
        Some(query) => format!("{clean}?{query}"),
        None => clean,
    })
}

/// Percent-decoded path segments. A trailing slash yields an empty last segment.
pub(super) fn parts(uri: &Uri) -> Vec<String> {
    let path = uri.path().strip_prefix('/').unwrap_or(uri.path());
    path.split('/').map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unclean_paths_are_redirected() {
        let clean = |uri: &'static str| cleaned(&Uri::from_static(uri));
        assert_eq!(clean("/api/v1/tenants//"), Some("/api/v1/tenants/".into()));
        assert_eq!(clean("/a/../b/./c?x=1"), Some("/b/c?x=1".into()));
        assert_eq!(clean("//"), Some("/".into()));
        for fine in ["/", "/api/v1/tenants/", "/version", "/a?x=//"] {
            assert_eq!(clean(fine), None, "{fine}");
        }
    }

    #[test]
    fn segments_are_decoded() {
        assert_eq!(parts(&Uri::from_static("/api/v1/tenants/a%3Ab/")), ["api", "v1", "tenants", "a:b", ""]);
        assert_eq!(parts(&Uri::from_static("/version")), ["version"]);
    }
}
