//! A node under test with its pods and its wire, shared by the conformance scenarios and the attacks.

pub(crate) mod harness;
pub(crate) mod topology;
mod wire;
pub(crate) mod world;
