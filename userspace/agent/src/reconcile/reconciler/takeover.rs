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
    /// Not a single object is wrong, so a removal of the other datapath would not help.
    #[error("none of the {count} endpoints of this node can be set; first: {first}")]
    NoEndpoint {
        /// Number of endpoints.
        count: usize,
        /// Error of the first one.
        first: String,
    },
}

impl<D: Datapath> Reconciler<D> {
    /// Makes the datapath match the state beside another one that forwards, as far as that is possible. False if objects failed:
    /// they may need what the other datapath has.
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
            // What is left over goes when this datapath has taken over.
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

    /// Fails if there are endpoints, and all of them failed.
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

    /// Makes the datapath, which has taken over, have the objects that could not be set beside the other one, or not completely. Changes
    /// no others: the state may be older than the datapath. False if something failed.
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

    /// Lets the datapath forward, with the connections of the other one, which does not forward any more.
    pub async fn take_over(&mut self, connections: Vec<TrackedConnection>) {
        if let Err(error) = self.datapath.take_over(connections).await {
            tracing::warn!("connections to services may break: {}", one_line(&error));
        }
    }

    /// Lets nothing pass, if the datapath is still to take over and the other one is about to be removed.
    pub fn hold(&mut self) {
        if let Err(error) = self.datapath.hold() {
            tracing::warn!("frames of pods may pass the datapath for a moment: {}", one_line(&error));
        }
    }

    /// As [`take_over`](Self::take_over) with the next full resync: not everything has been built.
    pub fn inherit(&mut self, connections: Vec<TrackedConnection>) {
        self.datapath.inherit(connections);
    }

    /// Applies all that could not be built beside the other datapath.
    pub async fn complete(&mut self) {
        self.resync(DirtySet::default()).await;
    }
}
