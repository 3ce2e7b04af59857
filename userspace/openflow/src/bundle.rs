//! Bundles: changes that happen all at once or not at all (ONF extension to OpenFlow 1.3).

use bytes::BufMut;

use crate::wire::{DecodeError, Reader};

/// All messages or none take effect.
pub const ATOMIC: u16 = 1;
/// The messages take effect in their order.
pub const ORDERED: u16 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BundleStep {
    OpenRequest,
    OpenReply,
    CloseRequest,
    CloseReply,
    CommitRequest,
    CommitReply,
    DiscardRequest,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleControl {
    pub bundle: u32,
    pub step: BundleStep,
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
