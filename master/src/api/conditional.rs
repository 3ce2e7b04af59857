//! Conditional requests (RFC 9110, section 13). The entity tag of an object is the tag of the store's
//! history, and the revision of the record, with a digest of the links that are derived from other
//! records: `"1f2e3d4c.4711-00f1e2d3c4b5a697"`.
//!
//! A restored store counts its revisions from the beginning, so one revision may be that of other
//! values in another history.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::cache::{ContentVersion, Version};
use crate::leadership::History;
use crate::problem::Problem;

/// Conditions of a request for an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Preconditions {
    /// History of the versions that the tags are compared with.
    history: History,
    if_match: Option<EntityTags>,
    if_none_match: Option<EntityTags>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum EntityTags {
    /// `*`: any that exists.
    Any,
    List(Vec<EntityTag>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct EntityTag {
    weak: bool,
    opaque: String,
}

/// The entity tag of a version of this history.
pub(super) fn entity_tag(history: &History, version: ContentVersion) -> HeaderValue {
    // Digits, letters, a dot, a hyphen and quotes are valid in a header.
    HeaderValue::try_from(format!("\"{}\"", opaque(history, version)))
        .unwrap_or(HeaderValue::from_static("\"\""))
}

/// What is between the quotes of the entity tag.
fn opaque(history: &History, version: ContentVersion) -> String {
    format!("{}.{version}", history.tag())
}

impl Preconditions {
    /// Conditions on versions of `history`, which is that of the leader.
    pub(super) fn of(headers: &HeaderMap, history: &History) -> Result<Preconditions, Problem> {
        Ok(Preconditions {
            history: history.clone(),
            if_match: EntityTags::of(headers, &header::IF_MATCH)?,
            if_none_match: EntityTags::of(headers, &header::IF_NONE_MATCH)?,
        })
    }

    /// Fails if a write to the object must not be carried out.
    pub(super) fn check(&self, object: &str, version: Version) -> Result<(), Problem> {
        let state = match version {
            Version::Absent => "it does not exist".to_owned(),
            Version::At(version) => format!("its entity tag is \"{}\"", opaque(&self.history, version)),
            Version::Staged => "another request changes it".to_owned(),
        };
        let matches =
            |tags: &EntityTags, comparison: Comparison| tags.matches(&self.history, version, comparison);
        if self.if_match.as_ref().is_some_and(|tags| !matches(tags, Comparison::Strong)) {
            return Err(Problem::precondition(format!("If-Match: {object}: {state}; get it again")));
        }
        if self.if_none_match.as_ref().is_some_and(|tags| matches(tags, Comparison::Weak)) {
            return Err(Problem::precondition(format!("If-None-Match: {object}: {state}")));
        }
        Ok(())
    }

    /// Whether the client of a GET has this version of the object already.
    pub(super) fn is_known(&self, version: ContentVersion) -> bool {
        let at = Version::At(version);
        let known = |tags: &EntityTags| tags.matches(&self.history, at, Comparison::Weak);
        self.if_none_match.as_ref().is_some_and(known)
    }
}

#[derive(Clone, Copy)]
enum Comparison {
    /// Weak tags never match.
    Strong,
    Weak,
}

impl EntityTags {
    fn of(headers: &HeaderMap, name: &HeaderName) -> Result<Option<EntityTags>, Problem> {
        let mut list = Vec::new();
        let mut given = false;
        for value in headers.get_all(name) {
            given = true;
            let text = value.to_str().unwrap_or_default().trim();
            if text == "*" {
                return Ok(Some(EntityTags::Any));
            }
            let Some(tags) = parse(text) else {
                let why =
                    format!("{name}: {text:?} is neither * nor a list of quoted entity tags, as in ETag");
                return Err(Problem::invalid(why));
            };
            list.extend(tags);
        }
        Ok(given.then_some(EntityTags::List(list)))
    }

    /// A tag of another history matches nothing, nor does one of a release without histories.
    fn matches(&self, history: &History, version: Version, comparison: Comparison) -> bool {
        match (self, version) {
            (_, Version::Absent) => false,
            (EntityTags::Any, _) => true,
            // The revision that it will have is not known.
            (EntityTags::List(_), Version::Staged) => false,
            (EntityTags::List(list), Version::At(version)) => {
                let current = opaque(history, version);
                let is_current = |tag: &EntityTag| {
                    tag.opaque == current && (!tag.weak || matches!(comparison, Comparison::Weak))
                };
                list.iter().any(is_current)
            }
        }
    }
}

/// Parses `"a", W/"b"`. A tag may contain commas.
fn parse(text: &str) -> Option<Vec<EntityTag>> {
    let mut tags = Vec::new();
    let mut rest = text;
    loop {
        let (weak, quoted) = match rest.strip_prefix("W/") {
            Some(quoted) => (true, quoted),
            None => (false, rest),
        };
        let (opaque, after) = quoted.strip_prefix('"')?.split_once('"')?;
        tags.push(EntityTag { weak, opaque: opaque.to_owned() });
        match after.trim_start() {
            "" => return Some(tags),
            after => rest = after.strip_prefix(',')?.trim_start(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Links;

    fn at(revision: i64) -> ContentVersion {
        ContentVersion::new(revision, &Links::default())
    }

    fn history() -> History {
        History::new(7, "id")
    }

    /// `H` stands for the tag of the history.
    fn given(name: HeaderName, value: &str) -> Result<Preconditions, Problem> {
        let value = HeaderValue::try_from(value.replace('H', history().tag())).unwrap();
        Preconditions::of(&HeaderMap::from_iter([(name, value)]), &history())
    }

    #[test]
    fn writes_are_carried_out_for_the_given_version_only() {
        let allowed =
            |name, value, version| given(name, value).unwrap().check("network a:b", version).is_ok();
        for (value, version, result) in [
            ("*", Version::At(at(7)), true),
            ("*", Version::Staged, true),
            ("*", Version::Absent, false),
            ("\"H.7\"", Version::At(at(7)), true),
            ("\"H.6\", \"H.7\"", Version::At(at(7)), true),
            ("\"H.6,H.7\",\"H.7\"", Version::At(at(7)), true),
            ("\"H.8\"", Version::At(at(7)), false),
            ("W/\"H.7\"", Version::At(at(7)), false),
            ("\"H.7\"", Version::Staged, false),
            ("\"H.7\"", Version::Absent, false),
        ] {
            assert_eq!(allowed(header::IF_MATCH, value, version), result, "{value} {version:?}");
        }
        for (value, version, result) in [
            ("*", Version::Absent, true),
            ("*", Version::At(at(7)), false),
            ("*", Version::Staged, false),
            ("\"H.7\"", Version::At(at(7)), false),
            ("\"H.6\"", Version::At(at(7)), true),
        ] {
            assert_eq!(allowed(header::IF_NONE_MATCH, value, version), result, "{value} {version:?}");
        }
        assert_eq!(Preconditions::default().check("network a:b", Version::Absent), Ok(()));
    }

    #[test]
    fn invalid_conditions_are_refused() {
        for value in ["", "7", "\"7", "\"7\" \"8\"", "\"7\",", "w/\"7\""] {
            let problem = given(header::IF_MATCH, value).unwrap_err();
            assert!(problem.text.contains("quoted entity tags"), "{value}: {problem}");
        }
    }

    #[test]
    fn a_known_version_is_not_sent_again() {
        assert!(given(header::IF_NONE_MATCH, "W/\"H.7\"").unwrap().is_known(at(7)));
        assert!(!given(header::IF_NONE_MATCH, "\"H.6\"").unwrap().is_known(at(7)));
        assert!(!Preconditions::default().is_known(at(7)));
    }

    /// Before the store was restored, or from an earlier release.
    #[test]
    fn tags_of_another_history_do_not_match() {
        let other = entity_tag(&History::new(8, "id"), at(7));
        for value in [other.to_str().unwrap(), "\"7\"", "\".7\"", "\"7-H\""] {
            let if_match = given(header::IF_MATCH, value).unwrap();
            assert!(if_match.check("network a:b", Version::At(at(7))).is_err(), "{value}");
            let if_none_match = given(header::IF_NONE_MATCH, value).unwrap();
            assert_eq!(if_none_match.check("network a:b", Version::At(at(7))), Ok(()), "{value}");
            assert!(!if_none_match.is_known(at(7)), "{value}");
        }
        let own = entity_tag(&history(), at(7));
        assert!(given(header::IF_NONE_MATCH, own.to_str().unwrap()).unwrap().is_known(at(7)));
    }
}
