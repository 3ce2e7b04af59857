//! Bundles: changes that a switch applies atomically.
//!
//! ONF extension EXT-230 to OpenFlow 1.3, the same as OpenFlow 1.4 section 7.3.9.

use bytes::BufMut;

use crate::wire::{DecodeError, Reader};

/// Flag: the switch applies all messages of the bundle or none (`ONF_BF_ATOMIC`).
pub const ATOMIC: u16 = 1;
/// Flag: the switch applies the messages in the order of their arrival (`ONF_BF_ORDERED`).
pub const ORDERED: u16 = 2;

/// Type of a bundle control message (`onf_bundle_ctrl_type`, 0 to 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BundleStep {
    /// Opens a bundle.
    OpenRequest,
    /// Confirms that the bundle is open.
    OpenReply,
    /// Ends the additions to a bundle.
    CloseRequest,
    /// Confirms that the bundle is closed.
    CloseReply,
    /// Applies the messages of a bundle.
    CommitRequest,
    /// Confirms that the messages are applied.
    CommitReply,
    /// Drops a bundle without applying it.
    DiscardRequest,
    /// Confirms that the bundle is dropped.
    DiscardReply,
}

const STEPS: [BundleStep; 8] = [
    BundleStep::OpenRequest,
    BundleStep::OpenReply,
    BundleStep::CloseRequest,
    BundleStep::CloseReply,
    BundleStep::CommitRequest,
    BundleStep::CommitReply,
    BundleStep::DiscardRequest,
    BundleStep::DiscardReply,
];

/// Bundle control message (`onf_bundle_ctrl_msg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleControl {
    /// Bundle id, chosen by the controller and unique on its connection.
    pub bundle: u32,
    /// Requested or confirmed operation.
    pub step: BundleStep,
    /// [`ATOMIC`] and [`ORDERED`]; the same in every message of the bundle.
    pub flags: u16,
}

impl BundleControl {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.bundle);
        out.put_u16(self.step as u16);
        out.put_u16(self.flags);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<BundleControl, DecodeError> {
        let bundle = r.u32()?;
        let step = r.u16()?;
        let step = *STEPS
            .get(usize::from(step))
            .ok_or(DecodeError::Value { what: "bundle control", value: step.into() })?;
        Ok(BundleControl { bundle, step, flags: r.u16()? })
    }
}
