//! A switch that takes its time.

use std::time::Duration;

use anyhow::Result;
use openflow_rs::{Body, Connection, Message, connection::Error, switch::Hello};
use tokio::{
    io::{AsyncWriteExt as _, DuplexStream, duplex, split},
    time::sleep,
};

/// Answers barriers with the transaction ids 1 and up, each after a pause.
async fn answers(mut switch: DuplexStream, pauses: &[u64]) -> Result<()> {
    switch.write_all(&Message::new(0, Body::Hello(Hello::openflow13())).to_bytes()?).await?;
    for (xid, pause) in (1..).zip(pauses) {
        sleep(Duration::from_secs(*pause)).await;
        switch.write_all(&Message::new(xid, Body::BarrierReply).to_bytes()?).await?;
    }
    std::future::pending().await
}

async fn connect(pauses: &'static [u64]) -> Result<Connection> {
    let (ours, theirs) = duplex(1 << 16);
    tokio::spawn(answers(theirs, pauses));
    let (reader, writer) = split(ours);
    Ok(Connection::over("unix:/switch".parse()?, reader, writer).await?.0)
}

/// What the switch does before it comes to a request does not count.
#[tokio::test(start_paused = true)]
async fn a_request_waits_for_earlier_ones() -> Result<()> {
    let connection = connect(&[8, 8, 8]).await?;
    let (first, second, third) =
        tokio::join!(connection.barrier(), connection.barrier(), connection.barrier());
    assert!(first.is_ok() && second.is_ok() && third.is_ok(), "{first:?} {second:?} {third:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_silent_switch_is_reported() -> Result<()> {
    let connection = connect(&[8, 60]).await?;
    connection.barrier().await?;
    let error = connection.barrier().await;
    assert!(matches!(error, Err(Error::Timeout { .. })), "{error:?}");
    Ok(())
}
