//! A switch that takes its time.

use std::time::Duration;

use anyhow::Result;
use openflow_rs::{Body, Connection, Message, connection::Error, switch::Hello};
use tokio::{
    io::{AsyncWriteExt as _, DuplexStream, duplex, split},
    time::{Instant, sleep},
};

/// Answers barriers with the transaction ids `first` and up, each after a pause.
async fn answers(mut switch: DuplexStream, first: u32, pauses: &[u64]) -> Result<()> {
    switch.write_all(&Message::new(0, Body::Hello(Hello::openflow13())).to_bytes()?).await?;
    for (xid, pause) in (first..).zip(pauses) {
        sleep(Duration::from_secs(*pause)).await;
        switch.write_all(&Message::new(xid, Body::BarrierReply).to_bytes()?).await?;
    }
    std::future::pending().await
}

async fn connect(first: u32, pauses: &'static [u64]) -> Result<Connection> {
    let (ours, theirs) = duplex(1 << 16);
    tokio::spawn(answers(theirs, first, pauses));
    let (reader, writer) = split(ours);
    Ok(Connection::over("unix:/switch".parse()?, reader, writer).await?.0)
}

/// What the switch does before it comes to a request does not count.
#[tokio::test(start_paused = true)]
async fn a_request_waits_for_earlier_ones() -> Result<()> {
    let connection = connect(1, &[8, 8, 8]).await?;
    let (first, second, third) =
        tokio::join!(connection.barrier(), connection.barrier(), connection.barrier());
    assert!(first.is_ok() && second.is_ok() && third.is_ok(), "{first:?} {second:?} {third:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_silent_switch_is_reported() -> Result<()> {
    let connection = connect(1, &[8, 60]).await?;
    connection.barrier().await?;
    let error = connection.barrier().await;
    assert!(matches!(error, Err(Error::Timeout { .. })), "{error:?}");
    Ok(())
}

/// Replies to later requests do not delay the error about one that the switch never answers.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_left_out_is_reported() -> Result<()> {
    let connection = connect(2, &[8, 8, 8, 8, 8, 8, 8, 8]).await?;
    let start = Instant::now();
    let left_out = async { (connection.barrier().await, start.elapsed()) };
    let later = async {
        for _ in 0..8 {
            connection.barrier().await?;
        }
        Ok::<_, Error>(())
    };
    let ((error, after), later) = tokio::join!(left_out, later);
    later?;
    assert!(
        matches!(error, Err(Error::Timeout { .. })) && after < Duration::from_secs(32),
        "{error:?} {after:?}"
    );
    Ok(())
}
