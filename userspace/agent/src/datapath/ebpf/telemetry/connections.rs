//! Tracked connections to services.

use std::collections::HashMap;

use contiv_abi::{
    Flow, FlowKey, TCP, TimedFlow,
    maps::{FLOWS, NEW_FLOWS},
};
use contiv_model::service::Protocol;

use crate::datapath::{
    Error,
    ebpf::{
        maps::{batch::BatchMap, pins::Pins, writes::Writes},
        telemetry::pending,
    },
    telemetry::{Connection, Traffic},
};

/// All tracked connections to services. Reads the whole flow tables in batches.
pub(crate) fn to_services(pins: &Pins) -> Result<Vec<Connection>, Error> {
    // `BatchMap` needs a write counter; nothing is written.
    let writes = Writes::default();
    let established: BatchMap<FlowKey, TimedFlow> =
        BatchMap::new(FLOWS, pins.open_data(FLOWS)?, writes.clone())?;
    let unreplied: BatchMap<FlowKey, Flow> = BatchMap::new(NEW_FLOWS, pins.open_data(NEW_FLOWS)?, writes)?;
    let (mut flows, pending) = pending::with_pending(pins, || {
        let established = established.read()?.into_iter().map(|(key, timed)| (key, timed.flow));
        let mut flows: HashMap<FlowKey, Flow> = established.chain(unreplied.read()?).collect();
        flows.retain(|_, flow| flow.service != 0 && flow.flags & Flow::NAT != 0);
        Ok(flows)
    })?;
    for entry in pending {
        if let Some(flow) = flows.get_mut(&entry.flow) {
            let side = usize::from(entry.side & 1);
            flow.packets[side] += entry.packets;
            flow.bytes[side] += entry.bytes;
        }
    }
    Ok(flows.iter().map(|(key, flow)| connection(key, flow)).collect())
}

/// The connection of a translated flow.
fn connection(key: &FlowKey, flow: &Flow) -> Connection {
    let tuple = key.original(flow.origin_is_low != 0);
    // In a hairpin connection the backend sees the service address as the source.
    let client = if flow.flags & Flow::HAIRPIN != 0 { tuple.destination } else { tuple.source };
    let traffic = |side: usize| Traffic { packets: flow.packets[side], bytes: flow.bytes[side] };
    Connection {
        client: client.into(),
        service: (flow.nat_ip.into(), flow.nat_port.get()),
        backend: (tuple.destination.into(), tuple.destination_port.get()),
        protocol: if key.protocol == TCP { Protocol::Tcp } else { Protocol::Udp },
        to_backend: traffic(0),
        to_client: traffic(1),
    }
}
