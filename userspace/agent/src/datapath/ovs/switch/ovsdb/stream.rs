//! Framing of JSON-RPC: a stream of JSON objects without separators.

use std::sync::Arc;

use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
};

use super::{Calls, Incoming};

/// Finds the end of an object; reads each byte once.
#[derive(Default)]
struct Scanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Number of bytes already scanned.
    scanned: usize,
}

impl Scanner {
    /// Returns the length of the first complete object in `bytes`.
    fn object(&mut self, bytes: &[u8]) -> Option<usize> {
        for (at, byte) in bytes.iter().enumerate().skip(self.scanned) {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        *self = Scanner::default();
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
        }
        self.scanned = bytes.len();
        None
    }
}

pub(crate) async fn read(mut reader: impl AsyncRead + Unpin, incoming: Incoming) {
    let mut bytes = vec![];
    let mut scanner = Scanner::default();
    let why = loop {
        match reader.read_buf(&mut bytes).await {
            Ok(0) => break "closed by the server".to_owned(),
            Ok(_) => {}
            Err(error) => break error.to_string(),
        }
        let mut start = 0;
        while let Some(length) = scanner.object(&bytes[start..]) {
            match serde_json::from_slice::<Value>(&bytes[start..start + length]) {
                Ok(message) => incoming.handle(message),
                Err(error) => {
                    return incoming.calls.close(format!("invalid JSON from the server: {error}"));
                }
            }
            start += length;
        }
        bytes.drain(..start);
    };
    incoming.calls.close(why);
}

pub(crate) async fn write(
    mut writer: impl AsyncWrite + Unpin,
    mut queue: mpsc::UnboundedReceiver<Value>,
    calls: Arc<Calls>,
) {
    while let Some(message) = queue.recv().await {
        if let Err(error) = writer.write_all(message.to_string().as_bytes()).await {
            return calls.close(error.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_in_any_fragmentation() {
        let objects = [r#"{"a":[1,{"b":"}\"]{"}]}"#, "{}", r#"{"c":"\\"}"#];
        let all = objects.concat().into_bytes();
        for cut in 1..all.len() {
            let mut scanner = Scanner::default();
            let mut buffer = vec![];
            let mut found = vec![];
            for piece in all.chunks(cut) {
                buffer.extend_from_slice(piece);
                while let Some(length) = scanner.object(&buffer) {
                    found.push(String::from_utf8(buffer.drain(..length).collect()).unwrap());
                }
            }
            assert_eq!(found, objects);
        }
    }
}
