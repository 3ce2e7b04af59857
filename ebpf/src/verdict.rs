//! What a stage decides.

use contiv_abi::{DropReason, FdbEntry, maps::Stage};

/// The end of a frame's way through the stages.
#[must_use]
pub(crate) enum Verdict {
    /// Goes no further; counted.
    Drop(DropReason),
    /// All its copies have been sent.
    Delivered,
    /// To the pod whose host end has this interface index, and which is in this group.
    Pod { ifindex: u32, group: u32 },
    /// From a pod with a rate: waits in its class in front of this interface. Comes back as of the port.
    Wait { queue: u32, priority: u32, port: u32 },
    /// Another program continues with it.
    Continue(Stage),
    /// Leaves by the interface with this index.
    Out(u32),
    /// Goes back, as a refusal, by the interface with this index; counted.
    Back(u32, DropReason),
}

impl Verdict {
    /// To a pod here.
    pub(crate) fn to_pod(place: &FdbEntry) -> Verdict {
        Verdict::Pod { ifindex: place.ifindex, group: place.group }
    }
}

impl From<DropReason> for Verdict {
    fn from(reason: DropReason) -> Self {
        Verdict::Drop(reason)
    }
}
