use std::fmt;

use contivk8s::{spec::Code, wire::Reply};

use crate::{error::one_line, link, master};

/// Where a request stopped. The words of the first five are the original's (INVENTORY 6.1), which operators know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Tenant, network, group or interface are not valid.
    Labels,
    /// The master made no endpoint.
    Create,
    /// The interface could not be made.
    Plug,
    /// The interface could not be brought up.
    Raise,
    /// The datapath did not forward.
    Datapath,
    /// The endpoint's record was not written or removed.
    Record,
    /// The interface could not be removed.
    Unplug,
    /// The master did not remove the endpoint.
    Delete,
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
        })
    }
}

/// A request that was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{step}: {why}")]
pub struct Failure {
    /// Where it stopped.
    pub step: Step,
    /// Why, and what else went wrong when it was undone.
    pub why: String,
    /// For the runtime.
    pub code: Code,
}

impl Failure {
    /// Stopped at `step`.
    pub fn new(step: Step, why: impl Into<String>) -> Failure {
        Failure { step, why: why.into(), code: Code::Agent }
    }

    /// It may work later.
    #[must_use]
    pub fn passing(self) -> Failure {
        Failure { code: Code::TryAgain, ..self }
    }

    /// With a code of the specification's.
    #[must_use]
    pub fn code(self, code: Code) -> Failure {
        Failure { code, ..self }
    }

    /// At `step`, because of the master.
    pub fn master(step: Step, error: &master::Error) -> Failure {
        let failure = Failure::new(step, one_line(error));
        match error {
            master::Error::Unreachable { .. } => failure.passing(),
            _ => failure,
        }
    }

    /// At `step`, because of an interface.
    pub fn link(step: Step, error: &link::Error) -> Failure {
        let failure = Failure::new(step, one_line(error));
        match error {
            link::Error::Namespace { .. } => failure.code(Code::InvalidEnvironment),
            _ => failure,
        }
    }

    /// With what went wrong when the rest was undone.
    #[must_use]
    pub fn and(mut self, more: &[String]) -> Failure {
        if !more.is_empty() {
            self.why = format!("{}; then, undoing it: {}", self.why, more.join("; "));
        }
        self
    }

    /// The answer.
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
