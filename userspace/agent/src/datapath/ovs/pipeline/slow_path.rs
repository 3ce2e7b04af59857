//! Packets that ovs-vswitchd processes one by one.
//!
//! With the kernel datapath, a decision of ovs-vswitchd applies to all packets with the same kernel flow key. The kernel
//! parses some messages differently. It treats bytes that follow a neighbour discovery message in the frame as options of
//! the message, and reads nothing from a message that has an option twice. It also reads an ICMP type for IPv4 if the IP
//! header leaves no room for one.

use openflow_rs::{Action, Ct, Field};

/// Type and code that ovs-vswitchd reads from an ICMP message for IPv4 without them: those of an echo reply.
pub(super) const ECHO_REPLY: (u8, u8) = (0, 0);
/// A code that none of these messages has.
const OTHER_CODE: u8 = 1;

/// Makes ovs-vswitchd process messages in user space. It does so with all packets whose actions the kernel does not
/// support, and the kernel cannot change the code of a message. The changed clone goes only to connection tracking, which
/// does not record it, and is then dropped.
pub(super) fn take(code: Field) -> Action {
    Action::Clone(vec![Action::set(code, OTHER_CODE), Action::Ct(Ct::default())])
}
