//! Status of the datapath: counters, statistics and the debug dump.

use std::collections::BTreeMap;

use contiv_abi::{DropCount, DropReason};
use serde_json::json;

use super::{
    Ebpf,
    kernel::installed::Installed,
    programs::xdp::XdpStatus,
    telemetry::{counters, dump},
};
use crate::{
    datapath::{
        Datapath, Error,
        telemetry::{Counters, Stats},
    },
    error::one_line,
};

impl Ebpf {
    /// Dropped frames since the maps were created, by reason. Omits reasons without drops.
    pub fn drops(&self) -> Result<Vec<(DropReason, DropCount)>, Error> {
        let Some(installed) = &self.installed else { return Ok(vec![]) };
        let counts = installed.kernel().drops()?.into_iter();
        Ok(counts.filter(|(_, count)| count.packets > 0).collect())
    }

    /// Service frames that were forwarded to the nodes of their backends (DSR), by program.
    pub fn dsr_forwarded(&self) -> Result<Vec<(&'static str, DropCount)>, Error> {
        self.installed.as_ref().map_or(Ok(vec![]), |installed| installed.kernel().dsr_forwarded())
    }

    /// Counters of rules and services, and usage of the tables that packets fill. Empty before the first
    /// [`observe`](Datapath::observe).
    pub fn counters(&self) -> Result<Counters, Error> {
        match self.installed {
            Some(_) => counters::read(&self.pins, &self.rule_names, &self.service_names),
            None => Ok(Counters::default()),
        }
    }

    /// How bandwidth limits are enforced.
    fn rate_enforcement(&self) -> Option<&'static str> {
        let queues = self.installed.as_ref()?.queues();
        match queues.pair() {
            Some(_) => Some("queues"),
            None => queues.are_unsupported().then_some("drops"),
        }
    }

    fn attach_mode(&self) -> String {
        format!("{:?}", self.interfaces.hooks().mode()).to_lowercase()
    }

    fn inspect_xdp(&self) -> serde_json::Value {
        let status = self.interfaces.xdp_status();
        let cause = match status {
            XdpStatus::Unavailable(cause) => Some(cause.as_str()),
            _ => None,
        };
        let preference = format!("{:?}", self.interfaces.xdp().preference()).to_lowercase();
        json!({ "wanted": preference, "mode": status.as_str(), "why": cause })
    }

    /// Debug dump of the datapath.
    pub(super) fn debug_dump(&self) -> serde_json::Value {
        let kernel = self.installed.as_ref().map(Installed::kernel);
        let usage = kernel.map(|kernel| {
            dump::object(Ok(kernel.usage().iter().map(|usage| (usage.table, usage.entries)).collect()))
        });
        let drops = self.drops().map(|drops| {
            drops.iter().map(|(reason, count)| (reason.as_str(), count.packets)).collect::<Vec<_>>()
        });
        let forwarded = self.dsr_forwarded().map(|counts| {
            let count = |count: &DropCount| json!({ "packets": count.packets, "bytes": count.bytes });
            counts.iter().map(|(program, frames)| (*program, count(frames))).collect::<Vec<_>>()
        });
        let [rules, services, packet_tables] = dump::render(&self.counters());
        json!({
            "datapath": "ebpf",
            "attachment": self.attach_mode(),
            "xdp": self.inspect_xdp(),
            "relayed": dump::object(forwarded),
            "announced": self.announcer.counts().into_iter().collect::<BTreeMap<_, _>>(),
            "announcedEndpoints": self.announcer.endpoint_counts().into_iter().collect::<BTreeMap<_, _>>(),
            "maps": self.maps_directory(),
            "vxlanDevice": self.options.vxlan_device,
            "uplinks": self.options.uplinks,
            "activeUplink": dump::object(self.uplinks.active().map(|active| vec![("ifindex", active)])),
            "rates": self.rate_enforcement(),
            "entries": usage,
            "drops": dump::object(drops),
            "rules": rules,
            "services": services,
            "rulesInForce": kernel.map(|kernel| kernel.policies.rules()),
            "flows": kernel.map(|kernel| dump::object(kernel.flow_events())),
            "entriesOfPackets": packet_tables,
            "writes": self.writes(),
        })
    }

    /// Statistics for the metrics. Those that cannot be read are omitted.
    pub(super) fn statistics(&self) -> Stats {
        let Some(installed) = &self.installed else { return Stats::default() };
        // Includes all reasons: an alert compares rates with earlier ones, and a series that begins with the first drop
        // has no earlier rate.
        let drops = or_default(installed.kernel().drops());
        let forwarded = or_default(self.dsr_forwarded());
        Stats {
            drops: drops.iter().map(|(reason, count)| (reason.as_str(), count.packets)).collect(),
            flows: or_default(installed.kernel().flow_events()),
            tables: installed.kernel().usage(),
            dsr_forwarded: forwarded.iter().map(|(program, count)| (*program, count.packets)).collect(),
            announcements: self.announcer.counts(),
            endpoint_announcements: self.announcer.endpoint_counts(),
            hooks: vec![
                ("tc", self.attach_mode()),
                ("xdp", self.interfaces.xdp_status().as_str().to_owned()),
            ],
        }
    }
}

/// The statistics, or none with a warning if they cannot be read.
fn or_default<T: Default>(statistics: Result<T, Error>) -> T {
    statistics
        .inspect_err(|error| tracing::warn!("statistics are incomplete: {}", one_line(error)))
        .unwrap_or_default()
}
