use std::fmt;

use contiv_model::key::Key;
use contivk8s::{spec::Code, wire::Reply};

use super::link;
use crate::{error::one_line, master};

/// Step at which a request failed. The texts match those of the original Contiv (INVENTORY 6.1) if it has the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Validation of tenant, network, group and interface.
    Labels,
    /// Creation of the endpoint at netmaster.
    Create,
    /// Creation of the interface.
    Plug,
    /// Activation of the interface.
    Raise,
    /// Change of the datapath.
    Datapath,
    /// Write or deletion of the operational record.
    Record,
    /// Deletion of the interface.
    Unplug,
    /// Deletion of the endpoint at netmaster.
    Delete,
    /// Check of an attachment.
    Check,
    /// Check whether an ADD can succeed.
    Status,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Labels => "Error getting labels",
            Step::Create => "Error creating EP",
            Step::Plug => "Error moving to netns",
            Step::Raise => "Error setting interface attributes",
            Step::Datapath => "Error programming the datapath",
            Step::Record => "Error recording the EP",
            Step::Unplug => "Error removing the interface",
            Step::Delete => "Error deleting EP",
            Step::Check => "Error checking the EP",
            Step::Status => "not available",
        })
    }
}

/// A failed request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{step}: {why}")]
pub struct Failure {
    /// Failed step.
    pub step: Step,
    /// Cause, and the failures of the rollback or of other steps.
    pub why: String,
    /// CNI error code for the runtime.
    pub code: Code,
}

impl Failure {
    /// A failure at `step`.
    pub fn new(step: Step, why: impl Into<String>) -> Failure {
        Failure { step, why: why.into(), code: Code::Agent }
    }

    /// Sets the code that asks the runtime to retry.
    #[must_use]
    pub fn temporary(self) -> Failure {
        Failure { code: Code::TryAgain, ..self }
    }

    /// Sets the CNI error code.
    #[must_use]
    pub fn code(self, code: Code) -> Failure {
        Failure { code, ..self }
    }

    /// Returns a failure at `step` because a record in the store has never been valid in this process. The pod's parts
    /// are kept.
    pub fn unreadable(step: Step, key: &Key) -> Failure {
        let why = format!("{key} in the store is invalid; repair or delete it; see /inspect/driver");
        Failure::new(step, why).temporary()
    }

    /// A failure at `step` caused by a request to netmaster.
    pub fn master(step: Step, error: &master::Error) -> Failure {
        let failure = Failure::new(step, one_line(error));
        match error {
            master::Error::Unreachable { .. } | master::Error::Changed { .. } => failure.temporary(),
            _ => failure,
        }
    }

    /// A failure at `step` caused by an interface.
    pub fn link(step: Step, error: &link::Error) -> Failure {
        let failure = Failure::new(step, one_line(error));
        match error {
            link::Error::Namespace { .. } => failure.code(Code::InvalidEnvironment),
            link::Error::Interrupted => failure.temporary(),
            _ => failure,
        }
    }

    /// Appends the failures of the rollback.
    #[must_use]
    pub fn and_rollback(self, failures: &[String]) -> Failure {
        self.append("rollback", failures)
    }

    /// Appends the failures of the remaining steps, or of other deletions.
    #[must_use]
    pub fn and(self, others: &[String]) -> Failure {
        self.append("also", others)
    }

    fn append(mut self, what: &str, failures: &[String]) -> Failure {
        if !failures.is_empty() {
            self.why = format!("{}; {what}: {}", self.why, failures.join("; "));
        }
        self
    }

    /// Reply to the CNI plugin.
    pub fn reply(&self) -> Reply {
        Reply {
            result: 1,
            error: self.step.to_string(),
            reason: format!("Err: {}", self.why),
            code: self.code.number(),
            ..Reply::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_rollback_is_called_one() {
        let (failure, none) = (Failure::new(Step::Delete, "a"), &[][..]);
        let others = ["b".to_owned(), "c".to_owned()];
        assert_eq!(failure.clone().and(&others).to_string(), "Error deleting EP: a; also: b; c");
        assert_eq!(failure.clone().and_rollback(&others).to_string(), "Error deleting EP: a; rollback: b; c");
        assert_eq!(failure.clone().and(none).and_rollback(none), failure);
    }
}
