use contiv_model::name::EndpointId;

use super::{
    failure::{Failure, Step},
    link,
    pod::Pod,
    pods::Pods,
};
use crate::error::one_line;

/// Completed steps of an ADD, which a failure rolls back.
#[derive(Debug, Default)]
pub(super) struct Rollback {
    steps: Vec<RollbackStep>,
    unanswered: bool,
}

#[derive(Clone, Debug)]
pub(super) enum RollbackStep {
    /// Delete the record of an endpoint that netmaster did not create. Has the store revision of the write.
    PreliminaryRecord(EndpointId, i64),
    /// Delete the record of an endpoint that was deleted at netmaster.
    Record(EndpointId),
    /// Delete the endpoint at netmaster, then its record.
    Endpoint(Pod),
    /// Delete the interface.
    Interface(String),
    /// Remove the interface from the state and the datapath.
    Attachment(EndpointId),
}

impl Rollback {
    pub(super) fn push(&mut self, step: RollbackStep) {
        self.steps.push(step);
    }

    pub(super) fn extend(&mut self, steps: impl IntoIterator<Item = RollbackStep>) {
        self.steps.extend(steps);
    }

    /// Records that netmaster may have created the endpoint, or the store its record, without confirming it.
    pub(super) fn set_unanswered(&mut self) {
        self.unanswered = true;
    }

    pub(super) fn is_unanswered(&self) -> bool {
        self.unanswered
    }
}

impl Pods {
    /// Executes all steps in reverse order, even after a failure, and returns the failures.
    pub(super) async fn roll_back(&self, rollback: Rollback) -> Vec<String> {
        let mut failures = vec![];
        for step in rollback.steps.into_iter().rev() {
            if let Err(failure) = self.roll_back_step(step).await {
                failures.push(failure.to_string());
            }
        }
        failures
    }

    async fn roll_back_step(&self, step: RollbackStep) -> Result<(), Failure> {
        let parts = self.parts();
        match step {
            RollbackStep::PreliminaryRecord(id, revision) => {
                self.delete_preliminary_record(id, revision).await
            }
            RollbackStep::Record(id) => self.delete_record(&id).await,
            RollbackStep::Endpoint(pod) => {
                self.begin_deletion(&pod);
                // If netmaster is unavailable, both remain: after a power failure the record identifies the endpoint.
                self.delete_at_master(&pod).await?;
                self.delete_record(&pod.endpoint_id()).await
            }
            RollbackStep::Interface(port) => {
                parts.links.detach(&port).await.map(drop).map_err(interface_failure)
            }
            RollbackStep::Attachment(id) => self.detach(&id).await,
        }
    }
}

pub(super) fn interface_failure(error: link::Error) -> Failure {
    Failure::new(Step::Unplug, one_line(&error))
}
