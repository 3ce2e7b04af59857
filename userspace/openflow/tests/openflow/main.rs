//! Tests of the codec against itself, against `ovs-ofctl` and against a running switch.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod arbitrary;
mod every;
mod example;
mod golden;
mod notifications;
mod ofctl;
mod roundtrip;
mod slow;
mod switch;
mod unexpected;
