//! A switch with answers that do not fit.

use std::time::Duration;

use anyhow::Result;
use futures::StreamExt as _;
use openflow_rs::{
    Action, Body, Connection, EncodeError, ErrorMessage, Flow, FlowMod, Match, Message,
    bundle::{BundleControl, BundleStep},
    codec::Codec,
    connection::Error,
    switch::Hello,
};
use tokio::{
    io::{AsyncWriteExt as _, DuplexStream, duplex, split},
    time::sleep,
};
use tokio_util::codec::FramedRead;

/// Answers a bundle with one change, whose messages have the transaction ids 1 to 4: the barrier succeeds and fails, the commit fails.
async fn answers(mut switch: DuplexStream) -> Result<()> {
    switch.write_all(&Message::new(0, Body::Hello(Hello::openflow13())).to_bytes()?).await?;
    let error = || Body::Error(ErrorMessage { kind: 1, code: 0, experimenter: None, data: vec![] });
    // With pauses, so that the requests are made before.
    for answers in [vec![(3, Body::BarrierReply), (3, error())], vec![(4, error())]] {
        sleep(Duration::from_secs(1)).await;
        for (xid, body) in answers {
            switch.write_all(&Message::new(xid, body).to_bytes()?).await?;
        }
    }
    std::future::pending().await
}

#[tokio::test(start_paused = true)]
async fn a_late_error_about_the_barrier_of_a_bundle_is_reported() -> Result<()> {
    let (ours, theirs) = duplex(1 << 16);
    tokio::spawn(answers(theirs));
    let (reader, writer) = split(ours);
    let connection = Connection::over("unix:/switch".parse()?, reader, writer).await?.0;
    let flow = Flow::new(7, 1, Match::new());
    let applied = connection.apply_bundle(vec![FlowMod::add(flow.clone()).into()]).await;
    let Err(Error::Refused { request, .. }) = &applied else { panic!("{applied:?}") };
    assert_eq!(*request, format!("add flow {flow}"));
    Ok(())
}

/// The error names the change, of which the switch gets nothing; it gets no commit either.
#[tokio::test(start_paused = true)]
async fn a_change_that_cannot_be_encoded_is_named() -> Result<()> {
    let (ours, mut switch) = duplex(1 << 16);
    switch.write_all(&Message::new(0, Body::Hello(Hello::openflow13())).to_bytes()?).await?;
    let (reader, writer) = split(ours);
    let connection = Connection::over("unix:/switch".parse()?, reader, writer).await?.0;
    let short = Flow::new(1, 1, Match::new());
    let long = Flow::new(7, 1, Match::new()).apply(vec![Action::PopVlan; 9_000]);
    let changes = [&short, &long, &short].map(|flow| FlowMod::add(flow.clone()).into());
    let applied = connection.apply_bundle(changes.into()).await;
    let Err(Error::Encode { request, source: EncodeError::TooLong { .. } }) = &applied else {
        panic!("{applied:?}")
    };
    assert_eq!(*request, format!("add flow {long}"));
    drop(connection);
    let mut sent = FramedRead::new(switch, Codec);
    while let Some(received) = sent.next().await {
        let body = received?.message?.body;
        assert!(
            matches!(
                body,
                Body::Hello(_) | Body::BundleControl(BundleControl { step: BundleStep::DiscardRequest, .. })
            ),
            "{body:?}"
        );
    }
    Ok(())
}
