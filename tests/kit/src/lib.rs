//! Test fixtures: network namespaces, real peers (etcd, Open vSwitch), raw packets, and skips that CI checks.
//!
//! Every resource belongs to the process that creates it and has its pid in its name. It is removed when it is dropped,
//! also during a panic. If the process was killed, the next test process removes it.

mod authority;
mod bpf;
pub mod capture;
pub mod etcd;
mod machine_lock;
mod netns;
pub mod ovs;
pub mod packet;
mod ping;
mod port;
mod process;
mod scratch;
pub mod skip;
mod sweep;
mod throughput;
mod wait;

pub use authority::{Authority, Certified, write_secret};
pub use bpf::BpfDir;
pub use machine_lock::{MachineLock, TIMES_VARIABLE, exclusive, shared};
pub use netns::Netns;
pub use ping::{Ping, Pinger};
pub use port::free_port;
pub use process::Process;
pub use scratch::scratch_dir;
pub use sweep::leftovers;
pub use throughput::{Load, throughput};
pub use wait::wait_until;
