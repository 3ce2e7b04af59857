//! What the programs tell of packets while somebody watches.

use std::{
    net::IpAddr,
    time::{Duration, SystemTime},
};

use aya::maps::{Array, MapData, PerCpuArray, RingBuf};
use contiv_abi::{
    Address, Be16, DropReason, Event, Segment, Told, Watch,
    maps::{EVENTS, TOLD, WATCH},
};
use contiv_model::mac::Mac;
use nix::net::if_::if_indextoname;
use tokio::io::unix::AsyncFd;

use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{
            names::{RuleNames, ServiceNames},
            pins::Pins,
        },
        telemetry::{connections, counters},
    },
    sight::{Connection, End, Sighting, Tag, Tallies},
};

/// What each CPU may tell in a second.
const LIMIT: u32 = 500;
/// How long the programs go on telling without a word from us.
const LEASE: u64 = 5;

/// Begins to watch; of use at any time, also while the datapath is at work.
#[derive(Clone, Debug)]
pub struct Watcher {
    pins: Pins,
    rules: RuleNames,
    services: ServiceNames,
}

impl Watcher {
    pub(crate) fn new(pins: Pins, rules: RuleNames, services: ServiceNames) -> Watcher {
        Watcher { pins, rules, services }
    }

    /// What was counted until now. Blocks for some milliseconds at most: no table of flows is read as a whole.
    pub fn tallies(&self) -> Result<Tallies, Error> {
        counters::read(&self.pins, &self.rules, &self.services)
    }

    /// The connections to services that are remembered. Blocks for as long as it takes to read the tables of flows.
    pub fn connections(&self) -> Result<Vec<Connection>, Error> {
        connections::to_services(&self.pins)
    }

    /// From now on. Whoever watched before hears no more: there is one ring, and what is read from it is gone.
    pub fn open(&self) -> Result<Sightings, Error> {
        let mut ring: RingBuf<MapData> = self.pins.open_map(EVENTS)?;
        // Of an earlier time.
        while ring.next().is_some() {}
        // SAFETY: the ring keeps its file open as long as it lives, and does not give it away.
        let ring = unsafe { AsyncFd::register(ring) }
            .map_err(|error| failed(format!("wait for the map {EVENTS}"), error))?;
        let mut sightings = Sightings {
            ring,
            watch: self.pins.open_map(WATCH)?,
            told: self.pins.open_map(TOLD)?,
            before: 0,
            rules: self.rules.clone(),
        };
        sightings.before = sightings.all_lost()?;
        sightings.renew()?;
        Ok(sightings)
    }
}

/// Packets, as the programs tell of them.
pub struct Sightings {
    ring: AsyncFd<RingBuf<MapData>>,
    watch: Array<MapData, Watch>,
    told: PerCpuArray<MapData, Told>,
    /// What was lost before we came.
    before: u64,
    rules: RuleNames,
}

impl Sightings {
    /// The next. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Sighting, Error> {
        loop {
            let mut ready = self
                .ring
                .readable_mut()
                .await
                .map_err(|error| failed(format!("wait for the map {EVENTS}"), error))?;
            let event = ready.get_inner_mut().next().map(|item| {
                let mut event: Event = bytemuck::Zeroable::zeroed();
                let bytes = bytemuck::bytes_of_mut(&mut event);
                let len = bytes.len().min(item.len());
                bytes[..len].copy_from_slice(&item[..len]);
                event
            });
            match event {
                Some(event) => return Ok(sighting(&event, &self.rules)),
                None => ready.clear_ready(),
            }
        }
    }

    /// Has to be called every few seconds, or the programs take us for dead.
    pub fn renew(&mut self) -> Result<(), Error> {
        let until = (since_boot().as_secs() + LEASE) as u32;
        self.set(Watch { until, limit: LIMIT })
    }

    /// What could not be told since we watch: more than the limit, or than the ring holds.
    pub fn lost(&self) -> Result<u64, Error> {
        Ok(self.all_lost()?.saturating_sub(self.before))
    }

    fn all_lost(&self) -> Result<u64, Error> {
        let told = self.told.get(&0, 0).map_err(|error| failed(format!("read the map {TOLD}"), error))?;
        Ok(told.iter().map(|told| told.lost).sum())
    }

    fn set(&mut self, watch: Watch) -> Result<(), Error> {
        self.watch.set(0, watch, 0).map_err(|error| failed(format!("write to the map {WATCH}"), error))
    }
}

impl Drop for Sightings {
    fn drop(&mut self) {
        // Without it, it ends by itself soon.
        let _ended = self.set(Watch::default());
    }
}

/// `CLOCK_MONOTONIC`, which the programs go by.
fn since_boot() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes to a place of ours of the right type. It fails for unknown clocks alone.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn sighting(event: &Event, rules: &RuleNames) -> Sighting {
    let age = since_boot().saturating_sub(Duration::from_nanos(event.at));
    let ip = |address: Address| {
        (event.protocol != 0 || address != Address::default()).then(|| IpAddr::from(address))
    };
    let end = |address, port: Be16, mac| End { ip: ip(address), port: port.get(), mac: Mac(mac) };
    let translated = (event.backend, event.backend_port) != (event.destination, event.destination_port);
    Sighting {
        at: SystemTime::now() - age,
        dropped: reason(event.reason),
        tag: tag(event.segment),
        interface: name(event.ifindex),
        kind: event.kind.get(),
        protocol: event.protocol,
        source: end(event.source, event.source_port, event.source_mac),
        destination: end(event.destination, event.destination_port, event.destination_mac),
        backend: (event.service != 0 && translated).then(|| end(event.backend, event.backend_port, [0; 6])),
        rules: rules.of(event.rules),
        len: event.len,
    }
}

fn reason(number: u32) -> Option<&'static str> {
    if number == 0 {
        return None;
    }
    let known = DropReason::ALL.iter().find(|reason| **reason as u32 == number);
    Some(known.map_or("a reason of another version", |reason| reason.as_str()))
}

fn tag(segment: Segment) -> Option<Tag> {
    match (segment.vni(), segment.tag()) {
        (Some(vni), _) => Some(Tag::Vxlan(vni)),
        (None, 0) => None,
        (None, tag) => Some(Tag::Vlan(tag)),
    }
}

/// Of an interface that is still there.
fn name(ifindex: u32) -> Option<String> {
    (ifindex != 0).then(|| if_indextoname(ifindex).ok()?.into_string().ok()).flatten()
}
