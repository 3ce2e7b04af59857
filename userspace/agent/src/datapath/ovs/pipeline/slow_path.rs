//! Packets about which ovs-vswitchd decides one by one.
//!
//! With the kernel datapath, what it decides about a packet is in force for all packets that are alike to the kernel. The kernel reads
//! some messages otherwise: it takes what follows one of neighbour discovery in its frame for options of it, and reads nothing of one that
//! has an option twice; and it reads the type of ICMP for IPv4 also where the IP header says that there is none.

use openflow_rs::{Action, Ct, Field};

/// What ovs-vswitchd reads as the type and the code of ICMP for IPv4 without one: those of an echo reply.
pub(super) const ECHO_REPLY: (u8, u8) = (0, 0);
/// A code that no message has which is left to ovs-vswitchd.
const OTHER_CODE: u8 = 1;

/// Leaves messages to ovs-vswitchd, which does so with all packets whose actions the kernel has not: it cannot change the code of a
/// message. The change is made for connection tracking, which looks at a copy that goes nowhere, and records nothing.
pub(super) fn take(code: Field) -> Action {
    Action::Clone(vec![Action::set(code, OTHER_CODE), Action::Ct(Ct::default())])
}
