//! The eBPF datapath, frame by frame and with real traffic.
//!
//! `node` brings a node: a namespace, a BPF file system of its own, the datapath in it, and pods. `run`
//! gives single frames to the pinned programs through `BPF_PROG_TEST_RUN`: bytes in, verdict and bytes
//! out. What such a run cannot carry (a tunnel key, a tag beside the frame, where a redirect leads) is
//! tested with frames on links.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod campaign;
mod checksums;
mod equivalence;
mod flows;
mod from_overlay;
mod from_pod;
mod from_uplink;
mod fuzz;
mod malformed;
mod monitor;
mod node;
mod outside;
mod own;
mod policy;
mod rates;
mod restart;
mod run;
mod scale;
mod services;
mod shortcuts;
mod tallies;
mod traffic;
mod verifier;
