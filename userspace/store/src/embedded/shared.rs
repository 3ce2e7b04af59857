//! State shared by the gRPC services: the store's state for reads, and the queue of the writer for
//! changes.

use super::Listening;
use super::directory::Directory;
use super::disk::Identity;
use super::state::State;
use super::writer::{Command, Reply};
use etcd_client::proto::PbResponseHeader;
use std::sync::mpsc::Sender;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tonic::Status;

#[derive(Clone)]
pub(super) struct Shared {
    pub(super) state: Arc<RwLock<State>>,
    pub(super) commands: Sender<Command>,
    /// The last durable revision; changes after every commit.
    pub(super) durable: watch::Receiver<i64>,
    pub(super) identity: Identity,
    pub(super) listening: Listening,
    pub(super) directory: Arc<dyn Directory>,
    /// Ends every stream, so that the server can shut down.
    pub(super) stop: CancellationToken,
}

impl Shared {
    /// Reads the state. Must be short: the writer waits meanwhile.
    pub(super) fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the state without the disk, for renewals of leases.
    pub(super) fn with_mut<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends a command to the writer and waits until its answer is durable.
    pub(super) async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Status> {
        let stopped = || Status::unavailable("embedded store: stopped");
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    pub(super) fn header(&self, revision: i64) -> Option<PbResponseHeader> {
        let Identity { cluster, member } = self.identity;
        Some(PbResponseHeader { cluster_id: cluster, member_id: member, revision, raft_term: 1 })
    }

    /// Completes a header that has its revision already.
    pub(super) fn complete(&self, header: Option<&PbResponseHeader>) -> Option<PbResponseHeader> {
        self.header(header.map_or(0, |h| h.revision))
    }

    pub(super) fn header_now(&self) -> Option<PbResponseHeader> {
        self.header(self.read(|state| state.durable))
    }
}
