//! JSON written as Go's encoder ends it.

use serde::Serialize;

use crate::problem::{Answer, Problem};

/// The body of an answer, ended by a newline as Go's encoder ends it.
pub fn encode(value: &impl Serialize) -> Answer {
    let mut body =
        serde_json::to_vec(value).map_err(|e| Problem::unavailable(format!("encode the answer: {e}")))?;
    body.push(b'\n');
    Ok(body)
}
