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

/// Capacity of the queue of echo replies. A switch waits for the reply to one probe before it sends the next one.
pub(super) const ECHO_QUEUE: usize = 16;

/// Writes requests and echo replies until the connection is closed or dropped, or writing fails, which closes it.
pub(super) async fn write(
    writer: impl AsyncWrite + Unpin,
    queue: mpsc::UnboundedReceiver<Vec<u8>>,
    echoes: mpsc::Receiver<Vec<u8>>,
    pending: Arc<PendingReplies>,
) {
    let written = tokio::select! {
        written = write_queues(writer, queue, echoes) => written,
        // The switch may not read any more, so that writing does not end.
        () = pending.wait_closed() => return,
    };
    if let Err(error) = written {
        pending.close(error.to_string());
    }
}

async fn write_queues(
    mut writer: impl AsyncWrite + Unpin,
    mut queue: mpsc::UnboundedReceiver<Vec<u8>>,
    mut echoes: mpsc::Receiver<Vec<u8>>,
) -> std::io::Result<()> {
    loop {
        let bytes = tokio::select! {
            Some(bytes) = echoes.recv() => bytes,
            Some(bytes) = queue.recv() => bytes,
            else => return Ok(()),
        };
        writer.write_all(&bytes).await?;
    }
}

/// Reads messages until the connection is closed, which it is at the end at the latest. The channel of notifications ends with it.
pub(super) async fn read(
    incoming: FramedRead<impl AsyncRead + Unpin, Codec>,
    echoes: mpsc::Sender<Vec<u8>>,
    pending: Arc<PendingReplies>,
    notifier: Notifier,
) {
    let why = tokio::select! {
        why = read_all(incoming, echoes, &pending, notifier) => why,
        () = pending.wait_closed() => return,
    };
    pending.close(why);
}

/// Returns why no more can be read.
async fn read_all(
    mut incoming: FramedRead<impl AsyncRead + Unpin, Codec>,
    echoes: mpsc::Sender<Vec<u8>>,
    pending: &PendingReplies,
    notifier: Notifier,
) -> String {
    loop {
        match incoming.next().await {
            None => return "closed by the switch".to_owned(),
            Some(Err(error)) => return error.to_string(),
            Some(Ok(received)) => {
                if let Err(why) = dispatch(received, &echoes, pending, &notifier) {
                    return why;
                }
            }
        }
    }
}

fn dispatch(
    received: Received,
    echoes: &mpsc::Sender<Vec<u8>>,
    pending: &PendingReplies,
    notifier: &Notifier,
) -> Result<(), String> {
    match &received.message {
        Ok(Message { xid, body: Body::EchoRequest(data) }) => {
            if let Ok(bytes) = Message::new(*xid, Body::EchoReply(data.clone())).to_bytes() {
                // A switch that sends probes and does not read the replies must not fill the memory.
                echoes.try_send(bytes).map_err(|_| "the switch does not read echo replies".to_owned())?;
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
    Ok(())
}
