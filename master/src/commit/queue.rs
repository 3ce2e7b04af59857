//! Queue of plans that wait for the committer.

use tokio::sync::{mpsc, oneshot};

use crate::cache::StagedTxn;
use crate::problem::{Answer, Problem};

pub(super) const QUEUE_LENGTH: usize = 1024;

/// Stages changes and returns the body of the response. May be called again with another
/// transaction after a conflict.
pub type Plan = Box<dyn Fn(&mut StagedTxn<'_>) -> Answer + Send + Sync>;

pub(super) struct Job {
    pub(super) plan: Plan,
    /// Planned in a transaction of its own: the plan creates or deletes objects that other plans
    /// read.
    pub(super) exclusive: bool,
    pub(super) answer: Option<oneshot::Sender<Answer>>,
}

/// Sends plans to the committer.
#[derive(Clone)]
pub struct Queue(pub(super) mpsc::Sender<Job>);

impl Queue {
    /// Number of plans that wait for the committer.
    pub fn len(&self) -> usize {
        self.0.max_capacity() - self.0.capacity()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the committer takes no more plans.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Plans, commits and returns the response. `exclusive`: the plan creates or deletes networks
    /// or groups.
    pub async fn submit(&self, plan: Plan, exclusive: bool) -> Answer {
        let (answer, answered) = oneshot::channel();
        let job = Job { plan, exclusive, answer: Some(answer) };
        self.0.send(job).await.map_err(|_| Problem::deposed())?;
        // A job is lost only if the committer ends while its transaction is being written.
        let lost = |_| Problem::unknown_outcome("this netmaster stopped before the store responded");
        answered.await.map_err(lost)?
    }
}

pub(super) fn answer(jobs: Vec<Job>, answers: Vec<Answer>) {
    for (job, answer) in jobs.into_iter().zip(answers) {
        // The client may have disconnected; its change is committed all the same.
        let _disconnected = job.answer.map(|to| to.send(answer));
    }
}

pub(super) fn fail_all(jobs: Vec<Job>, problem: &Problem) {
    let answers = jobs.iter().map(|_| Err(problem.clone())).collect();
    answer(jobs, answers);
}
