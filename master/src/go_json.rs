//! JSON as Go's `encoding/json` reads and writes it. Clients of the original show its error texts.

mod decode;
mod encode;
mod scan;

pub use decode::decode;
pub use encode::encode;
pub use scan::{Json, parse};
