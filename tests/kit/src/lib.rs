//! What a test needs to bring its own host: network namespaces, real peers (etcd, Open vSwitch),
//! raw packets, and honest skips.
//!
//! Everything here belongs to the process that made it, carries its pid in its name, goes away when
//! dropped (also in a panic), and is swept by the next test process if its owner was killed.

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
