//! Whose a flow is.

use crate::datapath::ObjectId;

/// The mark of an object's flows: one byte of ours and of the object's kind, then a hash of its id. It is
/// the same in every run and every version, so a restarted agent knows its flows again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Cookie(pub(crate) u64);

const OURS: u64 = 0xc0;
const HASH: u64 = 0x00ff_ffff_ffff_ffff;

impl Cookie {
    /// Of the flows that are there whatever is desired.
    pub(crate) const SCAFFOLD: Cookie = Cookie(OURS << 56);

    pub(crate) fn of(id: &ObjectId) -> Cookie {
        let (kind, text) = match id {
            ObjectId::Peer(vtep) => (1, vtep.to_string()),
            ObjectId::Network(id) => (2, id.to_string()),
            ObjectId::Remote(id) => (3, id.to_string()),
            ObjectId::Local(id) => (4, id.to_string()),
            ObjectId::Group(number) => (5, number.to_string()),
            ObjectId::Service(id) => (6, id.to_string()),
        };
        Cookie((OURS | kind) << 56 | hash(&text) & HASH)
    }
}

/// FNV-1a: short, and fixed for ever, which the hashes of the standard library are not.
pub(crate) fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
