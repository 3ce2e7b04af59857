use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;

use super::{Identity, IdentitySet};

/// The other end of a connection. If both are given, both must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// Identities of the peer; `None` for any peer, also without an identity. No peer matches the
    /// empty set.
    pub identities: Option<IdentitySet>,
    /// Blocks, one of which has the peer's address; `None` for any address. No peer matches the
    /// empty list.
    pub blocks: Option<Arc<[IpBlock]>>,
}

impl Peer {
    /// Any peer.
    pub fn any() -> Self {
        Peer::default()
    }

    /// A peer with this identity, and with an address in this prefix; `None` for any.
    pub fn new(identity: Option<Identity>, prefix: Option<IpNet>) -> Self {
        Peer {
            identities: identity.map(IdentitySet::from),
            blocks: prefix.map(|prefix| [IpBlock::from(prefix)].into()),
        }
    }

    /// A peer with this identity.
    pub fn identity(identity: Identity) -> Self {
        Peer::new(Some(identity), None)
    }

    /// A peer with an address in this prefix.
    pub fn prefix(prefix: IpNet) -> Self {
        Peer::new(None, Some(prefix))
    }

    /// Returns true if the peer's identity counts.
    pub fn names_identity(&self) -> bool {
        self.identities.as_ref().is_some_and(|set| !set.is_empty())
    }

    /// Returns true if it matters who the peer is.
    pub fn names_any(&self) -> bool {
        self.identities.is_some() || self.blocks.is_some()
    }

    /// Returns true if address and identity match.
    pub fn matches(&self, address: IpAddr, identity: Option<Identity>) -> bool {
        let identities = self.identities.as_ref();
        let blocks = self.blocks.as_ref();
        identities.is_none_or(|set| identity.is_some_and(|identity| set.contains(identity)))
            && blocks.is_none_or(|blocks| blocks.iter().any(|block| block.contains(address)))
    }
}

/// A prefix without some of its parts (`ipBlock` of a Kubernetes NetworkPolicy).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpBlock {
    prefix: IpNet,
    except: Vec<IpNet>,
}

impl IpBlock {
    /// The addresses of `prefix` that are in no prefix of `except`. Host bits are cleared.
    pub fn new(prefix: IpNet, except: impl IntoIterator<Item = IpNet>) -> Self {
        let mut except: Vec<IpNet> = except.into_iter().map(|net| net.trunc()).collect();
        except.sort_unstable();
        except.dedup();
        IpBlock { prefix: prefix.trunc(), except }
    }

    /// Returns true if the address is in the block.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.prefix.contains(&address) && !self.except.iter().any(|net| net.contains(&address))
    }

    /// The disjoint prefixes that make up the block, in order; empty if nothing is left of it.
    pub fn prefixes(&self) -> Vec<IpNet> {
        let mut prefixes = vec![];
        remaining(self.prefix, &self.except, &mut prefixes);
        prefixes
    }
}

impl From<IpNet> for IpBlock {
    fn from(prefix: IpNet) -> Self {
        IpBlock::new(prefix, [])
    }
}

/// Adds the parts of `prefix` that are not in `except`: halves the prefix until a part is in the
/// list or has nothing of the list in it.
fn remaining(prefix: IpNet, except: &[IpNet], prefixes: &mut Vec<IpNet>) {
    if except.iter().any(|net| net.contains(&prefix)) {
        return;
    }
    let inside: Vec<IpNet> = except.iter().copied().filter(|net| prefix.contains(net)).collect();
    if inside.is_empty() {
        prefixes.push(prefix);
        return;
    }
    // A prefix with another prefix in it is shorter than an address.
    for half in prefix.subnets(prefix.prefix_len() + 1).into_iter().flatten() {
        remaining(half, &inside, prefixes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn a_block_is_the_prefix_without_its_exceptions() {
        let block = |prefix, except: &[&str]| {
            let prefixes = IpBlock::new(net(prefix), except.iter().map(|text| net(text))).prefixes();
            prefixes.iter().map(IpNet::to_string).collect::<Vec<_>>()
        };
        assert_eq!(block("10.0.0.0/8", &[]), ["10.0.0.0/8"]);
        assert_eq!(block("10.0.0.7/30", &["10.0.0.5/32"]), ["10.0.0.4/32", "10.0.0.6/31"]);
        assert_eq!(block("10.0.0.0/8", &["192.0.2.0/24", "::/0"]), ["10.0.0.0/8"]);
        assert_eq!(block("10.0.0.0/8", &["0.0.0.0/0"]), [""; 0]);
        assert_eq!(block("10.0.0.0/31", &["10.0.0.0/32", "10.0.0.1/32"]), [""; 0]);
        assert_eq!(block("::/0", &["::/128"]).len(), 128);
    }

    #[test]
    fn both_conditions_of_a_peer_must_match() {
        let identity = |number: u32| Identity::try_from(number).unwrap();
        let (inside, outside): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 1, 1].into());
        let peer = Peer::new(Some(identity(1)), Some(net("10.0.0.0/24")));
        assert!(peer.matches(inside, Some(identity(1))));
        assert!(!peer.matches(outside, Some(identity(1))));
        assert!(!peer.matches(inside, Some(identity(2))) && !peer.matches(inside, None));
        assert!(Peer::any().matches(inside, None));
        let none = Peer { identities: Some([].into_iter().collect()), ..Peer::any() };
        assert!(!none.matches(inside, None) && !none.matches(inside, Some(identity(1))));
        let nowhere = Peer { blocks: Some([].into()), ..Peer::any() };
        assert!(!nowhere.matches(inside, None));
        let several = Peer {
            identities: Some([1, 3].map(identity).into_iter().collect()),
            blocks: Some(
                [IpBlock::from(net("fd00::/8")), IpBlock::new(net("10.0.0.0/8"), [net("10.0.1.0/24")])]
                    .into(),
            ),
        };
        assert!(several.matches(inside, Some(identity(3))) && !several.matches(outside, Some(identity(3))));
    }

    fn any_net() -> impl Strategy<Value = IpNet> {
        (0..16u8, 26..=32u8)
            .prop_map(|(host, length)| IpNet::new(IpAddr::from([10, 0, 0, host]), length).unwrap())
    }

    proptest! {
        #[test]
        fn the_prefixes_of_a_block_have_its_addresses_once(
            prefix in any_net(),
            except in prop::collection::vec(any_net(), 0..4),
        ) {
            let block = IpBlock::new(prefix, except);
            let prefixes = block.prefixes();
            for host in 0..=255u8 {
                let address = IpAddr::from([10, 0, 0, host]);
                let found = prefixes.iter().filter(|net| net.contains(&address)).count();
                prop_assert_eq!(found, usize::from(block.contains(address)), "{}", address);
            }
        }
    }
}
