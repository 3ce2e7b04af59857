//! The history of the store, which revisions are of.

/// The history of one store. After a store was replaced or restored, a revision means another state.
///
/// It is recognised by etcd's cluster id and by the identity that netmaster writes. The number of the
/// revision alone tells only that a store has not come as far yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    tag: String,
}

/// A revision that a client has received from some leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRevision {
    pub number: i64,
    /// None from a client that keeps numbers only.
    tag: Option<String>,
}

impl History {
    /// The history of the store with etcd's cluster id and the identity in `master/config/cluster`.
    pub fn new(cluster: u64, identity: &str) -> History {
        // FNV-1a: all netmasters have to compute the same tag, whatever their release is.
        let bytes = cluster.to_be_bytes().into_iter().chain(identity.bytes());
        let hash =
            bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        History { tag: format!("{hash:08x}") }
    }

    /// Eight hexadecimal digits.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// A revision of this history as clients receive it: `4711-1f2e3d4c`.
    pub fn revision(&self, number: i64) -> String {
        format!("{number}-{}", self.tag)
    }

    /// Whether the revision is of this history, as far as it tells.
    pub fn has(&self, revision: &ClientRevision) -> bool {
        revision.tag.as_ref().is_none_or(|tag| *tag == self.tag)
    }
}

impl ClientRevision {
    /// Parses `4711-1f2e3d4c` or `4711`.
    pub fn parse(text: &str) -> Option<ClientRevision> {
        let (number, tag) = match text.split_once('-') {
            Some((_, "")) => return None,
            Some((number, tag)) => (number, Some(tag.to_owned())),
            None => (text, None),
        };
        let number = number.parse::<i64>().ok().filter(|number| *number > 0)?;
        Some(ClientRevision { number, tag })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_of_another_history_are_recognised() {
        let history = History::new(7, "id");
        let has = |text: &str| ClientRevision::parse(text).map(|revision| history.has(&revision));
        assert_eq!(has(&history.revision(5)), Some(true));
        assert_eq!(has("5"), Some(true));
        for other in [History::new(8, "id"), History::new(7, "other"), History::new(7, "")] {
            assert_eq!(has(&other.revision(5)), Some(false), "{other:?}");
        }
        assert_eq!(ClientRevision::parse(&history.revision(5)).unwrap().number, 5);
        for text in ["", "x", "0", "-1", "-1-a", "5-", "5.0", "99999999999999999999"] {
            assert_eq!(ClientRevision::parse(text), None, "{text}");
        }
    }

    /// A client may have it from an earlier release.
    #[test]
    fn the_tag_is_the_same_in_every_release() {
        assert_eq!(History::new(0x0102_0304_0506_0708, "00ff").revision(1), "1-c87997bd");
    }
}
