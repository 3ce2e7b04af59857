//! Request paths, normalised and split as the original's router does.

use axum::http::Uri;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Bytes that Go's `url.URL.String` escapes in a path.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b',')
    .remove(b'/')
    .remove(b':')
    .remove(b';')
    .remove(b'=')
    .remove(b'@');

/// Decoded before it is split: like in the original, `%2F` separates segments.
fn decoded(uri: &Uri) -> String {
    percent_decode_str(uri.path()).decode_utf8_lossy().into_owned()
}

/// Path to redirect to, if the decoded path contains `//`, `/./` or `/../`.
pub(super) fn cleaned(uri: &Uri) -> Option<String> {
    let path = decoded(uri);
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
    let clean = utf8_percent_encode(&clean, ESCAPED).to_string();
    Some(match uri.query() {
        Some(query) => format!("{clean}?{query}"),
        None => clean,
    })
}

/// Segments of the decoded path. A trailing slash yields an empty last segment.
pub(super) fn parts(uri: &Uri) -> Vec<String> {
    let path = decoded(uri);
    path.strip_prefix('/').unwrap_or(&path).split('/').map(str::to_owned).collect()
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
        assert_eq!(clean("/api/v1/netprofiles/a%2F%2Fb%20/"), Some("/api/v1/netprofiles/a/b%20/".into()));
        assert_eq!(clean("/a/%2E%2e/b"), Some("/b".into()));
        for fine in ["/", "/api/v1/tenants/", "/version", "/a?x=//"] {
            assert_eq!(clean(fine), None, "{fine}");
        }
    }

    #[test]
    fn segments_are_decoded() {
        assert_eq!(parts(&Uri::from_static("/api/v1/tenants/a%3Ab/")), ["api", "v1", "tenants", "a:b", ""]);
        assert_eq!(parts(&Uri::from_static("/version")), ["version"]);
    }

    #[test]
    fn an_escaped_slash_separates_segments() {
        assert_eq!(
            parts(&Uri::from_static("/api/v1/netprofiles/default:a%2Fb/")),
            ["api", "v1", "netprofiles", "default:a", "b", ""]
        );
    }
}
