//! Connection to a switch.

mod bundle;
mod error;
mod multipart;
mod notifications;
mod pending;
mod stream;
mod switch;
mod target;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use futures::StreamExt;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_util::codec::FramedRead;

pub use self::bundle::Change;
pub use self::error::Error;
use self::notifications::{Lost, Notifier};
pub use self::notifications::{LostNotifications, Notifications};
use self::pending::{PendingReplies, Replies};
use self::stream::{ECHO_QUEUE, check_hello, read, write};
pub use self::target::{Target, TargetError};
use crate::codec::{Codec, Received};
use crate::error_message::ErrorMessage;
use crate::message::{Body, Message};
use crate::switch::Hello;

/// Time in which the switch sends a reply, to this request or to an earlier one. Large tables and a busy machine take seconds, and
/// giving up costs a comparison of all flows.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// An open connection. Clones share it; it closes when the last clone is dropped.
///
/// All methods can be called concurrently. The switch processes requests in the order in which they are sent. A request fails
/// if the switch has sent no reply to it or to an earlier request for 30 seconds. The connection answers echo requests of the switch; it
/// closes if the switch sends them without reading the answers.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    target: Target,
    out: mpsc::UnboundedSender<Vec<u8>>,
    pending: Arc<PendingReplies>,
    lost: Arc<Lost>,
    /// Next bundle id.
    bundle: AtomicU32,
    tasks: [AbortHandle; 2],
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({})", self.inner.target)
    }
}

impl Connection {
    /// Connects to a switch and negotiates OpenFlow 1.3.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Connect`] if the socket cannot be connected within 30 seconds, [`Error::Version`] if the switch does
    /// not support OpenFlow 1.3, and [`Error::Timeout`] or [`Error::Closed`] if it sends no hello.
    pub async fn connect(target: &Target) -> Result<(Connection, Notifications), Error> {
        let opened = timeout(REPLY_TIMEOUT, target.open())
            .await
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        let (reader, writer) = opened.map_err(|source| Error::Connect { target: target.clone(), source })?;
        Connection::over(target.clone(), reader, writer).await
    }

    /// Negotiates OpenFlow 1.3 over streams that are already connected. `target` appears in error messages only.
    ///
    /// # Errors
    ///
    /// As [`Connection::connect`].
    pub async fn over(
        target: Target,
        reader: impl AsyncRead + Send + Unpin + 'static,
        mut writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(Connection, Notifications), Error> {
        let mut incoming = FramedRead::new(reader, Codec);
        let hello = Message::new(0, Body::Hello(Hello::openflow13()));
        let bytes = hello.to_bytes().map_err(|source| Error::Encode { request: "hello".into(), source })?;
        let lost = |source| Error::Connect { target: target.clone(), source };
        writer.write_all(&bytes).await.map_err(lost)?;
        match timeout(REPLY_TIMEOUT, incoming.next()).await {
            Err(_) => {
                let request = "hello".to_owned();
                return Err(Error::Timeout { target, request, after: REPLY_TIMEOUT });
            }
            Ok(None) => return Err(Error::Closed { target, why: "no hello received".into() }),
            Ok(Some(Err(source))) => return Err(Error::Connect { target, source }),
            Ok(Some(Ok(received))) => {
                check_hello(received).map_err(|why| Error::Version { target: target.clone(), why })?;
            }
        }
        let (out, queue) = mpsc::unbounded_channel();
        let (echoes, echo_queue) = mpsc::channel(ECHO_QUEUE);
        let (notifier, notifications, lost) = Notifier::new();
        let pending = Arc::new(PendingReplies::default());
        let tasks = [
            tokio::spawn(write(writer, queue, echo_queue, pending.clone())).abort_handle(),
            tokio::spawn(read(incoming, echoes, pending.clone(), notifier)).abort_handle(),
        ];
        let inner = Inner { target, out, pending, lost, bundle: AtomicU32::new(1), tasks };
        Ok((Connection { inner: Arc::new(inner) }, notifications))
    }

    /// Returns whether the connection is closed.
    pub fn is_closed(&self) -> bool {
        self.inner.pending.closed().is_some()
    }

    /// Waits until the connection is closed.
    pub async fn closed(&self) {
        self.inner.pending.wait_closed().await;
    }

    /// Returns the numbers of asynchronous messages that did not reach [`Notifications`] so far.
    pub fn lost_notifications(&self) -> LostNotifications {
        self.inner.lost.numbers()
    }

    fn closed_error(&self) -> Error {
        let why = self.inner.pending.closed().unwrap_or_else(|| "closed locally".into());
        Error::Closed { target: self.inner.target.clone(), why }
    }

    /// Sends messages with consecutive transaction ids. Returns the first id and the receiver of their replies. `what(index)` names a
    /// message in errors, after which none are sent.
    fn send(
        &self,
        bodies: impl ExactSizeIterator<Item = Body>,
        what: impl Fn(usize) -> String,
    ) -> Result<(u32, Replies), Error> {
        self.send_pieces(bodies.len(), bodies, usize::MAX, what)
    }

    /// As `send`, for `count` messages, but sends each time that there are `piece` bytes. After an error some of those before the message
    /// with the error are sent, and none behind it.
    fn send_pieces(
        &self,
        count: usize,
        bodies: impl Iterator<Item = Body>,
        piece: usize,
        what: impl Fn(usize) -> String,
    ) -> Result<(u32, Replies), Error> {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let (first, replies) = self.inner.pending.reserve(count).ok_or_else(|| self.closed_error())?;
        let mut bytes = vec![];
        for (index, (xid, body)) in (first..).zip(bodies).enumerate() {
            let message = Message::new(xid, bundle::with_xid(xid, body));
            let encoded = message.encode(&mut bytes);
            encoded.map_err(|source| Error::Encode { request: what(index), source })?;
            if bytes.len() >= piece {
                self.inner.out.send(std::mem::take(&mut bytes)).map_err(|_| self.closed_error())?;
            }
        }
        self.inner.out.send(bytes).map_err(|_| self.closed_error())?;
        Ok((first, replies))
    }

    /// Returns the next reply of `replies`.
    async fn reply(&self, replies: &mut Replies, what: &str) -> Result<Message, Error> {
        let target = || self.inner.target.clone();
        let mut progress = replies.progress();
        let next = loop {
            match timeout(REPLY_TIMEOUT, replies.next()).await {
                Err(_) if replies.progress() != progress => progress = replies.progress(),
                next => break next,
            }
        };
        match next {
            Err(_) => Err(Error::Timeout { target: target(), request: what.into(), after: REPLY_TIMEOUT }),
            Ok(None) => Err(self.closed_error()),
            Ok(Some(Received { message, .. })) => message.map_err(|source| Error::Undecodable {
                target: target(),
                request: what.into(),
                source,
            }),
        }
    }

    fn refused(&self, what: impl Into<String>, source: ErrorMessage) -> Error {
        Error::Refused { target: self.inner.target.clone(), request: what.into(), source }
    }

    fn unexpected(&self, what: &str) -> Error {
        Error::Unexpected { target: self.inner.target.clone(), request: what.into() }
    }

    /// Sends a request and waits for its single reply. `what` names the request in errors.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Refused`] if the switch rejects the request; otherwise [`Error::Timeout`], [`Error::Closed`],
    /// [`Error::Undecodable`] or [`Error::Encode`].
    pub async fn request(&self, body: Body, what: &str) -> Result<Body, Error> {
        let (_, mut replies) = self.send(std::iter::once(body), |_| what.into())?;
        match self.reply(&mut replies, what).await?.body {
            Body::Error(error) => Err(self.refused(what, error)),
            body => Ok(body),
        }
    }

    /// Sends messages without replies, followed by a barrier, and waits for the barrier. `what(index)` names a message in
    /// errors. The switch executes all messages that it does not reject.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Refused`] for the first rejected message, and [`Error::Encode`] for the first one that cannot be encoded, after
    /// which none are sent; otherwise as [`Connection::request`].
    pub async fn send_all(&self, bodies: Vec<Body>, what: impl Fn(usize) -> String) -> Result<(), Error> {
        self.send_all_tolerating(bodies, what, |_, _| false).await
    }

    /// As [`Connection::send_all`], but ignores the rejection of a message if `is_tolerated`, which gets the index of the message and
    /// the error of the switch, returns true.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Refused`] for the first rejected message that is not tolerated; otherwise as [`Connection::request`].
    pub async fn send_all_tolerating(
        &self,
        bodies: Vec<Body>,
        what: impl Fn(usize) -> String,
        is_tolerated: impl Fn(usize, &ErrorMessage) -> bool,
    ) -> Result<(), Error> {
        let count = bodies.len();
        let all = bodies.into_iter().chain([Body::BarrierRequest]).collect::<Vec<_>>();
        let (first, mut replies) = self.send(all.into_iter(), &what)?;
        let mut refused = None;
        loop {
            let message = self.reply(&mut replies, "barrier").await?;
            let index = message.xid.wrapping_sub(first) as usize;
            match message.body {
                Body::Error(error) if index >= count => return Err(self.refused("barrier", error)),
                Body::Error(error) if refused.is_none() && !is_tolerated(index, &error) => {
                    refused = Some(self.refused(what(index), error));
                }
                Body::BarrierReply if index == count => return refused.map_or(Ok(()), Err),
                _ => {}
            }
        }
    }

    /// Waits until the switch has processed all earlier messages.
    ///
    /// # Errors
    ///
    /// As [`Connection::request`].
    pub async fn barrier(&self) -> Result<(), Error> {
        self.send_all(vec![], |_| String::new()).await
    }
}
