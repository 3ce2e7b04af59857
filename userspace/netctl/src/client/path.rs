//! Paths of the API.

use contiv_model::key::ObjectType;

/// Path of an object.
pub(super) fn object_path(kind: ObjectType, key: &str) -> String {
    format!("/api/v1/{}s/{}/", kind.as_str(), segment(key))
}

/// Percent-encodes a key as one segment of a path. Proxies remove segments of dots only, so these are encoded, too.
pub fn segment(key: &str) -> String {
    if matches!(key, "." | "..") {
        return key.replace('.', "%2E");
    }
    let encode = |byte: u8| match byte {
        b'a'..=b'z'
        | b'A'..=b'Z'
        | b'0'..=b'9'
        | b'-'
        | b'.'
        | b'_'
        | b'~'
        | b':'
        | b'@'
        | b'$'
        | b'&'
        | b'+'
        | b'=' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    key.bytes().map(encode).collect()
}
