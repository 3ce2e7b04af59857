//! Creates endpoints at netmaster.

use contiv_model::endpoint::{Endpoint, State};

use super::{
    failure::{Failure, Step},
    pod::Pod,
    pods::Pods,
    undo::{Rollback, RollbackStep},
};
use crate::{
    datapath::Owner,
    fail_point::reach,
    master::{self, NewEndpoint},
};

impl Pods {
    /// Records the endpoint of a pod, and creates it at netmaster.
    pub(super) async fn create_at_master(
        &self,
        pod: &Pod,
        rollback: &mut Rollback,
    ) -> Result<(State, Endpoint), Failure> {
        let parts = self.parts();
        let new = self.new_endpoint(pod);
        let preliminary = match pod.owner {
            Owner::Pod => self.begin_record(pod, rollback).await?,
            // The node joins its networks again after a restart.
            Owner::Node => None,
        };
        reach("preliminary record");
        // Set if an attempt got no answer: netmaster may execute it regardless of its answer to a later attempt.
        let mut is_unanswered = false;
        let created = parts.master.create_endpoint(&new, &mut is_unanswered).await;
        let mut state = created
            .map_err(|error| creation_failure(pod, &error, is_unanswered, preliminary.clone(), rollback))?;
        if state.homing_host != parts.node.host.as_str() {
            rollback.extend(preliminary);
            let why = format!("endpoint {} already exists on node {}", state.id, state.homing_host);
            return Err(Failure::new(Step::Create, why));
        }
        // netmaster returns an existing endpoint regardless of its group. It may be that of an attempt that could not be
        // rolled back, or of a pod from before a reboot. It has no interface.
        if pod.owner == Owner::Pod && state.service_name != new.group {
            let (endpoint, group, earlier) = (&state.id, &new.group, &state.service_name);
            tracing::warn!(
                endpoint,
                group,
                earlier,
                "the endpoint exists in another group; creating it again"
            );
            self.delete_at_master(pod).await.inspect_err(|_| rollback.set_unanswered())?;
            // A record that existed belongs to the deleted endpoint.
            let record = preliminary.unwrap_or_else(|| RollbackStep::Record(pod.endpoint_id()));
            let created = parts.master.create_endpoint(&new, &mut is_unanswered).await;
            state = created
                .map_err(|error| creation_failure(pod, &error, is_unanswered, Some(record), rollback))?;
            // netmaster may have executed the request of that attempt in between.
            if state.homing_host != parts.node.host.as_str() || state.service_name != new.group {
                rollback.set_unanswered();
                let why = format!("endpoint {} was created by another request meanwhile", state.id);
                return Err(Failure::new(Step::Create, why).temporary());
            }
        }
        if is_unanswered && pod.owner == Owner::Pod {
            self.remember_unanswered(pod);
        }
        rollback.push(RollbackStep::Endpoint(pod.clone()));
        let endpoint = Endpoint::try_from(&state).map_err(|e| Failure::new(Step::Create, e.to_string()))?;
        Ok((state, endpoint))
    }

    fn new_endpoint(&self, pod: &Pod) -> NewEndpoint {
        NewEndpoint {
            tenant: pod.tenant.to_string(),
            network: pod.network.to_string(),
            group: pod.group.as_ref().map(ToString::to_string).unwrap_or_default(),
            endpoint: pod.endpoint.clone(),
            common_name: pod.common_name.clone(),
            host: self.parts().node.host.to_string(),
        }
    }
}

/// Returns the failure of a request to create the endpoint of a pod. If netmaster rejects the request, the record is
/// rolled back.
fn creation_failure(
    pod: &Pod,
    error: &master::Error,
    is_unanswered: bool,
    record: Option<RollbackStep>,
    rollback: &mut Rollback,
) -> Failure {
    match error.is_refusal() && !is_unanswered {
        true => rollback.extend(record),
        // The record remains, because the endpoint may exist.
        false => rollback.set_unanswered(),
    }
    match error.is_not_found() {
        true => pod.unknown_names(error),
        false => Failure::master(Step::Create, error),
    }
}
