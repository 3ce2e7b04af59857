//! Changes that happen all at once or not at all.

use std::fmt;
use std::sync::atomic::Ordering;

use super::{Connection, Error, Replies};
use crate::bundle::{ATOMIC, BundleControl, BundleStep, ORDERED};
use crate::codec::Received;
use crate::flow::FlowMod;
use crate::group::GroupMod;
use crate::message::{Body, Message};

/// A change of a switch's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Flow(FlowMod),
    Group(GroupMod),
}

impl From<FlowMod> for Change {
    fn from(change: FlowMod) -> Self {
        Change::Flow(change)
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
            Change::Group(change) => change.fmt(f),
        }
    }
}

impl Change {
    fn body(&self) -> Body {
        match self {
            Change::Flow(change) => Body::FlowMod(change.clone()),
            Change::Group(change) => Body::GroupMod(change.clone()),
        }
    }
}

impl Connection {
    /// Makes all the changes, in order and at once, or none of them. The error names the first change
    /// that was refused.
    pub async fn apply_bundle(&self, changes: Vec<Change>) -> Result<(), Error> {
        let bundle = self.inner.bundle.fetch_add(1, Ordering::Relaxed);
        let flags = ATOMIC | ORDERED;
        let control = |step| Body::BundleControl(BundleControl { bundle, step, flags });
        // The inner message takes the xid of the outer one when it is sent.
        let add = |change: &Change| Body::BundleAdd {
            bundle,
            flags,
            message: Box::new(Message::new(0, change.body())),
        };
        let messages =
            std::iter::once(control(BundleStep::OpenRequest)).chain(changes.iter().map(add)).collect();
        let name =
            |index: usize| index.checked_sub(1).map_or("open a bundle".into(), |n| changes[n].to_string());

        // An add that is refused is left out of the bundle, so all must be known good before the commit.
        let first = match self.fill(messages, name).await {
            Ok(first) => first,
            Err(error) => {
                // The bundle must not stay open; what went wrong is what the caller needs to know.
                let _discarded = self.request(control(BundleStep::DiscardRequest), "discard a bundle").await;
                return Err(error);
            }
        };
        self.commit(control(BundleStep::CommitRequest), first, name).await
    }

    /// Sends the messages of a bundle; returns the waiter on their xids, under which the commit
    /// reports what failed.
    async fn fill(&self, bodies: Vec<Body>, name: impl Fn(usize) -> String) -> Result<(u32, Replies), Error> {
        let barrier = bodies.len();
        let all = bodies.into_iter().chain([Body::BarrierRequest]).collect::<Vec<_>>();
        let (first, mut replies) = self.send(all.into_iter(), "bundle")?;
        loop {
            let message = self.reply(&mut replies, "bundle").await?;
            let index = message.xid.wrapping_sub(first) as usize;
            match message.body {
                Body::Error(rejection) => return Err(self.refused(name(index.min(barrier - 1)), rejection)),
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
        let answer = self.request(commit, "commit a bundle").await;
        // The error of the message itself says more than "a message failed", and was sent before it.
        if let (Err(_), Some(Received { xid, message: Ok(Message { body: Body::Error(rejection), .. }) })) =
            (&answer, parts.try_next())
        {
            return Err(self.refused(name(xid.wrapping_sub(first) as usize), rejection));
        }
        match answer? {
            Body::BundleControl(BundleControl { step: BundleStep::CommitReply, .. }) => Ok(()),
            _ => Err(self.unexpected("commit a bundle")),
        }
    }
}

/// A message in a bundle must have the xid of the message that brings it.
pub(super) fn with_xid(xid: u32, body: Body) -> Body {
    match body {
        Body::BundleAdd { bundle, flags, mut message } => {
            message.xid = xid;
            Body::BundleAdd { bundle, flags, message }
        }
        other => other,
    }
}
