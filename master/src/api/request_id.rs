//! Ids of requests, which join lines of logs and of the audit logs of all netmasters.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{HeaderMap, HeaderName, HeaderValue};

pub(super) const HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id that is accepted from a client, in bytes.
const MAX_LENGTH: usize = 128;

/// Distinguishes the ids of this process.
static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The id that the client gave, or a new one, which is added to the headers.
pub(super) fn of(headers: &mut HeaderMap) -> HeaderValue {
    let given = headers.get(HEADER).filter(|value| is_valid(value.as_bytes()));
    if let Some(given) = given {
        return given.clone();
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let id = format!("{:016x}-{number}", *PROCESS);
    let id = HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("invalid"));
    headers.insert(HEADER, id.clone());
    id
}

fn is_valid(id: &[u8]) -> bool {
    let valid = |b: &u8| b.is_ascii_alphanumeric() || b"-_.:/+=".contains(b);
    (1..=MAX_LENGTH).contains(&id.len()) && id.iter().all(valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_ids_are_kept_and_others_replaced() {
        for (given, kept) in
            [("req-1", true), ("a/b+c=:_.", true), ("", false), ("a b", false), ("a\"b", false)]
        {
            let mut headers = HeaderMap::from_iter([(HEADER, HeaderValue::from_static(given))]);
            let id = of(&mut headers);
            assert_eq!(id == given, kept, "{given}: {id:?}");
            assert_eq!(headers.get(HEADER), Some(&id));
            assert_eq!(headers.get_all(HEADER).iter().count(), 1);
        }
        let long = HeaderValue::try_from("x".repeat(MAX_LENGTH + 1)).unwrap();
        let (mut one, mut other) = (HeaderMap::from_iter([(HEADER, long.clone())]), HeaderMap::new());
        let (one, other) = (of(&mut one), of(&mut other));
        assert!(one != long && one != other);
    }
}
