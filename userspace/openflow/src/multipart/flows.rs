//! Flows of a multipart reply (`OFPMP_FLOW`).

use crate::action::group_ids;
use crate::flow::{FlowStats, STATS_FIXED};
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

    /// The flows of other programs may use any field and any action. Whatever is in one of them, it must not hide the rest of the table.
    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Flows, DecodeError> {
        let mut found = Flows::default();
        while !r.is_empty() {
            let whole = r.sized(STATS_FIXED, "flow")?;
            match FlowStats::decode(whole) {
                Ok(flow) => found.known.push(flow),
                Err(_) => found.unknown.push(UnknownFlow::read(whole)?),
            }
        }
        Ok(found)
    }
}

/// A flow entry that this library does not decode, such as one with an unknown match field (`ofp_flow_stats`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFlow {
    table: u8,
    cookie: u64,
    /// The whole structure.
    bytes: Box<[u8]>,
}

impl UnknownFlow {
    fn read(whole: Reader<'_>) -> Result<UnknownFlow, DecodeError> {
        let mut r = whole;
        r.skip(2)?;
        let table = r.u8()?;
        // Age, priority, timeouts, flags, with their padding.
        r.skip(21)?;
        Ok(UnknownFlow { table, cookie: r.u64()?, bytes: whole.as_slice().into() })
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
