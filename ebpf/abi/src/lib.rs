//! The ABI between the eBPF programs and the agent: map names, capacities, keys, values and drop
//! reasons.
//!
//! Every type is `#[repr(C)]` without padding, because the kernel hashes keys byte by byte: with
//! the feature `user` the derives of bytemuck refuse padding at compile time, and the sizes are
//! asserted on both sides. Addresses are byte arrays in network byte order, so that `bpftool map
//! dump` prints them as they are written. Integers are in host byte order unless their type is
//! [`Be16`] or [`Be32`].

#![no_std]
#![deny(missing_docs, clippy::missing_errors_doc)]

#[cfg(any(test, feature = "user"))]
extern crate std;

mod address;
mod domain;
mod drop_reason;
mod dsr;
mod event;
mod flow;
mod flow_collector;
mod flow_import;
mod flow_index;
mod flow_timeouts;
mod forward;
mod fragment;
pub mod maps;
mod order;
pub mod policy;
mod protocol;
pub mod rendezvous;
mod segment;
mod service;
mod skb;
mod stage_log;
pub mod tcp;
mod tuple;
mod words;

pub use address::{Address, Mac};
pub use domain::{Domain, DomainName};
pub use drop_reason::{DropCount, DropReason};
pub use dsr::{DsrEntry, DsrHook, DsrKey, DsrSet, DsrState};
pub use event::{Event, EventState, Watch};
pub use flow::{Flow, FlowEvent, FlowHalf, FlowHead, Verdict};
pub use flow_collector::{FlowCollector, bpf_timer};
pub use flow_import::{FlowBatch, FlowImport, ImportOperation, ImportResult};
pub use flow_index::{FlowBucket, FlowHash, FlowLock, FlowTableSize, entry, slot};
pub use flow_timeouts::{Timeouts, idle, is_evictable};
pub use forward::{
    FdbEntry, FdbKey, FloodKey, KERNEL_MAC, NeighEntry, NeighKey, Node, Phase, Port, PortSlot, ROUTER_MAC,
    RouteEntry, SegmentEntry, Subnet, Vtep,
};
pub use fragment::{FragmentKey, FragmentPorts};
pub use order::{Be16, Be32};
pub use protocol::{ICMP, ICMPV6, SCTP, TCP, UDP, dhcp_client};
pub use rendezvous::mix;
pub use segment::Segment;
pub use service::{
    AffinityBlock, Backend, Client, Member, RingBlock, ServiceCount, ServiceCountRows, ServiceEntry,
    ServiceKey, ServiceSlot, Vip, VipKey, service_mac,
};
pub use skb::SkbLayout;
pub use stage_log::{LogResult, LogStage, LoggedEndpoint, TRACED_COPIES, Traced, TracedCopy};
pub use tuple::Tuple;
pub use words::{clear, cleared};

/// Version of the ABI. It is part of the pin path: an agent with another version leaves these maps in place until its own are
/// filled, and then replaces their programs.
pub const ABI_VERSION: u32 = 11;

/// Implements what every type in a map needs, and fails to compile if the layout has changed.
macro_rules! map_types {
    ($($name:ty: $size:literal;)*) => {$(
        const _: () = assert!(size_of::<$name>() == $size && align_of::<$name>() <= 8);
        // SAFETY: repr(C), no padding (bytemuck's derive refuses it), every bit pattern is valid.
        #[cfg(feature = "user")]
        unsafe impl aya::Pod for $name {}
    )*};
}

map_types! {
    Segment: 8;
    Domain: 4;
    DomainName: 64;
    Address: 16;
    Port: 56;
    SegmentEntry: 20;
    FloodKey: 12;
    FdbKey: 16;
    FdbEntry: 24;
    NeighKey: 24;
    NeighEntry: 16;
    Subnet: 56;
    RouteEntry: 8;
    Node: 88;
    DropCount: 16;
    Flow: 192;
    FlowBucket: 64;
    FlowLock: 8;
    FlowCollector: 32;
    FlowImport: 216;
    FlowBatch: 55_304;
    FragmentKey: 48;
    FragmentPorts: 8;
    ServiceKey: 24;
    ServiceEntry: 88;
    ServiceSlot: 128;
    Member: 8;
    RingBlock: 64;
    Backend: 24;
    ServiceCount: 48;
    ServiceCountRows: 8;
    Client: 16;
    AffinityBlock: 64;
    VipKey: 24;
    Vip: 24;
    DsrEntry: 64;
    DsrSet: 256;
    policy::Group: 24;
    policy::RuleSet: 72;
    policy::Branch: 128;
    policy::Meter: 16;
    policy::MeterKey: 8;
    policy::RuleEntry: 8;
    policy::RuleCount: 16;
    Event: 112;
    Watch: 8;
    EventState: 128;
    LoggedEndpoint: 24;
    TracedCopy: 24;
    Traced: 1568;
}
