//! Traces: run the programs for one frame with the node's tables and with separate flows, counters and meters. The
//! programs send nothing: see [`Traced`](contiv_abi::Traced).

mod findings;
mod run;

use std::{collections::HashMap, sync::Mutex, thread};

use contiv_abi::maps::{FROM_OVERLAY, FROM_POD, FROM_UPLINK};
use contiv_model::{
    name::EndpointId,
    tag::{Encap, Vlan},
};
use tokio::sync::oneshot;

use super::{
    device,
    failure::failed,
    maps::{names::RuleNames, pins::Pins},
};
use crate::datapath::{
    Error,
    trace::{Findings, Ingress, Probe},
};

/// Allows one trace at a time, because its programs and maps take memory.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The frame cannot enter the datapath.
#[derive(Debug, thiserror::Error)]
enum NoInterface {
    #[error("endpoint {0} has no interface on this node; retry when the endpoint is attached")]
    Endpoint(EndpointId),
    #[error("the node has no VXLAN device yet; retry when the agent is ready")]
    Overlay,
    #[error("the node has no VLAN uplink; set --vlan-uplinks")]
    Uplink,
}

/// Interfaces of the datapath.
#[derive(Debug)]
pub(super) struct Interfaces {
    /// VXLAN device; zero for none.
    pub(super) overlay: u32,
    /// Datapath's ends of the interfaces to the node's kernel, those for host access and for VLAN networks; zero for none.
    pub(super) kernel: [u32; 2],
    /// Active uplink; zero for none.
    pub(super) uplink: u32,
    /// Endpoints by the index of their interface, with its name.
    pub(super) endpoints: HashMap<u32, (EndpointId, String)>,
}

/// A prepared trace, which no longer needs the datapath.
pub(super) struct Request {
    probe: Probe,
    pins: Pins,
    flows: u32,
    rules: RuleNames,
    program: &'static str,
    /// Ingress interface of the frame.
    ifindex: u32,
    interfaces: Interfaces,
}

/// Collects the inputs of a trace; `flows` is the capacity of the flow table.
pub(super) fn prepare(
    (pins, flows, rules): (&Pins, u32, &RuleNames),
    interfaces: Interfaces,
    probe: Probe,
) -> Result<Request, Error> {
    let Interfaces { overlay, uplink, .. } = interfaces;
    let (program, ifindex) = match &probe.ingress {
        Ingress::Pod { endpoint, port } => {
            let ifindex = device::ifindex(port).ok_or_else(|| NoInterface::Endpoint(endpoint.clone()));
            (FROM_POD, ifindex)
        }
        Ingress::Tunnel { .. } => {
            (FROM_OVERLAY, (overlay != 0).then_some(overlay).ok_or(NoInterface::Overlay))
        }
        Ingress::Uplink(_) => (FROM_UPLINK, (uplink != 0).then_some(uplink).ok_or(NoInterface::Uplink)),
    };
    let ifindex = ifindex.map_err(|error| failed("trace", error))?;
    Ok(Request { probe, pins: pins.clone(), flows, rules: rules.clone(), program, ifindex, interfaces })
}

impl Request {
    /// Runs the programs on a separate thread, in the network namespace of the caller.
    pub(super) async fn run(self) -> Result<Findings, Error> {
        let (reply, answer) = oneshot::channel();
        let work = move || {
            let _one = ONE_AT_A_TIME.lock();
            // The caller stops waiting after a time limit.
            if !reply.is_closed() {
                drop(reply.send(self.follow()));
            }
        };
        thread::Builder::new().name("trace".into()).spawn(work).map_err(|error| failed("trace", error))?;
        answer.await.map_err(|error| failed("trace", error))?
    }

    fn follow(self) -> Result<Findings, Error> {
        let mut programs = run::Programs::load(&self.pins, self.flows)?;
        let pass = programs.follow(self.program, self.ifindex, &self.probe)?;
        Ok(self.findings(&pass))
    }

    fn vlan(&self) -> Option<Vlan> {
        match self.probe.encap {
            Encap::Vlan(vlan) => Some(vlan),
            Encap::Vxlan { .. } => None,
        }
    }
}
