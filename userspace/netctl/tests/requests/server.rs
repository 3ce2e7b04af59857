//! An HTTP server that records requests and answers them with a function.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use serde_json::Value;

/// A request; `body` is null if there is none.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    /// Method and path, as in `GET /api/v1/tenants/`.
    pub(crate) line: String,
    /// What follows the question mark.
    pub(crate) query: String,
    /// Names are in lower case.
    headers: BTreeMap<String, String>,
    pub(crate) body: Value,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.query.split('&').any(|parameter| parameter == "watch=1")
    }

    pub(crate) fn is_change(&self) -> bool {
        !self.line.starts_with("GET ")
    }
}

/// Status, further headers, and body.
pub(crate) struct Reply {
    status: u16,
    headers: String,
    body: Body,
}

enum Body {
    Text(String),
    /// Server-sent events, until the sender is dropped.
    Events(Receiver<String>),
}

impl Reply {
    pub(crate) fn new(status: u16, headers: &str, text: impl Into<String>) -> Reply {
        Reply { status, headers: headers.to_owned(), body: Body::Text(text.into()) }
    }

    pub(crate) fn json(value: &Value) -> Reply {
        Reply::new(200, "", value.to_string())
    }

    pub(crate) fn refused(text: &str) -> Reply {
        Reply::new(500, "", text)
    }

    /// Closes the connection without an answer.
    pub(crate) fn lost() -> Reply {
        Reply::new(0, "", "")
    }

    /// A stream that the test writes to.
    pub(crate) fn events() -> (Sender<String>, Reply) {
        let (sender, events) = mpsc::channel();
        let headers = "Content-Type: text/event-stream\r\n".to_owned();
        (sender, Reply { status: 200, headers, body: Body::Events(events) })
    }

    /// A stream that ends after these events.
    pub(crate) fn stream(events: &[String]) -> Reply {
        let (sender, reply) = Reply::events();
        for event in events {
            sender.send(event.clone()).unwrap();
        }
        reply
    }

    pub(crate) fn with(mut self, name: &str, value: impl std::fmt::Display) -> Reply {
        self.headers += &format!("{name}: {value}\r\n");
        self
    }

    fn write(self, mut stream: &TcpStream) -> std::io::Result<()> {
        let Reply { status, headers, body } = self;
        let start = format!("HTTP/1.1 {status} x\r\n{headers}Connection: close\r\n");
        match body {
            Body::Text(text) => {
                stream.write_all(format!("{start}Content-Length: {}\r\n\r\n{text}", text.len()).as_bytes())
            }
            Body::Events(events) => {
                stream.write_all(format!("{start}Transfer-Encoding: chunked\r\n\r\n").as_bytes())?;
                for event in events {
                    stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes())?;
                }
                stream.write_all(b"0\r\n\r\n")
            }
        }
    }
}

/// Serves until the process ends.
pub(crate) struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub(crate) fn start(answer: impl FnMut(&Request) -> Reply + Send + 'static) -> Server {
        Server::at(([127, 0, 0, 1], 0).into(), answer)
    }

    pub(crate) fn at(
        address: SocketAddr,
        mut answer: impl FnMut(&Request) -> Reply + Send + 'static,
    ) -> Server {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(vec![]));
        let recorded = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let Some(request) = read(&stream) else { continue };
                recorded.lock().unwrap().push(request.clone());
                let reply = answer(&request);
                if reply.status == 0 {
                    continue;
                }
                // A stream does not keep other requests waiting. The client may be gone.
                thread::spawn(move || reply.write(&stream));
            }
        });
        Server { address, requests }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Requests since the last call.
    pub(crate) fn take(&self) -> Vec<Request> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let line = line.trim_end().strip_suffix(" HTTP/1.1")?;
    let (line, query) = line.split_once('?').unwrap_or((line, ""));
    let (line, query) = (line.to_owned(), query.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { line, query, headers, body: serde_json::from_slice(&body).unwrap_or(Value::Null) })
}
