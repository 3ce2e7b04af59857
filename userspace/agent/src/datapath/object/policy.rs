use std::sync::Arc;

use contiv_model::{
    group::{Dscp, Rate},
    policy::{Action, Direction, Identity, Rule, Tier},
};

/// Settings for the endpoints of this node that have an identity, e.g. those of a group. An identity without settings, or
/// without endpoints on this node, has no object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Identity of the endpoints.
    pub identity: Identity,
    /// DSCP of the packets that the endpoints send, IPv4 and IPv6, also set in the outer header of a tunnel.
    pub dscp: Option<Dscp>,
    /// Bandwidth limit per endpoint, for each direction.
    pub rate: Option<Rate>,
    /// Input of [`contiv_model::policy::decide`]: `out` rules if these endpoints are the source, `in` rules if they
    /// are the destination. A change takes effect atomically: no packet is evaluated against a mix of the old and the
    /// new rules. Rules that differ only in their subnets share an id.
    pub rules: Arc<[Rule]>,
}

impl Group {
    /// Settings with rules only.
    pub fn new(identity: impl Into<Identity>, rules: impl Into<Arc<[Rule]>>) -> Self {
        Group { identity: identity.into(), dscp: None, rate: None, rules: rules.into() }
    }

    /// Returns the group with rules that deny everything, to be used while its own rules cannot be in effect.
    pub fn closed(&self) -> Self {
        let deny = |direction| Rule::new("closed", direction, Action::Deny, Tier::NetworkPolicy);
        Group { rules: [Direction::In, Direction::Out].map(deny).into(), ..self.clone() }
    }
}
