//! Length of the queue of an interface.
//!
//! `htb` takes the length of its queue from the interface when it is created. By default that is 1,000 packets: seconds at a
//! low rate.

use std::io;

use crate::{datapath::ovs::options::DatapathType, netdevice::Requests};

/// Packets.
pub(super) fn of(datapath_type: DatapathType) -> i32 {
    match datapath_type {
        // 48 KB of unsegmented packets.
        DatapathType::System => 32,
        // The userspace datapath sends to all ports through one socket. Queued packets occupy the socket's buffer, which holds
        // about 90: when it is full, frames to all pods are dropped.
        DatapathType::Netdev => 2,
    }
}

/// Sets the queue length of `interface`, in the network namespace of the calling thread.
pub(super) fn set(interface: &str, packets: i32) -> io::Result<()> {
    Requests::new(interface)?.set_queue_length(packets)
}
