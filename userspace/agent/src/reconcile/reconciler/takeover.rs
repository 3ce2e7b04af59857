//! Takeover from another datapath, before the loop runs.

use super::Reconciler;
use crate::{
    datapath::{Datapath, Desired, Error, Object, ObjectId, Op, TrackedConnection},
    error::one_line,
    plan,
    reconcile::diff::diff,
    state::DirtySet,
};

/// The datapath cannot replace the other one.
#[derive(Debug, thiserror::Error)]
pub enum StandByError {
    /// The datapath as a whole failed.
    #[error(transparent)]
    Datapath(#[from] Error),
    /// All endpoints failed. The cause is not a single invalid object, so removing the other datapath would not help.
    #[error("none of the {count} endpoints of this node can be set; first: {first}")]
    NoEndpoint {
        /// Number of endpoints.
        count: usize,
        /// Error of the first one.
        first: String,
    },
}

impl<D: Datapath> Reconciler<D> {
    /// Applies the state to the datapath as far as possible while another datapath forwards. Returns false if objects
    /// failed: they may need resources of the other datapath.
    ///
    /// # Errors
    ///
    /// The datapath is not possible on this node. What was built is removed; a failure of the removal is logged.
    pub async fn stand_by(&mut self) -> Result<bool, StandByError> {
        self.datapath.stand_by();
        let plan = self.full_plan();
        let can_stand_by = |(_, object): &(&ObjectId, &Object)| self.datapath.can_stand_by(object);
        self.desired = plan.iter().filter(can_stand_by).map(|(_, object)| object.clone()).collect();
        let built = async {
            let observed = self.datapath.observe(&self.desired).await?;
            let mut ops = diff(&self.desired, &observed);
            // Orphans are removed after this datapath has taken over.
            ops.retain(|op| *op != Op::GarbageCollect);
            self.apply(&ops).await
        };
        let built = built.await.map_err(StandByError::from);
        match built.and_then(|()| self.check_endpoints()) {
            Ok(()) => Ok(self.retries.counts().failed.is_empty()),
            Err(error) => {
                if let Err(error) = self.datapath.cleanup().await {
                    tracing::warn!("remove what was built beside the other datapath: {}", one_line(&error));
                }
                Err(error)
            }
        }
    }

    /// Fails if there are endpoints and all of them failed.
    fn check_endpoints(&self) -> Result<(), StandByError> {
        let ids = self.desired.iter().map(|(id, _)| id).filter(|id| matches!(id, ObjectId::Local(_)));
        let errors: Option<Vec<&str>> =
            ids.map(|id| self.retries.error(id).filter(|_| self.retries.is_retried(id))).collect();
        let Some(errors) = errors else { return Ok(()) };
        match errors.first() {
            Some(first) => Err(StandByError::NoEndpoint { count: errors.len(), first: (*first).to_owned() }),
            None => Ok(()),
        }
    }

    /// Sets the objects that could not be set, or not completely, before the takeover. Does not change other objects,
    /// because the state may be older than the datapath. Returns false if an object failed.
    pub async fn complete_takeover(&mut self) -> bool {
        self.datapath.retain_orphans(true);
        self.desired = self.full_plan();
        let completed = async {
            let observed = self.datapath.observe(&self.desired).await?;
            let mut ops = diff(&self.desired, &observed);
            ops.retain(|op| matches!(op, Op::Set(object) if self.datapath.is_completed_by_takeover(object)));
            self.apply(&ops).await
        };
        match completed.await {
            Ok(()) => self.retries.counts().failed.is_empty(),
            Err(error) => {
                tracing::warn!("the datapath cannot be completed: {}", one_line(&error));
                false
            }
        }
    }

    /// Computes the plan from scratch.
    fn full_plan(&mut self) -> Desired {
        let (plan, blocked) = self
            .reader
            .with(|state| (plan::full(state, &self.node), plan::blocked_groups(state, &self.node)));
        self.blocked = blocked;
        plan
    }

    /// Starts forwarding in the datapath, with the connections of the other one, which has stopped.
    pub async fn take_over(&mut self, connections: Vec<TrackedConnection>) {
        if let Err(error) = self.datapath.take_over(connections).await {
            tracing::warn!("connections to services may break: {}", one_line(&error));
        }
    }

    /// Drops all frames if the datapath has yet to take over and the other one is about to be removed.
    pub fn hold(&mut self) {
        if let Err(error) = self.datapath.hold() {
            tracing::warn!("frames of pods may pass the datapath for a moment: {}", one_line(&error));
        }
    }

    /// Passes the connections for the takeover with the next full resync, because not everything has been built.
    pub fn inherit(&mut self, connections: Vec<TrackedConnection>) {
        self.datapath.inherit(connections);
    }

    /// Applies everything that could not be built while the other datapath forwarded.
    pub async fn complete(&mut self) {
        self.resync(DirtySet::default()).await;
    }
}
