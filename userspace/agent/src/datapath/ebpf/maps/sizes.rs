//! Sizes of the maps that the agent fills. Their memory is allocated at start, or grows with the size.

use aya::util::nr_cpus;
use contiv_abi::{
    ServiceCountRows, ServiceSlot,
    maps::{
        BACKENDS, FDB, FDB_CAPACITY, NEIGH, RING, RING_CAPACITY, RULE_COUNTS, RULES, RULES_CAPACITY,
        SERVICE_COUNTS, SERVICE_SLOTS, SERVICES, SERVICES_CAPACITY, VIPS,
    },
};

use super::{pins::Pins, usage};
use crate::datapath::{Error, ebpf::failure::failed};

/// Capacities of a node's maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Endpoints on the networks of the node: local and remote ones.
    pub endpoints: u32,
    /// Ports of services on the networks of the node.
    pub services: u32,
    /// IPv6 backends, and blocks of 64 bytes for lists and rings of backends, rounded up to a power of two.
    pub backends: u32,
    /// Nodes of the trees of rules, and rules with a counter.
    pub rules: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes {
            endpoints: FDB_CAPACITY as u32,
            services: SERVICES_CAPACITY as u32,
            backends: RING_CAPACITY as u32,
            rules: RULES_CAPACITY as u32,
        }
    }
}

/// Returns the flag that sets the size of a map, if there is one.
fn flag(map: &str) -> Option<&'static str> {
    match map {
        FDB | NEIGH => Some("--bpf-endpoints"),
        SERVICES | VIPS => Some("--bpf-services"),
        RING | BACKENDS => Some("--bpf-backends"),
        RULES | RULE_COUNTS => Some("--bpf-rules"),
        _ => None,
    }
}

/// Returns the failed operation of a write to a full map, and advice.
pub(crate) fn full(map: &str, capacity: usize) -> String {
    let advice = flag(map).map_or(String::new(), |flag| format!("; {flag} sets the size of a new map"));
    format!("write to the map {map}, which is full ({capacity} entries{advice})")
}

/// Addresses per endpoint: IPv4, IPv6, and the link-local address of IPv6.
const ADDRESSES: u32 = 3;

impl Sizes {
    /// Numbers of entries of the maps.
    pub(crate) fn entries(&self) -> Result<[(&'static str, u32); 10], Error> {
        let backends = self.backends.next_power_of_two();
        Ok([
            (FDB, self.endpoints),
            (NEIGH, ADDRESSES * self.endpoints),
            (SERVICES, self.services),
            (SERVICE_SLOTS, self.service_slots()),
            (VIPS, self.services),
            (SERVICE_COUNTS, self.service_counts()?.entries()),
            (RING, backends),
            (BACKENDS, backends),
            (RULES, self.rules),
            (RULE_COUNTS, self.rules),
        ])
    }

    /// Number of entries of a map; zero for maps of a fixed size.
    pub(crate) fn of(&self, map: &str) -> Result<usize, Error> {
        Ok(self.entries()?.iter().find(|(name, _)| *name == map).map_or(0, |(_, entries)| *entries as usize))
    }

    /// Number of slots with copies of services.
    pub(crate) fn service_slots(&self) -> u32 {
        ServiceSlot::count(self.services)
    }

    /// Layout of the counters of services.
    pub(crate) fn service_counts(&self) -> Result<ServiceCountRows, Error> {
        let cpus = nr_cpus().map_err(|(_, error)| failed("count the CPUs", error))?;
        Ok(ServiceCountRows::new(self.services, cpus as u32))
    }

    /// Returns these sizes, or those of the existing maps: a map cannot be resized.
    pub(crate) fn of_pinned(self, pins: &Pins) -> Result<Sizes, Error> {
        let existing = |name: &'static str, wanted: u32| -> Result<u32, Error> {
            if !pins.map(name).exists() {
                return Ok(wanted);
            }
            usage::capacity(name, &pins.open_data(name)?).map(|capacity| capacity as u32)
        };
        Ok(Sizes {
            endpoints: existing(FDB, self.endpoints)?,
            services: existing(SERVICES, self.services)?,
            backends: existing(RING, self.backends.next_power_of_two())?,
            rules: existing(RULES, self.rules)?,
        })
    }

    /// The sizes that differ: flag, this size and the other.
    pub(crate) fn differences(
        &self,
        other: &Sizes,
    ) -> impl Iterator<Item = (&'static str, u32, u32)> + use<> {
        [
            ("--bpf-endpoints", self.endpoints, other.endpoints),
            ("--bpf-services", self.services, other.services),
            ("--bpf-backends", self.backends.next_power_of_two(), other.backends.next_power_of_two()),
            ("--bpf-rules", self.rules, other.rules),
        ]
        .into_iter()
        .filter(|(_, ours, theirs)| ours != theirs)
    }
}
