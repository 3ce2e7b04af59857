use std::{
    fmt,
    num::{NonZeroU32, TryFromIntError},
    sync::Arc,
};

use crate::group::GroupNumber;

/// What policies distinguish endpoints by: a group, or a set of Kubernetes labels in a namespace.
/// Unique in the cluster. The identity of a group is its number. 0 means no identity where a number
/// is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(NonZeroU32);

impl Identity {
    /// The number, never 0.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl TryFrom<u32> for Identity {
    type Error = TryFromIntError;

    fn try_from(number: u32) -> Result<Self, TryFromIntError> {
        NonZeroU32::try_from(number).map(Identity)
    }
}

impl From<GroupNumber> for Identity {
    fn from(number: GroupNumber) -> Self {
        Identity(number.non_zero())
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of identities; may be empty. Clones share it.
///
/// A sorted list: a bitmap would be as long as the largest identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdentitySet(Arc<[Identity]>);

impl IdentitySet {
    /// Returns true if `identity` is in the set.
    pub fn contains(&self, identity: Identity) -> bool {
        self.0.binary_search(&identity).is_ok()
    }

    /// The identities, lowest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Identity> + '_ {
        self.0.iter().copied()
    }

    /// Number of identities.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if the set has no identities.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Identity> for IdentitySet {
    fn from_iter<I: IntoIterator<Item = Identity>>(identities: I) -> Self {
        let mut identities: Vec<Identity> = identities.into_iter().collect();
        identities.sort_unstable();
        identities.dedup();
        IdentitySet(identities.into())
    }
}

impl From<Identity> for IdentitySet {
    fn from(identity: Identity) -> Self {
        IdentitySet([identity].into())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_identity_of_a_group_is_its_number() {
        let group = GroupNumber::try_from(7).unwrap();
        assert_eq!(Identity::from(group), Identity::try_from(7).unwrap());
        assert!(Identity::try_from(0).is_err());
    }

    proptest! {
        #[test]
        fn it_is_a_set(numbers in prop::collection::vec(1..20u32, 0..12), probe in 1..20u32) {
            let identity = |number: u32| Identity::try_from(number).unwrap();
            let set: IdentitySet = numbers.iter().copied().map(identity).collect();
            let model: BTreeSet<Identity> = numbers.iter().copied().map(identity).collect();
            prop_assert!(set.iter().eq(model.iter().copied()));
            prop_assert_eq!(set.contains(identity(probe)), model.contains(&identity(probe)));
            prop_assert_eq!((set.len(), set.is_empty()), (model.len(), model.is_empty()));
        }
    }
}
