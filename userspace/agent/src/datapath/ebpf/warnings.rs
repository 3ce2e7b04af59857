//! Degraded conditions of the datapath.

use contiv_abi::maps::FLOWS;

use super::{Ebpf, programs::xdp::XdpStatus};
use crate::datapath::skb;

impl Ebpf {
    /// One text for each condition: what is degraded, why, and what to do.
    pub(super) fn degraded_conditions(&self) -> Vec<String> {
        let flows = self.unconfigured_flow_capacity().map(|capacity| {
            format!(
                "connections: capacity {capacity} instead of {} (--conntrack-max) until the flows in the map {FLOWS} fit, because \
                 connections would break; to change it now, move the pods off the node, stop the agent, and run \
                 `netplugin cleanup`",
                self.options.flows,
            )
        });
        let xdp = match self.interfaces.xdp_status() {
            XdpStatus::Unavailable(cause) => {
                Some(format!("XDP: unavailable on the uplink, TC processes all frames: {cause}"))
            }
            XdpStatus::Off | XdpStatus::Attached(_) => None,
        };
        let effect = if self.interfaces.devices().uplinks.is_empty() {
            "VLAN networks reach nothing outside of the node until an uplink exists"
        } else {
            "its networks use the other uplinks"
        };
        let missing = self.interfaces.missing_uplinks().iter();
        let missing =
            missing.map(|name| format!("VLAN uplink {name}: does not exist; {effect} (--vlan-uplinks)"));
        let log = self.options.log_stages.as_ref().map(|endpoint| {
            format!(
                "eBPF programs: those that log the stages of frames are in force, for the endpoint {endpoint} \
                 (--bpf-log-stages); they are slower"
            )
        });
        let existing = self.installed.as_ref().map(|installed| installed.kernel().sizes());
        let sizes = existing.into_iter().flat_map(|existing| existing.differences(&self.options.sizes));
        let sizes = sizes.map(|(flag, existing, configured)| {
            format!(
                "maps: size {existing} instead of {configured} ({flag}), because a map cannot be resized; to change it, move \
                 the pods off the node, stop the agent, and run `netplugin cleanup`"
            )
        });
        let checksums = skb::layout().err().map(skb::offload_warning);
        let losses = self.takeovers.losses().iter().cloned();
        flows
            .into_iter()
            .chain(xdp)
            .chain(missing)
            .chain(log)
            .chain(sizes)
            .chain(checksums)
            .chain(losses)
            .collect()
    }
}
