//! Query parameters of requests for objects. Parameters that are not known are ignored, as by the
//! original.

use std::num::NonZeroUsize;

use axum::http::{HeaderMap, HeaderName, Uri};

use crate::leadership::ClientRevision;
use crate::objects::{FieldSelector, Selection};
use crate::problem::Problem;
use crate::schema::Schema;

/// Header that a client of server-sent events sends when it reconnects.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Decoded query parameters. If one is repeated, the last is used.
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    pub(super) fn of(uri: &Uri) -> Parameters {
        let pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
        Parameters(pairs.into_owned().collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn is_set(&self, name: &str, truths: &[&str]) -> Result<bool, Problem> {
        match self.get(name) {
            None | Some("0" | "false") => Ok(false),
            Some(value) if value.is_empty() || truths.contains(&value) => Ok(true),
            Some(value) => {
                let values = truths.join(", ");
                Err(Problem::invalid(format!("{name}: {value:?} is invalid; values are {values}, false, 0")))
            }
        }
    }

    fn integer(&self, name: &str) -> Result<Option<i64>, Problem> {
        let Some(text) = self.get(name) else { return Ok(None) };
        match text.parse::<i64>() {
            Ok(n) if n > 0 => Ok(Some(n)),
            _ => Err(Problem::invalid(format!("{name}: {text:?} is not a number above 0"))),
        }
    }

    /// Whether the request must change nothing.
    pub(super) fn dry_run(&self) -> Result<bool, Problem> {
        self.is_set("dryRun", &["All", "true", "1"])
    }

    /// Whether the request is for a stream of changes instead of a list.
    pub(super) fn watch(&self) -> Result<bool, Problem> {
        self.is_set("watch", &["true", "1"])
    }

    /// Revision after which a watch begins; none for a snapshot first.
    pub(super) fn watch_after(&self, headers: &HeaderMap) -> Result<Option<ClientRevision>, Problem> {
        let (name, text) = match (headers.get(LAST_EVENT_ID), self.get("revision")) {
            (Some(last), _) => ("Last-Event-ID", last.to_str().unwrap_or_default()),
            (None, Some(revision)) => ("revision", revision),
            (None, None) => return Ok(None),
        };
        let invalid = || Problem::invalid(format!("{name}: {text:?} is not a revision"));
        ClientRevision::parse(text).map(Some).ok_or_else(invalid)
    }

    pub(super) fn selection(&self, schema: &Schema) -> Result<Selection, Problem> {
        let limit = self.integer("limit")?.and_then(|n| NonZeroUsize::new(usize::try_from(n).ok()?));
        Ok(Selection {
            selector: FieldSelector::parse(self.get("fieldSelector").unwrap_or_default(), schema)?,
            after: self.get("continue").filter(|key| !key.is_empty()).map(str::to_owned),
            limit,
        })
    }

    /// Path and query of the page after the object with key `after`.
    pub(super) fn page_after(&self, path: &str, after: &str) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.0.iter().filter(|(name, _)| name != "continue"));
        format!("{path}?{}", query.append_pair("continue", after).finish())
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn given(query: &str) -> Parameters {
        Parameters::of(&format!("/api/v1/networks/?{query}").parse().unwrap())
    }

    #[test]
    fn switches_are_read() {
        for (query, dry_run) in [
            ("", false),
            ("dryRun", true),
            ("dryRun=All", true),
            ("dryRun=1", true),
            ("dryRun=0", false),
            ("dryRun=1&dryRun=false", false),
            ("watch=1", false),
        ] {
            assert_eq!(given(query).dry_run(), Ok(dry_run), "{query}");
        }
        assert!(
            given("dryRun=maybe").dry_run().unwrap_err().text.starts_with("dryRun: \"maybe\" is invalid")
        );
        assert_eq!(given("watch=true").watch(), Ok(true));
    }

    #[test]
    fn a_reconnecting_client_continues_after_its_last_event() {
        let mut headers = HeaderMap::new();
        let after = |query: &str, headers: &HeaderMap| given(query).watch_after(headers);
        let revision = |text: &str| Ok(Some(ClientRevision::parse(text).unwrap()));
        assert_eq!(after("watch=1", &headers), Ok(None));
        assert_eq!(after("watch=1&revision=7", &headers), revision("7"));
        assert_eq!(after("watch=1&revision=7-a0", &headers), revision("7-a0"));
        assert!(after("revision=-1", &headers).is_err());
        headers.insert(LAST_EVENT_ID, HeaderValue::from_static("9-a0"));
        assert_eq!(after("watch=1&revision=7", &headers), revision("9-a0"));
        headers.insert(LAST_EVENT_ID, HeaderValue::from_static("x"));
        assert!(after("watch=1", &headers).is_err());
    }

    #[test]
    fn the_next_page_has_the_same_parameters() {
        let parameters = given("limit=2&fieldSelector=tenantName%3Dblue&continue=a");
        let next = parameters.page_after("/api/v1/networks/", "blue:net & 1");
        assert_eq!(
            next,
            "/api/v1/networks/?limit=2&fieldSelector=tenantName%3Dblue&continue=blue%3Anet+%26+1"
        );
        let schema = crate::objects::Type::by_plural("networks").unwrap().operations.schema;
        let selection = Parameters::of(&next.parse().unwrap()).selection(schema).unwrap();
        assert_eq!(selection.after.as_deref(), Some("blue:net & 1"));
        assert_eq!(selection.limit.map(NonZeroUsize::get), Some(2));
        assert!(given("limit=0").selection(schema).is_err());
        assert!(given("limit=many").selection(schema).is_err());
    }
}
