//! One HTTP POST on a unix socket.
//!
//! Implemented here because it is short: HTTP clients for unix sockets depend on an async runtime
//! or a TLS stack. HTTP/1.0, so that the answer ends with the connection.

use std::{
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use crate::wire;

const LONGEST_ANSWER: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("connect to the agent at {}", path.display())]
    Connect { path: PathBuf, source: io::Error },
    #[error("exchange with the agent at {}", path.display())]
    Exchange { path: PathBuf, source: io::Error },
    #[error("the agent at {} did not answer within {limit:?}", path.display())]
    Timeout { path: PathBuf, limit: Duration },
    #[error("the agent at {} did not answer with HTTP: {start:?}", path.display())]
    Answer { path: PathBuf, start: String },
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Returns within `limit`. Connecting to a full backlog blocks without limit, which no socket
/// timeout covers; hence the thread.
pub(crate) fn post(
    socket: &Path,
    route: &'static str,
    body: Vec<u8>,
    limit: Duration,
) -> Result<Response, Error> {
    let (answer, answered) = mpsc::channel();
    let path = socket.to_owned();
    // Not joined: after a timeout the process ends.
    thread::spawn(move || answer.send(exchange(&path, route, &body)));
    answered.recv_timeout(limit).unwrap_or_else(|_| Err(Error::Timeout { path: socket.to_owned(), limit }))
}

fn exchange(path: &Path, route: &str, body: &[u8]) -> Result<Response, Error> {
    let mut stream =
        UnixStream::connect(path).map_err(|source| Error::Connect { path: path.to_owned(), source })?;
    let failed = |source| Error::Exchange { path: path.to_owned(), source };
    let head = format!(
        "POST {route} HTTP/1.0\r\nHost: contiv\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n",
        wire::CONTENT_TYPE,
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).map_err(failed)?;
    let mut answer = Vec::new();
    stream.take(LONGEST_ANSWER).read_to_end(&mut answer).map_err(failed)?;
    parse(&answer).ok_or_else(|| {
        let start = String::from_utf8_lossy(&answer[..answer.len().min(80)]).into_owned();
        Error::Answer { path: path.to_owned(), start }
    })
}

fn parse(answer: &[u8]) -> Option<Response> {
    const END: &[u8] = b"\r\n\r\n";
    let end = answer.windows(END.len()).position(|window| window == END)?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let mut words = head.lines().next()?.split(' ');
    if !words.next()?.starts_with("HTTP/1.") {
        return None;
    }
    Some(Response { status: words.next()?.parse().ok()?, body: answer[end + END.len()..].to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_parsed() {
        let answer =
            b"HTTP/1.0 500 Internal Server Error\r\ncontent-type: application/json\r\n\r\n{}\r\n\r\n";
        let expected = Response { status: 500, body: b"{}\r\n\r\n".to_vec() };
        assert_eq!(parse(answer), Some(expected));
        for bad in [&b""[..], b"HTTP/1.1 200 OK\r\n", b"SSH-2.0\r\n\r\n", b"HTTP/1.1 x\r\n\r\n"] {
            assert_eq!(parse(bad), None);
        }
    }
}
