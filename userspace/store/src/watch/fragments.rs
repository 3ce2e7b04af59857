//! Joins the fragments of watch responses.
//!
//! etcd divides a response that is larger than a request may be. All fragments but the last have the flag
//! `fragment`. A fragment may end within a revision. etcd sends nothing else of the watch between the
//! fragments of a response, and the last revision of a response is whole.

use etcd_client::proto::{PbEvent, PbWatchResponse};

/// The events of the last revision that has arrived, as long as more of them may follow.
#[derive(Default)]
pub(super) struct Fragments(Vec<PbEvent>);

impl Fragments {
    /// Returns the events of whole revisions: those of the response and of earlier fragments, and keeps the
    /// others.
    pub(super) fn join(&mut self, response: PbWatchResponse) -> Vec<PbEvent> {
        let mut events = std::mem::take(&mut self.0);
        events.extend(response.events);
        if response.fragment {
            let last = events.last().and_then(revision);
            let whole = events.iter().rposition(|event| revision(event) != last).map_or(0, |end| end + 1);
            self.0 = events.split_off(whole);
        }
        events
    }

    /// Returns the revision up to which all events of the watch have arrived before this response, if it says so: a
    /// response without events is a progress notification, which etcd sends for a watch without a backlog.
    pub(super) fn progress(&self, response: &PbWatchResponse) -> Option<i64> {
        let is_progress =
            self.0.is_empty() && response.events.is_empty() && !response.created && !response.fragment;
        let header = response.header.as_ref().filter(|_| is_progress)?;
        Some(header.revision)
    }
}

fn revision(event: &PbEvent) -> Option<i64> {
    Some(event.kv.as_ref()?.mod_revision)
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_client::proto::{PbKeyValue, PbResponseHeader};

    /// Joins a response with events of these revisions, and returns the revisions of the whole ones.
    fn join(fragments: &mut Fragments, fragment: bool, revisions: &[i64]) -> Vec<i64> {
        let event = |revision: &i64| {
            let kv = PbKeyValue { mod_revision: *revision, ..PbKeyValue::default() };
            PbEvent { kv: Some(kv), ..PbEvent::default() }
        };
        let events = revisions.iter().map(event).collect();
        let response = PbWatchResponse { events, fragment, ..PbWatchResponse::default() };
        fragments.join(response).iter().filter_map(revision).collect()
    }

    #[test]
    fn responses_that_are_not_divided_are_returned_at_once() {
        let mut fragments = Fragments::default();
        assert_eq!(join(&mut fragments, false, &[2, 2, 3]), [2, 2, 3]);
        // A progress notification.
        assert_eq!(join(&mut fragments, false, &[]), [0; 0]);
        assert_eq!(join(&mut fragments, false, &[4]), [4]);
    }

    #[test]
    fn a_revision_in_several_fragments_is_returned_whole() {
        let mut fragments = Fragments::default();
        assert_eq!(join(&mut fragments, true, &[2, 3, 3]), [2]);
        assert_eq!(join(&mut fragments, true, &[3, 3]), [0; 0]);
        assert_eq!(join(&mut fragments, true, &[3, 4, 5]), [3, 3, 3, 3, 3, 4]);
        // The last revision does not wait for a later one.
        assert_eq!(join(&mut fragments, false, &[5]), [5, 5]);
        assert_eq!(join(&mut fragments, false, &[6]), [6]);
    }

    #[test]
    fn a_response_without_events_tells_how_far_the_watch_is() {
        let header = Some(PbResponseHeader { revision: 9, ..PbResponseHeader::default() });
        let response = PbWatchResponse { header, ..PbWatchResponse::default() };
        let mut fragments = Fragments::default();
        assert_eq!(fragments.progress(&response), Some(9));
        assert_eq!(fragments.progress(&PbWatchResponse { created: true, ..response.clone() }), None);
        let events = vec![PbEvent::default()];
        assert_eq!(fragments.progress(&PbWatchResponse { events, ..response.clone() }), None);
        // The rest of a revision is on its way.
        join(&mut fragments, true, &[2]);
        assert_eq!(fragments.progress(&response), None);
    }

    /// The fragment ends with its revision, which cannot be known before the next one.
    #[test]
    fn a_whole_revision_at_the_end_of_a_fragment_comes_with_the_next() {
        let mut fragments = Fragments::default();
        assert_eq!(join(&mut fragments, true, &[2, 2]), [0; 0]);
        assert_eq!(join(&mut fragments, true, &[3, 3]), [2, 2]);
        assert_eq!(join(&mut fragments, false, &[4]), [3, 3, 4]);
    }
}
