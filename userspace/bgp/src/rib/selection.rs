//! Route selection (RFC 4271 section 9.1.2.2).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
};

use ipnet::IpNet;

use crate::Attributes;

/// LOCAL_PREF of paths that have none.
const DEFAULT_LOCAL_PREF: u32 = 100;

/// Where a path comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The speaker originates the route.
    Local,
    /// A neighbor announced it.
    Neighbor {
        /// Whether the neighbor is in another AS.
        external: bool,
        /// BGP identifier of the neighbor.
        router_id: Ipv4Addr,
        /// Address of the neighbor.
        address: IpAddr,
    },
}

/// A candidate for a prefix.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    /// Where it comes from.
    pub source: Source,
    /// Attributes; not used for the speaker's own routes.
    pub attributes: &'a Attributes,
}

/// Index of the best of the paths to one prefix, `None` if there is none.
///
/// The order is: own routes, highest LOCAL_PREF, shortest AS_PATH, lowest ORIGIN, lowest MULTI_EXIT_DISC among the paths from one
/// AS, external before internal neighbors, lowest BGP identifier, lowest address. Interior cost is not compared, because next
/// hops are on the link of the router IP.
pub fn best(paths: &[Path<'_>]) -> Option<usize> {
    let mut left: Vec<usize> = (0..paths.len()).collect();
    retain_least(&mut left, |index| paths[index].source != Source::Local);
    retain_least(&mut left, |index| {
        Reverse(paths[index].attributes.local_pref.unwrap_or(DEFAULT_LOCAL_PREF))
    });
    retain_least(&mut left, |index| paths[index].attributes.as_path_length);
    retain_least(&mut left, |index| paths[index].attributes.origin);

    let first_as = |index: usize| paths[index].attributes.as_path.first().copied();
    let med = |index: usize| paths[index].attributes.med.unwrap_or(0);
    let mut least: BTreeMap<Option<u32>, u32> = BTreeMap::new();
    for index in &left {
        let least = least.entry(first_as(*index)).or_insert(u32::MAX);
        *least = med(*index).min(*least);
    }
    left.retain(|index| least.get(&first_as(*index)) == Some(&med(*index)));

    retain_least(&mut left, |index| !matches!(paths[index].source, Source::Neighbor { external: true, .. }));
    retain_least(&mut left, |index| match paths[index].source {
        Source::Local => None,
        Source::Neighbor { router_id, address, .. } => Some((router_id, address)),
    });
    left.first().copied()
}

fn retain_least<K: Ord>(left: &mut Vec<usize>, key: impl Fn(usize) -> K) {
    if let Some(least) = left.iter().map(|index| key(*index)).min() {
        left.retain(|index| key(*index) == least);
    }
}

/// Whether the neighbor's route is the best of its prefix.
pub(crate) fn is_selected(prefix: &IpNet, received: Path<'_>, originated: Option<&BTreeSet<IpNet>>) -> bool {
    // The only candidate, as nearly all of the neighbor's many routes.
    if originated.is_none_or(|own| !own.contains(prefix)) {
        return true;
    }
    let own = Path { source: Source::Local, attributes: received.attributes };
    best(&[received, own]) == Some(0)
}
