//! Flow cookies.

use ring::digest::{SHA256, digest};

use crate::datapath::ObjectId;

/// Cookie of the flows of one object: 0xc in bits 60 to 63, the kind of the object in bits 56 to 59, and the first 56
/// bits of the SHA-256 of its id. Tenants choose names: with a hash that is easily inverted, a tenant could give an
/// object the cookie of another tenant's object and replace its flows. The cookie does not depend on the process or the
/// version, so that a restarted agent recognises its flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Cookie(pub(crate) u64);

const PREFIX: u64 = 0xc0;
/// Object kind of groups.
const GROUP: u64 = 5;
/// Number of bytes of the hash.
const HASH: usize = 7;

impl Cookie {
    /// Cookie of the base flows, which exist for any desired state.
    pub(crate) const BASE: Cookie = Cookie(PREFIX << 56);
    /// Cookie of the flow that drops all incoming frames while the datapath takes over from another one.
    pub(crate) const HOLD: Cookie = Cookie(PREFIX << 56 | 1);

    /// Reports whether an agent, and not another program, has set the flow.
    pub(crate) fn is_own(self) -> bool {
        self.0 >> 60 == Cookie::BASE.0 >> 60
    }

    /// Reports whether the flow belongs to a [`Group`](crate::datapath::Group).
    pub(crate) fn is_of_group(self) -> bool {
        self.0 >> 56 == PREFIX | GROUP
    }

    pub(crate) fn of(id: &ObjectId) -> Cookie {
        let (kind, text) = match id {
            ObjectId::Peer(vtep) => (1, vtep.to_string()),
            ObjectId::Network(id) => (2, id.to_string()),
            ObjectId::Remote(id) => (3, id.to_string()),
            ObjectId::Local(id) => (4, id.to_string()),
            ObjectId::Group(identity) => (GROUP, identity.to_string()),
            ObjectId::Service(id) => (6, id.to_string()),
            ObjectId::Subnet(id) => (7, id.to_string()),
            ObjectId::Route(id) => (8, id.to_string()),
        };
        let digest = digest(&SHA256, text.as_bytes());
        let hash = digest.as_ref().iter().take(HASH).fold(0, |hash, byte| hash << 8 | u64::from(*byte));
        Cookie((PREFIX | kind) << 56 | hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses the example of FIPS 180-2, appendix B.1.
    #[test]
    fn cookies_have_the_hash_of_the_id() {
        let cookie = Cookie::of(&ObjectId::Local("abc".into()));
        assert_eq!(cookie, Cookie(0xc4ba_7816_bf8f_01cf));
        assert!(cookie.is_own() && !cookie.is_of_group());
        assert_ne!(cookie, Cookie::of(&ObjectId::Remote("abc".into())));
    }
}
