//! Background tasks that run as long as their owner. One that ends is an error: what it keeps
//! current would no longer be current.

use std::collections::HashMap;

use tokio::task::{Id, JoinSet};

/// Tasks with their names. They are aborted when this is dropped.
#[derive(Default)]
pub(super) struct Tasks {
    set: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

/// A task that ended.
#[derive(Debug, thiserror::Error)]
#[error("task {name:?} ended: {why}")]
pub(super) struct TaskEnded {
    name: &'static str,
    why: String,
}

impl Tasks {
    pub(super) fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.names.insert(self.set.spawn(task).id(), name);
    }

    /// Resolves when a task ends or panics. Never resolves without tasks.
    pub(super) async fn ended(&mut self) -> TaskEnded {
        let (id, why) = match self.set.join_next_with_id().await {
            None => return std::future::pending().await,
            Some(Ok((id, ()))) => (id, "it returned".to_owned()),
            Some(Err(error)) => (error.id(), error.to_string()),
        };
        TaskEnded { name: self.names.get(&id).copied().unwrap_or_default(), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_returns_or_panics_is_reported() {
        let mut tasks = Tasks::default();
        tasks.spawn("endless", std::future::pending());
        tasks.spawn("done", async {});
        assert_eq!(tasks.ended().await.to_string(), "task \"done\" ended: it returned");
        tasks.spawn("broken", async { panic!("no more") });
        let ended = tasks.ended().await.to_string();
        assert!(ended.contains("\"broken\"") && ended.contains("panicked"), "{ended}");
    }
}
