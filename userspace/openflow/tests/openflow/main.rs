//! Tests of the codec against itself, against `ovs-ofctl` and against a running switch.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod arbitrary;
mod ofctl;
mod roundtrip;
mod switch;
