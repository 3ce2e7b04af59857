//! Conditions of changes.

/// What must be true of the stored object for a change to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing; or netmaster does not tell versions apart, as the original does not.
    None,
    /// It does not exist.
    Absent,
    /// It has this entity tag.
    Unchanged(String),
}

impl Precondition {
    /// Name and value of the header that has the condition.
    pub(super) fn header(&self) -> Option<(&'static str, String)> {
        match self {
            Precondition::None => None,
            Precondition::Absent => Some(("If-None-Match", "*".into())),
            Precondition::Unchanged(tag) => Some(("If-Match", tag.clone())),
        }
    }
}
