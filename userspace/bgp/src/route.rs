use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use ipnet::IpNet;

/// ORIGIN of a path; lower is preferred (RFC 4271 section 9.1.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Interior to the originating AS.
    Igp,
    /// Learnt by EGP.
    Egp,
    /// Learnt by other means.
    Incomplete,
}

/// Path attributes that route selection uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// ORIGIN.
    pub origin: Origin,
    /// AS numbers of AS_PATH, nearest first.
    pub as_path: Vec<u32>,
    /// Length of AS_PATH as route selection counts it: an AS_SET counts as one.
    pub as_path_length: usize,
    /// MULTI_EXIT_DISC.
    pub med: Option<u32>,
    /// LOCAL_PREF, which only internal neighbors send.
    pub local_pref: Option<u32>,
}

/// A learnt route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Next hop.
    pub next_hop: IpAddr,
    /// Attributes; routes of one UPDATE share them.
    pub attributes: Arc<Attributes>,
    /// Whether the route is only kept while the neighbor restarts (RFC 4724 section 4.2).
    pub stale: bool,
}

/// Routes learnt from the neighbor that are the best of their prefixes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Learnt {
    /// Routes by prefix.
    pub routes: Arc<BTreeMap<IpNet, Route>>,
    /// Whether the neighbor has sent all of its routes since the speaker started, or the time for this has passed. Until then,
    /// routes that an earlier run has installed must stay (RFC 4724 section 4.1). Always true without such routes.
    pub complete: bool,
}
