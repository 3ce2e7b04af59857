//! The BGP speaker of the process. It continues between runs of the agent.

use std::io;

use anyhow::anyhow;
use tokio::sync::watch;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::AbortOnDropHandle,
};

use crate::{
    bgp::{self, Followed, Report, SpeakerFile},
    config::Flags,
    state::Reader,
};

pub(super) struct Speaker {
    followed: watch::Sender<Option<Followed>>,
    sessions: watch::Receiver<Report>,
    halt: CancellationToken,
    task: AbortOnDropHandle<anyhow::Result<()>>,
}

impl Speaker {
    /// Starts the speaker, which waits for the first [`follow`](Self::follow). `ended` cancels its token if the speaker ends.
    pub(super) fn start(flags: &Flags, ended: DropGuard) -> io::Result<Speaker> {
        let file = SpeakerFile::beside(&flags.cni_socket);
        let (followed, receiver) = watch::channel(None);
        let (speaker, sessions) = bgp::Task::new(flags.node()?.host, file, receiver);
        let halt = CancellationToken::new();
        let halting = halt.clone();
        let task = tokio::spawn(async move {
            let _ended = ended;
            speaker.run(halting).await
        });
        Ok(Speaker { followed, sessions, halt, task: AbortOnDropHandle::new(task) })
    }

    /// Status of the session.
    pub(super) fn sessions(&self) -> watch::Receiver<Report> {
        self.sessions.clone()
    }

    /// Makes the speaker use the interfaces in this state from now on. If `is_settled`, it also uses the other objects
    /// when they are complete.
    pub(super) fn follow(&self, reader: &Reader, is_settled: bool) {
        self.followed.send_replace(Some(Followed { reader: reader.clone(), is_settled }));
    }

    /// Stops the speaker after the last run of the agent, which has ended with `ended`. The leaf keeps the routes during
    /// the graceful restart time.
    pub(super) async fn stop(self, ended: anyhow::Result<()>) -> anyhow::Result<()> {
        self.halt.cancel();
        let stopped = self.task.await.unwrap_or_else(|panic| Err(anyhow!("a task panicked: {panic}")));
        ended.and(stopped)
    }
}
