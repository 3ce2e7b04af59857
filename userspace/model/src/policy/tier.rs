use super::Action;

/// Priority of a Contiv rule, 1 to 100; of the matching rules of a layer the highest decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// The highest priority of [`Layer::AfterNetworkPolicy`].
    const LAST_AFTER: u8 = 50;

    /// The number, 1 to 100.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A number that is not a valid priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("priority {0}: expected 1 to 100")]
pub struct InvalidPriority(u8);

impl TryFrom<u8> for Priority {
    type Error = InvalidPriority;

    fn try_from(number: u8) -> Result<Self, InvalidPriority> {
        if (1..=100).contains(&number) { Ok(Priority(number)) } else { Err(InvalidPriority(number)) }
    }
}

/// The kind of policy that a rule comes from, and its priority there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// A rule of a Contiv policy. At equal priority a rule that denies decides.
    Contiv(Priority),
    /// A rule of a Kubernetes NetworkPolicy, which allows, or [the isolation](super::Rule::isolation)
    /// of the endpoints that a policy selects. A rule that allows decides.
    NetworkPolicy,
}

/// A step of the evaluation. The first layer with a matching rule decides; without any, the
/// connection is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// Contiv rules of a priority above 50.
    BeforeNetworkPolicy,
    /// Kubernetes NetworkPolicies.
    NetworkPolicy,
    /// Contiv rules of priority 50 and below.
    AfterNetworkPolicy,
}

impl Tier {
    /// The layer in which the rule is evaluated.
    pub fn layer(self) -> Layer {
        match self {
            Tier::Contiv(priority) if priority.get() > Priority::LAST_AFTER => Layer::BeforeNetworkPolicy,
            Tier::Contiv(_) => Layer::AfterNetworkPolicy,
            Tier::NetworkPolicy => Layer::NetworkPolicy,
        }
    }

    /// Priority of a Contiv rule.
    pub fn priority(self) -> Option<Priority> {
        match self {
            Tier::Contiv(priority) => Some(priority),
            Tier::NetworkPolicy => None,
        }
    }

    /// The action that decides among the rules of one layer and priority.
    pub fn preferred_action(self) -> Action {
        match self {
            Tier::Contiv(_) => Action::Deny,
            Tier::NetworkPolicy => Action::Allow,
        }
    }
}

impl From<Priority> for Tier {
    fn from(priority: Priority) -> Self {
        Tier::Contiv(priority)
    }
}

impl TryFrom<u8> for Tier {
    type Error = InvalidPriority;

    /// A Contiv rule of this priority.
    fn try_from(priority: u8) -> Result<Self, InvalidPriority> {
        Priority::try_from(priority).map(Tier::Contiv)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_1_to_100() {
        assert_eq!(Priority::try_from(100).unwrap().get(), 100);
        assert_eq!(Priority::try_from(0).unwrap_err().to_string(), "priority 0: expected 1 to 100");
        assert!(Priority::try_from(101).is_err());
    }

    #[test]
    fn network_policies_are_between_the_halves_of_the_priorities() {
        let layer = |priority| Tier::try_from(priority).unwrap().layer();
        assert_eq!((layer(100), layer(51)), (Layer::BeforeNetworkPolicy, Layer::BeforeNetworkPolicy));
        assert_eq!((layer(50), layer(1)), (Layer::AfterNetworkPolicy, Layer::AfterNetworkPolicy));
        assert!(layer(51) < Tier::NetworkPolicy.layer() && Tier::NetworkPolicy.layer() < layer(50));
    }
}
