//! HTTP client that behaves like the original's clients: one request per connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// An error means that there was no response: the request may have been carried out.
pub(crate) fn call(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> std::io::Result<Answer> {
    exchange(&mut connect(to)?, to, method, path, headers, body)
}

pub(crate) fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, RESPONSE_TIMEOUT)?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    Ok(stream)
}

/// Like [`call`], on an open connection.
pub(crate) fn exchange(
    stream: &mut (impl Read + Write),
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> std::io::Result<Answer> {
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request += "\r\n";
    // In one piece: a refusal does not wait for the body, and closes the connection.
    request += body;
    stream.write_all(request.as_bytes())?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    Answer::parse(&String::from_utf8_lossy(&response))
        .ok_or_else(|| std::io::Error::other("connection closed early"))
}

impl Answer {
    pub(crate) fn parse(text: &str) -> Option<Answer> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers: Vec<(String, &str)> = lines
            .filter_map(|l| l.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value))
            .collect();
        let header = |name: &str| headers.iter().find(|(n, _)| n == name).map(|(_, value)| *value);
        let body = match (header("content-length"), header("transfer-encoding")) {
            (Some(length), _) if length.parse() != Ok(body.len()) => return None,
            (_, Some("chunked")) => unchunk(body)?,
            _ => body.to_owned(),
        };
        let content_type = header("content-type").unwrap_or_default().to_owned();
        let headers = headers.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
        Some(Answer { status, content_type, headers, body })
    }
}

fn unchunk(mut text: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (size, rest) = text.split_once("\r\n")?;
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body += rest.get(..size)?;
        text = rest.get(size + 2..)?;
    }
}

const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];

pub(crate) fn get(to: SocketAddr, path: &str) -> std::io::Result<Answer> {
    call(to, "GET", path, &[], "")
}

pub(crate) fn post(to: SocketAddr, path: &str, body: &Value) -> std::io::Result<Answer> {
    call(to, "POST", path, &JSON, &body.to_string())
}

pub(crate) fn delete(to: SocketAddr, path: &str) -> std::io::Result<Answer> {
    call(to, "DELETE", path, &[], "")
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Body of a successful response.
    pub(crate) fn good(self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// Error text of a failed response.
    pub(crate) fn bad(self) -> String {
        self.line(500)
    }

    /// Error text of a 503 response.
    pub(crate) fn unavailable(self) -> String {
        self.line(503)
    }

    fn line(self, status: u16) -> String {
        assert_eq!(
            (self.status, self.content_type.as_str()),
            (status, "text/plain; charset=utf-8"),
            "{self:?}"
        );
        let line = self.body.strip_suffix('\n').unwrap();
        assert!(!line.contains('\n'), "{line:?}");
        line.to_owned()
    }
}

pub(crate) fn make_network(to: SocketAddr, name: &str, subnet: &str) -> Value {
    let body = json!({"tenantName": "default", "networkName": name, "encap": "vlan", "subnet": subnet});
    post(to, &format!("/api/v1/networks/default:{name}/"), &body).unwrap().good()
}

pub(crate) fn create_endpoint(to: SocketAddr, network: &str, id: &str, ip: &str) -> std::io::Result<Answer> {
    let config = json!({"Container": id, "Host": "h1", "IPAddress": ip});
    let body = json!({"TenantName": "default", "NetworkName": network, "EndpointID": id, "ConfigEP": config});
    post(to, "/plugin/createEndpoint", &body)
}

pub(crate) fn delete_endpoint(to: SocketAddr, network: &str, id: &str) -> std::io::Result<Answer> {
    let body = json!({"TenantName": "default", "NetworkName": network, "EndpointID": id});
    post(to, "/plugin/deleteEndpoint", &body)
}

/// Address in the response to `createEndpoint`.
pub(crate) fn address(answer: Answer) -> String {
    answer.good()["EndpointConfig"]["ipAddress"].as_str().unwrap().to_owned()
}
