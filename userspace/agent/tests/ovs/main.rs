//! The OVS datapath against a real Open vSwitch with the userspace datapath, and real pods.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod drift;
mod forwarding;
mod lifecycle;
mod neighbour;
mod node;
