//! Asynchronous messages of a switch, and those that do not reach the receiver.

use anyhow::Result;
use openflow_rs::{
    Body, Connection, Match, Message,
    connection::{LostNotifications, Notifications},
    packet::{PacketIn, PacketInReason},
    switch::Hello,
};
use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex, split};

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
