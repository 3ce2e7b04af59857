//! Paths, as the original's router takes them.

use axum::http::Uri;
use percent_encoding::percent_decode_str;

/// Where to go instead, if the path is not clean: `//`, `/./` and `/../` are taken out.
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

/// The parts between slashes, decoded; a trailing slash is an empty last part.
pub(super) fn parts(uri: &Uri) -> Vec<String> {
    let path = uri.path().strip_prefix('/').unwrap_or(uri.path());
    path.split('/').map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_clean_is_moved() {
        let clean = |uri: &'static str| cleaned(&Uri::from_static(uri));
        assert_eq!(clean("/api/v1/tenants//"), Some("/api/v1/tenants/".into()));
        assert_eq!(clean("/a/../b/./c?x=1"), Some("/b/c?x=1".into()));
        assert_eq!(clean("//"), Some("/".into()));
        for fine in ["/", "/api/v1/tenants/", "/version", "/a?x=//"] {
            assert_eq!(clean(fine), None, "{fine}");
        }
    }

    #[test]
    fn parts_are_decoded() {
        assert_eq!(parts(&Uri::from_static("/api/v1/tenants/a%3Ab/")), ["api", "v1", "tenants", "a:b", ""]);
        assert_eq!(parts(&Uri::from_static("/version")), ["version"]);
    }
}
