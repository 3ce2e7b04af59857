//! JSON read as Go's `encoding/json` reads it, down to the words of its errors: clients of the original show them.

mod decode;
mod encode;
mod scan;

pub use decode::decode;
pub use encode::encode;
pub use scan::{Json, parse};
