//! Connections to services, as the programs count them.

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

/// Those that are remembered. Reads the tables of flows whole, by thousands of entries in a call.
pub(crate) fn to_services(pins: &Pins) -> Result<Vec<Connection>, Error> {
    // Nothing is written by it.
    let writes = Writes::default();
    let answered: BatchMap<FlowKey, TimedFlow> =
        BatchMap::new(FLOWS, pins.open_data(FLOWS)?, writes.clone())?;
    let new: BatchMap<FlowKey, Flow> = BatchMap::new(NEW_FLOWS, pins.open_data(NEW_FLOWS)?, writes)?;
    let (mut flows, rests) = pending::with_rests(pins, || {
        let answered = answered.read()?.into_iter().map(|(key, timed)| (key, timed.flow));
        let mut flows: HashMap<FlowKey, Flow> = answered.chain(new.read()?).collect();
        flows.retain(|_, flow| flow.service != 0 && flow.flags & Flow::NAT != 0);
        Ok(flows)
    })?;
    for rest in rests {
        if let Some(flow) = flows.get_mut(&rest.flow) {
            let side = usize::from(rest.side & 1);
            flow.packets[side] += rest.packets;
            flow.bytes[side] += rest.bytes;
        }
    }
    Ok(flows.iter().map(|(key, flow)| connection(key, flow)).collect())
}

/// Of a flow to a service; the other entry of one, its alias, counts nothing.
fn connection(key: &FlowKey, flow: &Flow) -> Connection {
    let there = key.original(flow.origin_is_low != 0);
    // A pod that reaches itself sees the service as the client.
    let client = if flow.flags & Flow::HAIRPIN != 0 { there.destination } else { there.source };
    let traffic = |side: usize| Traffic { packets: flow.packets[side], bytes: flow.bytes[side] };
    Connection {
        client: client.into(),
        service: (flow.nat_ip.into(), flow.nat_port.get()),
        backend: (there.destination.into(), there.destination_port.get()),
        protocol: if key.protocol == TCP { Protocol::Tcp } else { Protocol::Udp },
        to_backend: traffic(0),
        to_client: traffic(1),
    }
}
