//! Tests of the speaker: by events, by bytes, against itself in memory, and against BIRD.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod arbitrary;
mod bird;
mod bytes;
mod memory;
mod restart;
mod session;
