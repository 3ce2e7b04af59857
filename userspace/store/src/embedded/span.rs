//! The range of keys of a request.

use bytes::Bytes;
use std::ops::Bound;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    from: Bytes,
    to: Bound<Bytes>,
}

impl Span {
    pub(super) fn one(key: Bytes) -> Span {
        Span { to: Bound::Included(key.clone()), from: key }
    }

    /// Decodes a request's range: an empty `end` means the one key, an `end` of `\0` every key from
    /// `key` on.
    pub(super) fn new(key: &[u8], end: &[u8]) -> Span {
        let from = Bytes::copy_from_slice(key);
        match end {
            [] => Span::one(from),
            [0] => Span { from, to: Bound::Unbounded },
            // A reversed range is empty; `BTreeMap::range` would panic.
            end if end < key => Span { to: Bound::Excluded(from.clone()), from },
            end => Span { from, to: Bound::Excluded(Bytes::copy_from_slice(end)) },
        }
    }

    pub(super) fn bounds(&self) -> (Bound<&Bytes>, Bound<&Bytes>) {
        (Bound::Included(&self.from), self.to.as_ref())
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        key >= &self.from[..]
            && match &self.to {
                Bound::Included(to) => key <= &to[..],
                Bound::Excluded(to) => key < &to[..],
                Bound::Unbounded => true,
            }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(&self.to, Bound::Excluded(to) if *to <= self.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inside() {
        let inside =
            |key: &str, end: &[u8], probe: &str| Span::new(key.as_bytes(), end).contains(probe.as_bytes());
        assert!(inside("a", b"", "a") && !inside("a", b"", "aa"));
        assert!(inside("a", b"b", "aa") && !inside("a", b"b", "b"));
        assert!(inside("b", b"\0", "zzz") && !inside("b", b"\0", "a"));
        assert!(!inside("b", b"a", "b") && Span::new(b"b", b"a").is_empty());
    }
}
