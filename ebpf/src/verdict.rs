//! Verdicts of the stages.

use contiv_abi::{DropReason, FdbEntry, maps::Stage};

/// What happens to a frame after the stages.
#[must_use]
pub(crate) enum Verdict {
    /// Drop the frame, and count it.
    Drop(DropReason),
    /// All copies of the frame have been sent.
    Delivered,
    /// Deliver to the pod with this group and this interface index of the host end.
    Pod { ifindex: u32, group: u32 },
    /// Queue the frame, which is from a pod with a rate limit, in its class before this interface. `ctv_from_queue` continues
    /// with it as a frame of this port.
    Wait { queue: u32, priority: u32, port: u32 },
    /// Continue in another program.
    Continue(Stage),
    /// Send by the interface with this index.
    Out(u32),
    /// Send the frame, which was overwritten with a refusal, by the interface with this index; count the drop.
    Back(u32, DropReason),
}

impl Verdict {
    /// Delivery to a pod on this node.
    pub(crate) fn to_pod(place: &FdbEntry) -> Verdict {
        Verdict::Pod { ifindex: place.ifindex, group: place.group }
    }
}

impl From<DropReason> for Verdict {
    fn from(reason: DropReason) -> Self {
        Verdict::Drop(reason)
    }
}
