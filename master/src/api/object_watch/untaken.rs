//! Events that a client has not taken yet.

use std::vec;

use axum::response::sse::Event;

use super::super::in_flight::{StreamBytes, StreamMemory};

/// An event, and the bytes that it keeps in memory.
pub(super) struct WatchEvent {
    pub(super) event: Event,
    bytes: u64,
}

/// Events of one step of a watch, which are counted until the client takes them.
pub(super) struct Untaken {
    events: vec::IntoIter<WatchEvent>,
    /// None if they are not counted.
    counted: Option<StreamBytes>,
}

impl WatchEvent {
    pub(super) fn new(name: &str, data: &str) -> WatchEvent {
        WatchEvent { event: Event::default().event(name).data(data), bytes: data.len() as u64 }
    }

    pub(super) fn id(self, id: String) -> WatchEvent {
        WatchEvent { event: self.event.id(id), ..self }
    }
}

impl Untaken {
    /// None if the events exceed a limit together with other responses.
    pub(super) fn new(memory: Option<&StreamMemory>, events: Vec<WatchEvent>) -> Option<Untaken> {
        let bytes: u64 = events.iter().map(|event| event.bytes).sum();
        let counted = match memory.filter(|_| bytes > 0).map(|memory| memory.count(bytes)).transpose() {
            Ok(counted) => counted,
            Err(problem) => {
                tracing::info!(reason = problem.text, "watch objects: ended, the client takes too little");
                return None;
            }
        };
        Some(Untaken { events: events.into_iter(), counted })
    }
}

impl Iterator for Untaken {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let WatchEvent { event, bytes } = self.events.next()?;
        if let Some(counted) = &mut self.counted {
            counted.release(bytes);
        }
        Some(event)
    }
}
