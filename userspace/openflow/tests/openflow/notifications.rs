//! Asynchronous messages of a switch, and those that do not reach the receiver.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::Result;
use openflow_rs::{
    Body, Connection, Match, Message,
    connection::{LostNotifications, Notifications},
    packet::{PacketIn, PacketInReason},
    switch::Hello,
};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex, split},
    time::timeout,
};

/// Returns a connection to a switch that has sent its hello, and the stream of the switch.
async fn connect() -> Result<(Connection, Notifications, DuplexStream)> {
    let (ours, mut switch) = duplex(1 << 20);
    switch.write_all(&Message::new(0, Body::Hello(Hello::openflow13())).to_bytes()?).await?;
    let (reader, writer) = split(ours);
    let (connection, notifications) = Connection::over("unix:/switch".parse()?, reader, writer).await?;
    Ok((connection, notifications, switch))
}

fn packet() -> Result<Vec<u8>> {
    let packet = PacketIn {
        total_len: 1,
        reason: PacketInReason::Action,
        table: 1,
        cookie: 2,
        matching: Match::new().in_port(4.into()),
        data: vec![1],
    };
    Ok(Message::new(0, Body::PacketIn(packet)).to_bytes()?)
}

/// Each packet-in that the queue has no room for, or that does not decode, is counted.
#[tokio::test]
async fn lost_notifications_are_counted() -> Result<()> {
    let (connection, mut notifications, mut switch) = connect().await?;
    let mut malformed = packet()?;
    // The match type of OpenFlow 1.0.
    malformed[25] = 0;
    switch.write_all(&malformed).await?;
    for _ in 0..1024 + 3 {
        switch.write_all(&packet()?).await?;
    }
    drop(switch);
    connection.closed().await;
    assert_eq!(connection.lost_notifications(), LostNotifications { queue_full: 3, undecodable: 1 });
    let mut received = 0;
    while notifications.recv().await.is_some() {
        received += 1;
    }
    assert_eq!(received, 1024);
    Ok(())
}

/// A stream that takes the hello and nothing else.
struct HelloOnly {
    has_hello: bool,
}

impl AsyncWrite for HelloOnly {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if std::mem::replace(&mut self.has_hello, true) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The switch can still be read, but that is of no use.
#[tokio::test(start_paused = true)]
async fn the_channel_ends_when_writing_fails() -> Result<()> {
    let (reader, mut switch) = duplex(1 << 16);
    switch.write_all(&Message::new(0, Body::Hello(Hello::openflow13())).to_bytes()?).await?;
    let writer = HelloOnly { has_hello: false };
    let (connection, mut notifications) = Connection::over("unix:/switch".parse()?, reader, writer).await?;
    assert!(connection.barrier().await.is_err());
    let received = timeout(Duration::from_secs(1), notifications.recv()).await;
    assert_eq!(received, Ok(None), "the channel is open");
    Ok(())
}

/// A switch that sends probes and reads nothing.
#[tokio::test(start_paused = true)]
async fn unread_echo_replies_close_the_connection() -> Result<()> {
    let (ours, mut switch) = duplex(1 << 10);
    let hello = Message::new(0, Body::Hello(Hello::openflow13())).to_bytes()?;
    let (reader, writer) = split(ours);
    let opened = Connection::over("unix:/switch".parse()?, reader, writer);
    let (opened, sent) = tokio::join!(opened, switch.write_all(&hello));
    sent?;
    let (connection, mut notifications) = opened?;
    let probe = Message::new(1, Body::EchoRequest(vec![0; 1 << 10])).to_bytes()?;
    let mut probes = 0;
    while timeout(Duration::from_secs(1), switch.write_all(&probe)).await?.is_ok() {
        probes += 1;
        assert!(probes < 100, "{probes} probes");
    }
    assert!(connection.is_closed() && notifications.recv().await.is_none());
    let error = connection.barrier().await.unwrap_err().to_string();
    assert!(error.ends_with("the switch does not read echo replies"), "{error}");
    Ok(())
}
