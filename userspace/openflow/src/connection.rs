//! A connection to one switch.

mod bundle;
mod target;
mod waiting;

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
pub use self::target::{Target, TargetError};
use self::waiting::{Replies, Waiting};
use crate::codec::{Codec, Received};
use crate::flow::{FlowFilter, FlowStats};
use crate::group::Group;
use crate::message::{Body, Message};
use crate::multipart::{Aggregate, Desc, MultipartRequest, Parts, TableStats};
use crate::port::PortDesc;
use crate::rejection::Rejection;
use crate::switch::{AsyncConfig, Features, Hello, SwitchConfig};
use crate::wire::{DecodeError, TooLong};

/// How long a switch may take to answer anything.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Messages nobody has fetched yet; more are dropped.
const NOTIFICATIONS: usize = 1024;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("connect to switch {target}")]
    Connect { target: Target, source: std::io::Error },
    #[error("switch {target} does not speak OpenFlow 1.3: {why}")]
    Version { target: Target, why: String },
    #[error("connection to switch {target} is closed: {why}")]
    Closed { target: Target, why: String },
    #[error("switch {target} did not answer within {after:?}: {request}")]
    Timeout { target: Target, request: String, after: Duration },
    #[error("switch {target} refused: {request}")]
    Refused { target: Target, request: String, source: Rejection },
    #[error("answer of switch {target} to {request}")]
    Undecodable { target: Target, request: String, source: DecodeError },
    #[error("switch {target} answered something else to {request}")]
    Unexpected { target: Target, request: String },
    #[error("{request}")]
    TooLong { request: String, source: TooLong },
}

/// What the switch says unasked: packets, ports, removed flows. Ends when the connection does.
pub type Notifications = mpsc::Receiver<Message>;

/// A switch, connected. Cheap to clone; closes when the last clone goes.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    target: Target,
    out: mpsc::UnboundedSender<Vec<u8>>,
    waiting: Arc<Waiting>,
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
    /// Connects and agrees on OpenFlow 1.3.
    pub async fn connect(target: &Target) -> Result<(Connection, Notifications), Error> {
        let opened = timeout(ANSWER_WITHIN, target.open())
            .await
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        let (reader, writer) = opened.map_err(|source| Error::Connect { target: target.clone(), source })?;
        Connection::over(target.clone(), reader, writer).await
    }

    /// The same over streams that are open already; `target` is for messages.
    pub async fn over(
        target: Target,
        reader: impl AsyncRead + Send + Unpin + 'static,
        mut writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(Connection, Notifications), Error> {
        let mut incoming = FramedRead::new(reader, Codec);
        let hello = Message::new(0, Body::Hello(Hello::ours()));
        let bytes = hello.to_bytes().map_err(|source| Error::TooLong { request: "hello".into(), source })?;
        let lost = |source| Error::Connect { target: target.clone(), source };
        writer.write_all(&bytes).await.map_err(lost)?;
        match timeout(ANSWER_WITHIN, incoming.next()).await {
            Err(_) => {
                let request = "hello".to_owned();
                return Err(Error::Timeout { target, request, after: ANSWER_WITHIN });
            }
            Ok(None) => return Err(Error::Closed { target, why: "no hello came".into() }),
            Ok(Some(Err(source))) => return Err(Error::Connect { target, source }),
            Ok(Some(Ok(received))) => {
                check_hello(received).map_err(|why| Error::Version { target: target.clone(), why })?;
            }
        }
        let (out, queue) = mpsc::unbounded_channel();
        let (notify, notifications) = mpsc::channel(NOTIFICATIONS);
        let waiting = Arc::new(Waiting::default());
        let tasks = [
            tokio::spawn(write(writer, queue, waiting.clone())).abort_handle(),
            tokio::spawn(read(incoming, out.clone(), waiting.clone(), notify)).abort_handle(),
        ];
        let inner = Inner { target, out, waiting, bundle: AtomicU32::new(1), tasks };
        Ok((Connection { inner: Arc::new(inner) }, notifications))
    }

    /// Whether the connection was lost.
    pub fn is_closed(&self) -> bool {
        self.inner.waiting.closed().is_some()
    }

    /// Resolves when the connection is lost.
    pub async fn closed(&self) {
        self.inner.waiting.until_closed().await;
    }

    fn closed_error(&self) -> Error {
        let why = self.inner.waiting.closed().unwrap_or_else(|| "by us".into());
        Error::Closed { target: self.inner.target.clone(), why }
    }

    /// Sends messages that are answered, if at all, under the returned xids (one each, in order).
    fn send(&self, bodies: impl ExactSizeIterator<Item = Body>, what: &str) -> Result<(u32, Replies), Error> {
        let count = u32::try_from(bodies.len()).unwrap_or(u32::MAX);
        let (first, replies) = self.inner.waiting.reserve(count).ok_or_else(|| self.closed_error())?;
        let mut bytes = vec![];
        for (xid, body) in (first..).zip(bodies) {
            let message = Message::new(xid, bundle::with_xid(xid, body));
            message.encode(&mut bytes).map_err(|source| Error::TooLong { request: what.into(), source })?;
        }
        self.inner.out.send(bytes).map_err(|_| self.closed_error())?;
        Ok((first, replies))
    }

    /// The next message under the xids of `replies`.
    async fn reply(&self, replies: &mut Replies, what: &str) -> Result<Message, Error> {
        let target = || self.inner.target.clone();
        match timeout(ANSWER_WITHIN, replies.next()).await {
            Err(_) => Err(Error::Timeout { target: target(), request: what.into(), after: ANSWER_WITHIN }),
            Ok(None) => Err(self.closed_error()),
            Ok(Some(Received { message, .. })) => message.map_err(|source| Error::Undecodable {
                target: target(),
                request: what.into(),
                source,
            }),
        }
    }

    fn refused(&self, what: impl Into<String>, source: Rejection) -> Error {
        Error::Refused { target: self.inner.target.clone(), request: what.into(), source }
    }

    fn unexpected(&self, what: &str) -> Error {
        Error::Unexpected { target: self.inner.target.clone(), request: what.into() }
    }

    /// Sends a request and waits for its only answer. `what` names it in errors.
    pub async fn request(&self, body: Body, what: &str) -> Result<Body, Error> {
        let (_, mut replies) = self.send(std::iter::once(body), what)?;
        match self.reply(&mut replies, what).await?.body {
            Body::Error(rejection) => Err(self.refused(what, rejection)),
            body => Ok(body),
        }
    }

    /// Sends messages that have no answer, and a barrier; the first that is refused is the error,
    /// named by `what(its index)`.
    pub async fn send_all(&self, bodies: Vec<Body>, what: impl Fn(usize) -> String) -> Result<(), Error> {
        let count = bodies.len();
        let all = bodies.into_iter().chain([Body::BarrierRequest]).collect::<Vec<_>>();
        let (first, mut replies) = self.send(all.into_iter(), "messages")?;
        let mut refused = None;
        loop {
            let message = self.reply(&mut replies, "barrier").await?;
            let index = message.xid.wrapping_sub(first) as usize;
            match message.body {
                Body::Error(rejection) if index < count => {
                    refused.get_or_insert_with(|| self.refused(what(index), rejection));
                }
                Body::Error(rejection) => return Err(self.refused("barrier", rejection)),
                Body::BarrierReply if index == count => return refused.map_or(Ok(()), Err),
                _ => {}
            }
        }
    }

    /// Waits until the switch has done all that was sent before.
    pub async fn barrier(&self) -> Result<(), Error> {
        self.send_all(vec![], |_| String::new()).await
    }

    /// All the parts of an answer.
    pub async fn multipart(&self, request: MultipartRequest, what: &str) -> Result<Vec<Parts>, Error> {
        let (_, mut replies) = self.send(std::iter::once(Body::MultipartRequest(request)), what)?;
        let mut parts = vec![];
        loop {
            match self.reply(&mut replies, what).await?.body {
                Body::MultipartReply(reply) => {
                    parts.push(reply.parts);
                    if !reply.more {
                        return Ok(parts);
                    }
                }
                Body::Error(rejection) => return Err(self.refused(what, rejection)),
                _ => return Err(self.unexpected(what)),
            }
        }
    }

    pub async fn dump_flows(&self, filter: FlowFilter) -> Result<Vec<FlowStats>, Error> {
        let what = "dump of flows";
        self.list(MultipartRequest::Flows(filter), what, |parts| {
            if let Parts::Flows(flows) = parts { Some(flows) } else { None }
        })
        .await
    }

    pub async fn dump_groups(&self) -> Result<Vec<Group>, Error> {
        let what = "dump of groups";
        self.list(MultipartRequest::Groups, what, |parts| {
            if let Parts::Groups(groups) = parts { Some(groups) } else { None }
        })
        .await
    }

    pub async fn ports(&self) -> Result<Vec<PortDesc>, Error> {
        let what = "list of ports";
        self.list(MultipartRequest::Ports, what, |parts| {
            if let Parts::Ports(ports) = parts { Some(ports) } else { None }
        })
        .await
    }

    pub async fn tables(&self) -> Result<Vec<TableStats>, Error> {
        let what = "table counters";
        self.list(MultipartRequest::Tables, what, |parts| {
            if let Parts::Tables(tables) = parts { Some(tables) } else { None }
        })
        .await
    }

    async fn list<T>(
        &self,
        request: MultipartRequest,
        what: &str,
        pick: impl Fn(Parts) -> Option<Vec<T>>,
    ) -> Result<Vec<T>, Error> {
        let mut all = vec![];
        for parts in self.multipart(request, what).await? {
            all.extend(pick(parts).ok_or_else(|| self.unexpected(what))?);
        }
        Ok(all)
    }

    /// Counters summed over the flows that `filter` selects.
    pub async fn aggregate(&self, filter: FlowFilter) -> Result<Aggregate, Error> {
        let what = "sum of flow counters";
        match self.multipart(MultipartRequest::Aggregate(filter), what).await?.pop() {
            Some(Parts::Aggregate(sum)) => Ok(sum),
            _ => Err(self.unexpected(what)),
        }
    }

    /// Who made the switch.
    pub async fn describe(&self) -> Result<Desc, Error> {
        let what = "description";
        match self.multipart(MultipartRequest::Desc, what).await?.pop() {
            Some(Parts::Desc(desc)) => Ok(desc),
            _ => Err(self.unexpected(what)),
        }
    }

    pub async fn features(&self) -> Result<Features, Error> {
        match self.request(Body::FeaturesRequest, "features").await? {
            Body::FeaturesReply(features) => Ok(features),
            _ => Err(self.unexpected("features")),
        }
    }

    pub async fn config(&self) -> Result<SwitchConfig, Error> {
        match self.request(Body::GetConfigRequest, "configuration").await? {
            Body::GetConfigReply(config) => Ok(config),
            _ => Err(self.unexpected("configuration")),
        }
    }

    pub async fn set_config(&self, config: SwitchConfig) -> Result<(), Error> {
        self.send_all(vec![Body::SetConfig(config)], |_| "set configuration".into()).await
    }

    /// Chooses which messages come unasked.
    pub async fn set_async(&self, config: AsyncConfig) -> Result<(), Error> {
        self.send_all(vec![Body::SetAsync(config)], |_| "choose notifications".into()).await
    }
}

fn check_hello(received: Received) -> Result<(), String> {
    match received.message {
        Ok(Message { body: Body::Hello(hello), .. }) if hello.speaks_ours() => Ok(()),
        Ok(Message { body: Body::Hello(hello), .. }) => Err(format!(
            "it speaks version {:#04x} only; set the bridge's `protocols` to OpenFlow13",
            hello.version
        )),
        Ok(Message { body: Body::Error(rejection), .. }) => Err(rejection.to_string()),
        Ok(_) => Err("its first message is not a hello".into()),
        Err(error) => Err(error.to_string()),
    }
}

async fn write(
    mut writer: impl AsyncWrite + Unpin,
    mut queue: mpsc::UnboundedReceiver<Vec<u8>>,
    waiting: Arc<Waiting>,
) {
    while let Some(bytes) = queue.recv().await {
        if let Err(error) = writer.write_all(&bytes).await {
            waiting.close(error.to_string());
            return;
        }
    }
}

async fn read(
    mut incoming: FramedRead<impl AsyncRead + Unpin, Codec>,
    out: mpsc::UnboundedSender<Vec<u8>>,
    waiting: Arc<Waiting>,
    notify: mpsc::Sender<Message>,
) {
    let why = loop {
        match incoming.next().await {
            None => break "the switch closed it".to_owned(),
            Some(Err(error)) => break error.to_string(),
            Some(Ok(received)) => dispatch(received, &out, &waiting, &notify),
        }
    };
    waiting.close(why);
}

fn dispatch(
    received: Received,
    out: &mpsc::UnboundedSender<Vec<u8>>,
    waiting: &Waiting,
    notify: &mpsc::Sender<Message>,
) {
    match &received.message {
        Ok(Message { xid, body: Body::EchoRequest(data) }) => {
            if let Ok(bytes) = Message::new(*xid, Body::EchoReply(data.clone())).to_bytes() {
                // A closed queue means that the connection is going: the reader will see it too.
                let _sent = out.send(bytes);
            }
        }
        Ok(Message { body: Body::PacketIn(_) | Body::PortStatus(_) | Body::FlowRemoved(_), .. }) => {
            if let Ok(message) = received.message {
                // Full: whoever does not fetch notifications does not want them.
                let _delivered = notify.try_send(message);
            }
        }
        _ => waiting.deliver(received),
    }
}
