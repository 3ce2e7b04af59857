//! Test fixtures: network namespaces, real peers (etcd, Open vSwitch, BIRD), raw packets, and skips that CI checks.
//!
//! Every resource belongs to the process that creates it and has its pid in its name. It is removed when it is dropped,
//! also during a panic. If the process was killed, the next test process removes it.

mod authority;
mod bird;
pub mod capture;
mod clock;
mod disk;
pub mod etcd;
mod machine_lock;
pub mod ovs;
pub mod packet;
mod ping;
mod pinger;
pub mod pins;
mod process;
mod resource;
pub mod skip;
mod throughput;
mod wait;
mod windowed_pinger;
mod xdp;

pub use authority::{Authority, Certified, write_secret};
pub use bird::Bird;
pub use clock::{ClockJump, is_guest};
pub use disk::{Disk, Stall};
pub use machine_lock::{MachineLock, TIMES_VARIABLE, exclusive, shared};
pub use ping::Ping;
pub use pinger::Pinger;
pub use process::Process;
pub use resource::{
    bpf::BpfDir, interface::Interface, netns::Netns, port::free_port, scratch::copy_folder,
    scratch::scratch_dir, sweep::leftovers,
};
pub use throughput::{Load, throughput};
pub use wait::{patience, wait_until};
pub use windowed_pinger::WindowedPinger;
pub use xdp::xdp_context;
