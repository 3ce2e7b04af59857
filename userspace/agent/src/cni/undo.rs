use contiv_model::name::EndpointId;

use super::{Failure, Pod, Pods, Step};
use crate::{error::one_line, link};

/// What an ADD has made so far.
#[derive(Debug, Default)]
pub(super) struct Made(Vec<Part>);

#[derive(Debug)]
pub(super) enum Part {
    /// At the master.
    Endpoint(Pod),
    /// On this node.
    Interface(String),
    /// In the state, and so in the datapath.
    Attachment(EndpointId),
    /// In the store.
    Record(EndpointId),
}

impl Made {
    pub(super) fn push(&mut self, part: Part) {
        self.0.push(part);
    }
}

impl Pods {
    /// Undoes everything, last first, whatever fails on the way; what failed.
    pub(super) async fn undo(&self, made: Made) -> Vec<String> {
        let mut failures = vec![];
        for part in made.0.into_iter().rev() {
            if let Err(failure) = self.undo_one(part).await {
                failures.push(failure.to_string());
            }
        }
        failures
    }

    async fn undo_one(&self, part: Part) -> Result<(), Failure> {
        let parts = self.parts();
        match part {
            Part::Endpoint(pod) => self.delete_at_master(&pod).await.map(drop),
            Part::Interface(port) => parts.links.detach(&port).await.map(drop).map_err(unplug),
            Part::Attachment(id) => self.detach(&id).await,
            Part::Record(id) => self.forget_oper(&id).await,
        }
    }
}

pub(super) fn unplug(error: link::Error) -> Failure {
    Failure::new(Step::Unplug, one_line(&error))
}
