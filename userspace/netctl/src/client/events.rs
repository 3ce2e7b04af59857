//! Decoder of server-sent events (WHATWG HTML, section 9.2).

use std::io::{self, BufRead, Read as _};

/// Largest event, in bytes. Objects are much smaller: the store refuses them above 1.5 MB.
const MAX_EVENT: usize = 64 << 20;

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    /// Its type; `message` if the stream does not tell.
    pub(super) name: String,
    pub(super) data: String,
    /// Id to continue after, if the event has one.
    pub(super) id: Option<String>,
}

/// The events of a stream.
#[derive(Debug)]
pub(super) struct Events<R> {
    stream: R,
    is_first_line: bool,
}

impl<R: BufRead> Events<R> {
    pub(super) fn new(stream: R) -> Events<R> {
        Events { stream, is_first_line: true }
    }

    /// Reads the next event; none at the end of the stream, where an incomplete event is discarded.
    pub(super) fn next(&mut self) -> io::Result<Option<Event>> {
        let (mut event, mut size) = (Event::default(), 0);
        let mut data: Vec<String> = vec![];
        loop {
            let mut bytes = vec![];
            let limit = MAX_EVENT.saturating_sub(size) as u64;
            size += self.stream.by_ref().take(limit).read_until(b'\n', &mut bytes)?;
            if bytes.pop_if(|byte| *byte == b'\n').is_none() {
                return match size < MAX_EVENT {
                    true => Ok(None),
                    false => Err(io::Error::other(format!("an event is larger than {MAX_EVENT} bytes"))),
                };
            }
            bytes.pop_if(|byte| *byte == b'\r');
            let line = String::from_utf8_lossy(&bytes);
            let line = if self.is_first_line { line.trim_start_matches('\u{feff}') } else { &*line };
            self.is_first_line = false;
            if line.is_empty() {
                if data.is_empty() {
                    (event, size) = (Event::default(), 0);
                    continue;
                }
                event.data = data.join("\n");
                if event.name.is_empty() {
                    event.name = "message".into();
                }
                return Ok(Some(event));
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => event.name = value.to_owned(),
                "data" => data.push(value.to_owned()),
                "id" if !value.contains('\0') => event.id = Some(value.to_owned()),
                // Comments have no field; `retry` is for browsers.
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> Vec<(String, String, Option<String>)> {
        let mut events = Events::new(text.as_bytes());
        let mut found = vec![];
        while let Some(event) = events.next().unwrap() {
            found.push((event.name, event.data, event.id));
        }
        found
    }

    fn event(name: &str, data: &str, id: Option<&str>) -> (String, String, Option<String>) {
        (name.into(), data.into(), id.map(str::to_owned))
    }

    #[test]
    fn events_are_decoded() {
        for (text, expected) in [
            ("event: put\ndata: {\"a\":1}\nid: 7\n\n", vec![event("put", "{\"a\":1}", Some("7"))]),
            ("event:put\r\ndata:x\r\n\r\n", vec![event("put", "x", None)]),
            (":\n\n: comment\ndata\n\n", vec![event("message", "", None)]),
            ("data: a\ndata:  b\nretry: 5\nunknown: 1\n\n", vec![event("message", "a\n b", None)]),
            (
                "\u{feff}data: a\n\ndata: b\n\n",
                vec![event("message", "a", None), event("message", "b", None)],
            ),
            // An event without data is none, and its name is not that of the next one.
            ("event: put\nid: 1\n\ndata: a\n\n", vec![event("message", "a", None)]),
            ("data: a\nid: 1\0\n\n", vec![event("message", "a", None)]),
            ("data: 日本\u{202e}\n\n", vec![event("message", "日本\u{202e}", None)]),
            // Cut off within an event and within a line.
            ("data: a\n\ndata: b\n", vec![event("message", "a", None)]),
            ("data: a\n\ndata: b", vec![event("message", "a", None)]),
            ("", vec![]),
        ] {
            assert_eq!(decoded(text), expected, "{text:?}");
        }
        let invalid = Events::new(&b"data: \xff\n\n"[..]).next().unwrap().unwrap();
        assert_eq!(invalid.data, "\u{fffd}");
    }

    #[test]
    fn endless_event_is_an_error() {
        let endless = io::BufReader::new(io::repeat(b'x'));
        assert!(Events::new(endless).next().unwrap_err().to_string().contains("larger than"));
    }
}
