//! Tracked connections to services.

use contiv_abi::{Flow, TCP};
use contiv_model::service::Protocol;

use crate::datapath::{
    Error,
    ebpf::maps::{flows::FlowTable, pins::Pins},
    telemetry::{Connection, Traffic},
};

/// All tracked connections to services. Reads the whole flow table.
pub(crate) fn to_services(pins: &Pins) -> Result<Vec<Connection>, Error> {
    let is_to_service = |flow: &Flow| flow.halves[0].service != 0 && flow.head.flags & Flow::NAT != 0;
    Ok(FlowTable::open(pins)?.read().filter(is_to_service).map(|flow| connection(&flow)).collect())
}

/// The connection of a translated flow.
fn connection(flow: &Flow) -> Connection {
    let [to_backend, to_client] =
        flow.halves.map(|half| Traffic { packets: half.packets, bytes: half.bytes });
    Connection {
        client: flow.client.into(),
        service: (flow.destination.into(), flow.destination_port.get()),
        backend: (flow.backend.into(), flow.backend_port.get()),
        protocol: if flow.head.protocol == TCP { Protocol::Tcp } else { Protocol::Udp },
        to_backend,
        to_client,
    }
}
