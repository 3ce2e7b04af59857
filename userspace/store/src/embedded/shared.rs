//! What every service of the server holds: the state for reads, the way to the writer for the rest.

use super::disk::Identity;
use super::state::State;
use super::writer::{Command, Reply};
use etcd_client::proto::PbResponseHeader;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tonic::Status;

#[derive(Clone)]
pub(super) struct Shared {
    pub(super) state: Arc<RwLock<State>>,
    pub(super) commands: Sender<Command>,
    /// Moves after every commit.
    pub(super) durable: watch::Receiver<i64>,
    pub(super) identity: Identity,
    pub(super) address: SocketAddr,
    pub(super) dir: PathBuf,
    /// Ends every stream, so that the server can.
    pub(super) stop: CancellationToken,
}

impl Shared {
    /// Short: the writer waits meanwhile.
    pub(super) fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// For what needs no disk: renewing a lease.
    pub(super) fn with_mut<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks the writer and waits until what it answers is durable.
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

    /// A header that has its revision already, made complete.
    pub(super) fn complete(&self, header: Option<&PbResponseHeader>) -> Option<PbResponseHeader> {
        self.header(header.map_or(0, |h| h.revision))
    }

    pub(super) fn header_now(&self) -> Option<PbResponseHeader> {
        self.header(self.read(|state| state.durable))
    }
}
