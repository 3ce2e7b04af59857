//! Encoding of response bodies.

use serde::Serialize;

use crate::problem::{Answer, Problem};

/// Encodes a response body. Like Go's encoder, it ends with a newline.
pub fn encode(value: &impl Serialize) -> Answer {
    let mut body =
        serde_json::to_vec(value).map_err(|e| Problem::unavailable(format!("encode the response: {e}")))?;
    body.push(b'\n');
    Ok(body)
}
