//! Atomic changes with bundles (ONF EXT-230).

use std::fmt;
use std::sync::atomic::Ordering;

use super::{Connection, Error, Replies};
use crate::bundle::{ATOMIC, BundleControl, BundleStep, ORDERED};
use crate::codec::Received;
use crate::flow::FlowMod;
use crate::group::GroupMod;
use crate::message::{Body, Message};
use crate::packed::PackedMod;

/// Bytes of a bundle that the switch gets while the next ones are encoded.
const PIECE: usize = 256 << 10;

/// A modification of the tables of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Flow modification.
    Flow(FlowMod),
    /// Modification of a packed flow.
    Packed(PackedMod),
    /// Group modification.
    Group(GroupMod),
}

impl From<FlowMod> for Change {
    fn from(change: FlowMod) -> Self {
        Change::Flow(change)
    }
}

impl From<PackedMod> for Change {
    fn from(change: PackedMod) -> Self {
        Change::Packed(change)
    }
}

impl From<GroupMod> for Change {
    fn from(change: GroupMod) -> Self {
        Change::Group(change)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Flow(change) => change.fmt(f),
            Change::Packed(change) => change.fmt(f),
            Change::Group(change) => change.fmt(f),
        }
    }
}

impl Change {
    fn body(&self) -> Body {
        match self {
            Change::Flow(change) => Body::FlowMod(change.clone()),
            Change::Packed(change) => Body::PackedMod(change.clone()),
            Change::Group(change) => Body::GroupMod(change.clone()),
        }
    }
}

impl Connection {
    /// Applies all changes atomically and in order, in one bundle.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Refused`] with the first rejected change, and [`Error::Encode`] with the first one that cannot be encoded; no
    /// change takes effect then: the switch discards the changes that it has got before. After [`Error::Timeout`],
    /// [`Error::Closed`] or [`Error::Unexpected`] the outcome is unknown.
    pub async fn apply_bundle(&self, changes: Vec<Change>) -> Result<(), Error> {
        let bundle = self.inner.bundle.fetch_add(1, Ordering::Relaxed);
        let flags = ATOMIC | ORDERED;
        let control = |step| Body::BundleControl(BundleControl { bundle, step, flags });
        // `send` copies the transaction id of the outer message to the inner one.
        let add = |change: &Change| Body::BundleAdd {
            bundle,
            flags,
            message: Box::new(Message::new(0, change.body())),
        };
        let messages = std::iter::once(control(BundleStep::OpenRequest)).chain(changes.iter().map(add));
        // An error about the barrier behind the changes counts as one about the last change.
        let name = |index: usize| {
            let change = changes.iter().take(index).next_back();
            change.map_or("open bundle".into(), ToString::to_string)
        };

        // The switch leaves rejected messages out of the bundle, so that the commit must wait for all replies.
        let first = match self.fill(changes.len() + 1, messages, name).await {
            Ok(first) => first,
            Err(error) => {
                // Closes the bundle. The caller needs the first error, not that of the discard.
                let _discarded = self.request(control(BundleStep::DiscardRequest), "discard bundle").await;
                return Err(error);
            }
        };
        self.commit(control(BundleStep::CommitRequest), first, name).await
    }

    /// Sends the `count` messages of a bundle. Returns the receiver of their replies: the commit reports failures there.
    async fn fill(
        &self,
        count: usize,
        bodies: impl Iterator<Item = Body>,
        name: impl Fn(usize) -> String,
    ) -> Result<(u32, Replies), Error> {
        let all = bodies.chain(std::iter::once(Body::BarrierRequest));
        let (first, mut replies) = self.send_pieces(count + 1, all, PIECE, &name)?;
        loop {
            let message = self.reply(&mut replies, "add messages to bundle").await?;
            let index = message.xid.wrapping_sub(first) as usize;
            match message.body {
                Body::Error(error) => return Err(self.refused(name(index), error)),
                Body::BarrierReply => return Ok((first, replies)),
                _ => {}
            }
        }
    }

    async fn commit(
        &self,
        commit: Body,
        (first, mut parts): (u32, Replies),
        name: impl Fn(usize) -> String,
    ) -> Result<(), Error> {
        let answer = self.request(commit, "commit bundle").await;
        // The error of the failed message precedes the error of the commit and is more specific.
        if let (Err(_), Some(Received { xid, message: Ok(Message { body: Body::Error(error), .. }), .. })) =
            (&answer, parts.try_next())
        {
            return Err(self.refused(name(xid.wrapping_sub(first) as usize), error));
        }
        match answer? {
            Body::BundleControl(BundleControl { step: BundleStep::CommitReply, .. }) => Ok(()),
            _ => Err(self.unexpected("commit bundle")),
        }
    }
}

/// Copies the transaction id to the message in a bundle, which must have that of the outer message.
pub(super) fn with_xid(xid: u32, body: Body) -> Body {
    match body {
        Body::BundleAdd { bundle, flags, mut message } => {
            message.xid = xid;
            Body::BundleAdd { bundle, flags, message }
        }
        other => other,
    }
}
