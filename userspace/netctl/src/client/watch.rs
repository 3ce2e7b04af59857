//! Watches: the changes of objects, as netmaster sends them.

use std::io::{self, BufReader, Read};

use serde_json::Value;
use ureq::http::header;

use super::{
    Client, MAX_BODY, Request,
    attempt::{Method, hint},
    events::{self, Events},
    listing::{Selection, is_revision},
    refusal::{is_temporary, refusal},
};
use crate::error::Error;

/// Where a watch begins. Revisions are texts, because only netmaster knows what they consist of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// With all objects.
    Snapshot,
    /// After the revision of a list.
    List(String),
    /// After the last event of an earlier watch.
    Event(String),
}

/// What an event tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// An object as it is now. The same one may be sent more than once.
    Put(Value),
    /// The key of an object that does not exist any more, or that the selection does not select any more.
    Delete(String),
    /// The end of the snapshot.
    Synced,
    /// The changes since the start are not available any more: list the objects again.
    Gone,
}

/// A change, with the revision to continue after if the watch breaks.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The change.
    pub change: Change,
    /// Revision; only the last event of a revision has it.
    pub revision: Option<String>,
}

/// An open watch. It may be read by another thread.
pub struct Watch {
    url: String,
    events: Events<BufReader<Box<dyn Read + Send>>>,
    selection: Selection,
}

impl Client {
    /// Opens a watch; none if the server does not offer watches.
    pub fn watch(&self, selection: &Selection, start: &Start) -> Result<Option<Watch>, Error> {
        let path = selection.path_with(&match start {
            Start::List(revision) => format!("watch=1&revision={revision}"),
            Start::Snapshot | Start::Event(_) => "watch=1".to_owned(),
        });
        let mut request = Request::new(Method::Get, &path);
        if let Start::Event(id) = start {
            request.header = Some(("Last-Event-ID", id.clone()));
        }
        request.is_stream = true;
        let (url, mut answer) = self.reach(&request)?;
        if !answer.status().is_success() {
            if is_temporary(answer.status()) {
                // As of other requests. The caller opens the watch again, until it succeeds.
                self.prefer_next();
            }
            let read = answer.body_mut().with_config().limit(MAX_BODY).read_to_string();
            let text = read.map_err(|source| self.failed(Method::Get, &url, source))?;
            return Err(refusal(Method::Get, &url, &answer, &text, "netmaster"));
        }
        let content = answer.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if !content.is_some_and(|content| content.starts_with("text/event-stream")) {
            // A list: the parameter is not known.
            return Ok(None);
        }
        let body: Box<dyn Read + Send> = Box::new(answer.into_body().into_reader());
        let events = Events::new(BufReader::new(body));
        Ok(Some(Watch { url, events, selection: selection.clone() }))
    }
}

impl Watch {
    /// Waits for the next event; none when netmaster ends the stream, as it does when it no longer leads.
    pub fn next_event(&mut self) -> Result<Option<Event>, Error> {
        while let Some(event) = self.events.next().map_err(|error| self.broken(error))? {
            if let Some(change) = self.decode(&event)? {
                let revision = event.id.filter(|id| is_revision(id));
                return Ok(Some(Event { change, revision }));
            }
        }
        Ok(None)
    }

    /// The change of an event; none of an event that is not known.
    fn decode(&self, event: &events::Event) -> Result<Option<Change>, Error> {
        let data = || -> Result<Value, Error> {
            let answer = |source| Error::Answer { method: "GET", url: self.url.clone(), source };
            serde_json::from_str(&event.data).map_err(answer)
        };
        let key = |data: &Value| data.get("key").and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(match event.name.as_str() {
            "put" => {
                let object = data()?;
                Some(match self.selection.selects(&object) {
                    true => Change::Put(object),
                    // The values of the selection were not sent, or the server does not know selectors.
                    false => Change::Delete(key(&object)),
                })
            }
            "delete" => Some(Change::Delete(key(&data()?))),
            "synced" => Some(Change::Synced),
            "gone" => Some(Change::Gone),
            _ => None,
        })
    }

    fn broken(&self, error: io::Error) -> Error {
        let source = ureq::Error::from(error);
        let (method, hint) = ("GET", hint(Method::Get, &self.url, true, &source));
        Error::Request { method, url: self.url.clone(), hint, source: Box::new(source) }
    }
}
