//! Flows of a multipart reply (`OFPMP_FLOW`).

use crate::action::group_ids;
use crate::flow::FlowStats;
use crate::wire::{DecodeError, Reader};

/// Flows of a multipart reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// Flows with counters.
    pub known: Vec<FlowStats>,
    /// Flows that this library does not decode.
    pub unknown: Vec<UnknownFlow>,
}

impl From<Vec<FlowStats>> for Flows {
    fn from(known: Vec<FlowStats>) -> Flows {
        Flows { known, unknown: vec![] }
    }
}

impl Flows {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        self.known.iter().for_each(|flow| flow.encode(out));
        self.unknown.iter().for_each(|flow| out.extend_from_slice(&flow.bytes));
    }

    /// The flows of other programs may use any field. They must not hide the rest of the table.
    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Flows, DecodeError> {
        let mut found = Flows::default();
        while !r.is_empty() {
            let mut start = *r;
            match FlowStats::decode(r) {
                Ok(flow) => found.known.push(flow),
                // The reader is at the next flow.
                Err(DecodeError::Field { .. } | DecodeError::Value { .. }) => {
                    let length = start.len() - r.len();
                    found.unknown.push(UnknownFlow::read(start.bytes(length)?)?);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

/// A flow entry with a match field or a value that this library does not know (`ofp_flow_stats`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFlow {
    table: u8,
    cookie: u64,
    /// The whole structure.
    bytes: Box<[u8]>,
}

impl UnknownFlow {
    fn read(bytes: &[u8]) -> Result<UnknownFlow, DecodeError> {
        let mut r = Reader::new(bytes, "flow");
        r.skip(2)?;
        let table = r.u8()?;
        // Age, priority, timeouts, flags, with their padding.
        r.skip(21)?;
        Ok(UnknownFlow { table, cookie: r.u64()?, bytes: bytes.into() })
    }

    /// Table number, 0 to 254.
    pub fn table(&self) -> u8 {
        self.table
    }

    /// Opaque value of the controller.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Ids of the groups that the flow may send packets to: those of its group actions, and perhaps others, because a value can
    /// look like such an action.
    pub fn used_groups(&self) -> Vec<u32> {
        group_ids(&self.bytes)
    }
}
