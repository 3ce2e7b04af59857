//! Deletes endpoints that netmaster creates after their deletion.
//!
//! A request to create an endpoint that was not answered may still be queued in a connection or in a stalled netmaster.
//! If it is executed after the DEL, which found nothing to delete, nothing else would release the addresses.

use contivk8s::spec::Code;

use super::{
    del::entry_failure,
    failure::{Failure, Step},
    pod::Pod,
    pods::Pods,
};

impl Pods {
    /// Records that netmaster may still create the endpoint.
    pub(super) fn remember_unanswered(&self, pod: &Pod) {
        if let Err(error) = self.parts().journal.remember_unanswered(pod) {
            tracing::warn!("{}", entry_failure(error));
        }
    }

    /// Like [`remember_unanswered`](Self::remember_unanswered), before the entry of an unfinished ADD is replaced.
    pub(super) fn remember_if_unanswered(&self, pod: &Pod) {
        if self.parts().journal.may_be_unanswered(&pod.endpoint_id()) {
            self.remember_unanswered(pod);
        }
    }

    /// Checks the endpoints whose check is due, and deletes those that belong to no attachment. Ends early while the
    /// store or netmaster is unavailable.
    pub(super) async fn delete_created_late(&self) -> Result<(), Failure> {
        let journal = &self.parts().journal;
        for pod in journal.due_unanswered() {
            let id = pod.endpoint_id();
            match self.delete_if_created_late(&pod).await {
                Ok(()) => {}
                Err(failure) if failure.code == Code::TryAgain => return Err(failure),
                Err(failure) => {
                    tracing::warn!(endpoint = %id, "delete an endpoint that was created late: {failure}");
                }
            }
            journal.checked_unanswered(&id).map_err(entry_failure)?;
        }
        Ok(())
    }

    async fn delete_if_created_late(&self, pod: &Pod) -> Result<(), Failure> {
        let id = pod.endpoint_id();
        // A running request records its unanswered requests itself.
        let Some(_locks) = self.try_lock(pod) else { return Ok(()) };
        let parts = self.parts();
        let is_attached = parts.reader.with(|state| state.attachment(&id).is_some());
        if is_attached || parts.journal.contains(&id) {
            return Ok(());
        }
        self.check_store(Step::Delete)?;
        // The state has only the endpoints of the networks that the node needs.
        if self.stored_record(&id, Step::Delete).await?.is_some() {
            tracing::warn!(endpoint = %id, "netmaster has created an endpoint after its deletion");
            self.release(pod, false).await?;
        }
        Ok(())
    }
}
