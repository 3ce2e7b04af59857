//! An HTTP server that records requests and answers them with a function.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

use serde_json::Value;

/// A request; `body` is null if there is none.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    /// Method and path, as in `GET /api/v1/tenants/`.
    pub(crate) line: String,
    pub(crate) body: Value,
}

/// Status, further headers, and body. Status 0 closes the connection without an answer.
pub(crate) struct Reply(pub(crate) u16, pub(crate) &'static str, pub(crate) String);

impl Reply {
    pub(crate) fn json(value: &Value) -> Reply {
        Reply(200, "", value.to_string())
    }

    pub(crate) fn refused(text: &str) -> Reply {
        Reply(500, "", text.to_owned())
    }
}

/// Serves until the process ends.
pub(crate) struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub(crate) fn start(mut answer: impl FnMut(&Request) -> Reply + Send + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(vec![]));
        let recorded = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let Some(request) = read(&stream) else { continue };
                recorded.lock().unwrap().push(request.clone());
                let Reply(status, headers, body) = answer(&request);
                if status == 0 {
                    continue;
                }
                let head = format!(
                    "HTTP/1.1 {status} x\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                // The client may be gone.
                let _ = (&stream).write_all(format!("{head}{body}").as_bytes());
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
    let line = line.trim_end().strip_suffix(" HTTP/1.1")?.to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        if header.trim().is_empty() {
            break;
        }
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { line, body: serde_json::from_slice(&body).unwrap_or(Value::Null) })
}
