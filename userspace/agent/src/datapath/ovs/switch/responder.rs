//! Responder: answers the packets that the flows of a bridge send to the agent.

use openflow_rs::{
    Change, Connection, MeterMod,
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

/// Writes the meters.
pub(crate) async fn ensure_meters(bridge: &Connection) -> Result<(), Error> {
    let send = async |change| bridge.send_all(vec![Body::MeterMod(change)], |_| "write a meter".into()).await;
    for meter in pipeline::meters() {
        match send(MeterMod::add(meter.clone())).await {
            Err(Error::Refused { source, .. }) if source.name().is_some_and(|(name, _)| name == EXISTS) => {
                send(MeterMod::modify(meter)).await?;
            }
            result => result?,
        }
    }
    Ok(())
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
