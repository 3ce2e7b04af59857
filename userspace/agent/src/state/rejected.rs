use serde::Serialize;

/// An object of the store that is not understood. The last good version stays in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rejected {
    /// Where it stands.
    pub key: String,
    /// What is wrong with it.
    pub why: String,
}
