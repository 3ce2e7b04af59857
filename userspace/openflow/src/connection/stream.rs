//! The streams of a connection: the hello, and the tasks that write and read messages.

use std::sync::Arc;

use futures::StreamExt;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::codec::FramedRead;

use super::notifications::Notifier;
use super::pending::PendingReplies;
use crate::codec::{Codec, Received};
use crate::message::{Body, Message, is_notification};

pub(super) fn check_hello(received: Received) -> Result<(), String> {
    match received.message {
        Ok(Message { body: Body::Hello(hello), .. }) if hello.supports_openflow13() => Ok(()),
        Ok(Message { body: Body::Hello(hello), .. }) => Err(format!(
            "the switch supports version {:#04x} only; add OpenFlow13 to the `protocols` of the bridge",
            hello.version
        )),
        Ok(Message { body: Body::Error(error), .. }) => Err(error.to_string()),
        Ok(_) => Err("the first message is not a hello".into()),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) async fn write(
    mut writer: impl AsyncWrite + Unpin,
    mut queue: mpsc::UnboundedReceiver<Vec<u8>>,
    pending: Arc<PendingReplies>,
) {
    while let Some(bytes) = queue.recv().await {
        if let Err(error) = writer.write_all(&bytes).await {
            pending.close(error.to_string());
            return;
        }
    }
}

pub(super) async fn read(
    mut incoming: FramedRead<impl AsyncRead + Unpin, Codec>,
    out: mpsc::UnboundedSender<Vec<u8>>,
    pending: Arc<PendingReplies>,
    notifier: Notifier,
) {
    let why = loop {
        match incoming.next().await {
            None => break "closed by the switch".to_owned(),
            Some(Err(error)) => break error.to_string(),
            Some(Ok(received)) => dispatch(received, &out, &pending, &notifier),
        }
    };
    pending.close(why);
}

fn dispatch(
    received: Received,
    out: &mpsc::UnboundedSender<Vec<u8>>,
    pending: &PendingReplies,
    notifier: &Notifier,
) {
    match &received.message {
        Ok(Message { xid, body: Body::EchoRequest(data) }) => {
            if let Ok(bytes) = Message::new(*xid, Body::EchoReply(data.clone())).to_bytes() {
                // The queue is closed only when the connection is; the reader reports that.
                let _sent = out.send(bytes);
            }
        }
        Ok(Message { body: Body::PacketIn(_) | Body::PortStatus(_) | Body::FlowRemoved(_), .. }) => {
            if let Ok(message) = received.message {
                notifier.send(message);
            }
        }
        Err(_) if is_notification(received.kind) => notifier.count_undecodable(),
        _ => pending.deliver(received),
    }
}
