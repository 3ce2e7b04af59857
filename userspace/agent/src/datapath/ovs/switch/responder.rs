//! Responder: answers the packets that the flows of a bridge send to the agent.

use openflow_rs::{
    Change, Connection, ErrorMessage, MeterMod,
    connection::{Error, Notifications},
    message::Body,
    switch::{AsyncConfig, SwitchConfig},
};
use tokio::task::AbortHandle;

use crate::datapath::ovs::pipeline;

/// Reason of packet-in messages: an action of a flow (`OFPR_ACTION`).
const BY_ACTION: u32 = 1 << 1;
/// The error for the number of a meter that is in use.
const EXISTS: &str = "OFPMMFC_METER_EXISTS";

/// The task that answers. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Responder(AbortHandle);

impl Responder {
    /// Prepares the bridge for the flows that send packets to the agent, and answers these from now on.
    pub(crate) async fn start(bridge: &Connection, packets: Notifications) -> Result<Responder, Error> {
        ensure_meters(bridge).await?;
        // The bridge sends no packets to a management connection that has not asked for them.
        bridge.set_async(AsyncConfig { packet_in: [BY_ACTION, 0], ..AsyncConfig::default() }).await?;
        bridge.set_config(SwitchConfig { flags: 0, miss_send_len: u16::MAX }).await?;
        Ok(Responder(tokio::spawn(answer(bridge.clone(), packets)).abort_handle()))
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Whether a change is of a flow that the switch rejects without its meter, which may have been deleted by hand.
pub(crate) fn needs_meter(change: &Change) -> bool {
    matches!(change, Change::Packed(change) if change.flow.has_meter())
}

/// Writes the meters in one batch: each is added and then modified, because a meter that exists is not added and may have
/// another rate.
pub(crate) async fn ensure_meters(bridge: &Connection) -> Result<(), Error> {
    let meters = pipeline::meters();
    let changes =
        meters.iter().flat_map(|meter| [MeterMod::add(meter.clone()), MeterMod::modify(meter.clone())]);
    let changes: Vec<Body> = changes.map(Body::MeterMod).collect();
    let what = move |index: usize| format!("write meter {}", meters[index / 2].id);
    let exists = |index: usize, error: &ErrorMessage| {
        index.is_multiple_of(2) && error.name().is_some_and(|(name, _)| name == EXISTS)
    };
    bridge.send_all_tolerating(changes, what, exists).await
}

async fn answer(bridge: Connection, mut packets: Notifications) {
    while let Some(message) = packets.recv().await {
        let Body::PacketIn(packet) = message.body else { continue };
        let Some(answer) = pipeline::answer(&packet) else { continue };
        let sent = bridge.send_all(vec![Body::PacketOut(answer)], |_| "answer a packet".into());
        if let Err(error) = sent.await {
            tracing::debug!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::{Arc, Mutex},
    };

    use futures::StreamExt as _;
    use openflow_rs::{Message, Meter, codec::Codec, meter::MeterCommand, switch::Hello};
    use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex, split};
    use tokio_util::codec::FramedRead;

    use super::*;

    /// A switch that has meters only.
    #[derive(Default)]
    struct Switch {
        meters: BTreeMap<u32, Meter>,
        /// Largest number of meters.
        capacity: usize,
        /// Number of barriers so far.
        barriers: usize,
    }

    impl Switch {
        fn reply(&mut self, body: Body) -> Option<Body> {
            let change = match body {
                Body::BarrierRequest => {
                    self.barriers += 1;
                    return Some(Body::BarrierReply);
                }
                Body::MeterMod(change) => change,
                _ => return None,
            };
            let known = self.meters.contains_key(&change.meter.id);
            // Codes of `ofp_meter_mod_failed_code`.
            let code = match change.command {
                MeterCommand::Add if known => 1,
                MeterCommand::Add if self.meters.len() == self.capacity => 10,
                MeterCommand::Modify if !known => 3,
                MeterCommand::Delete => panic!("{change:?}"),
                MeterCommand::Add | MeterCommand::Modify => {
                    self.meters.insert(change.meter.id, change.meter);
                    return None;
                }
            };
            Some(Body::Error(ErrorMessage { kind: 12, code, experimenter: None, data: vec![] }))
        }
    }

    async fn serve(switch: Arc<Mutex<Switch>>, stream: DuplexStream) {
        let (reader, mut writer) = split(stream);
        let mut incoming = FramedRead::new(reader, Codec);
        let hello = Message::new(0, Body::Hello(Hello::openflow13()));
        writer.write_all(&hello.to_bytes().unwrap()).await.unwrap();
        while let Some(received) = incoming.next().await {
            let Message { xid, body } = received.unwrap().message.unwrap();
            let reply = switch.lock().unwrap().reply(body);
            if let Some(reply) = reply {
                writer.write_all(&Message::new(xid, reply).to_bytes().unwrap()).await.unwrap();
            }
        }
    }

    async fn connect(capacity: usize) -> (Arc<Mutex<Switch>>, Connection) {
        let switch = Arc::new(Mutex::new(Switch { capacity, ..Switch::default() }));
        let (ours, theirs) = duplex(1 << 16);
        tokio::spawn(serve(switch.clone(), theirs));
        let (reader, writer) = split(ours);
        let opened = Connection::over("unix:/switch".parse().unwrap(), reader, writer).await;
        (switch, opened.unwrap().0)
    }

    #[tokio::test]
    async fn meters_are_written_in_one_batch() {
        let (switch, connection) = connect(1000).await;
        let expected = pipeline::meters();
        // One that an earlier release has written with other limits.
        let old = Meter { bands: vec![], ..expected[7].clone() };
        switch.lock().unwrap().meters.insert(old.id, old);
        for batches in 1..=2 {
            ensure_meters(&connection).await.unwrap();
            let switch = switch.lock().unwrap();
            assert!(switch.meters.values().eq(&expected));
            assert_eq!(switch.barriers, batches);
        }
    }

    #[tokio::test]
    async fn a_meter_that_is_refused_is_named() {
        let (switch, connection) = connect(10).await;
        let expected = pipeline::meters();
        let Err(Error::Refused { request, source, .. }) = ensure_meters(&connection).await else {
            panic!("written")
        };
        assert_eq!(request, format!("write meter {}", expected[10].id));
        assert_eq!(source.name().unwrap().0, "OFPMMFC_OUT_OF_METERS");
        assert_eq!(switch.lock().unwrap().meters.len(), 10);
    }
}
