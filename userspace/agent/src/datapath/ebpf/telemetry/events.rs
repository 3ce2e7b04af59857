//! Packet events, which the programs report while there is a subscriber.

use std::{
    net::IpAddr,
    time::{Duration, SystemTime},
};

use aya::maps::{Array, MapData, PerCpuArray, RingBuf};
use contiv_abi::{
    Address, Be16, DropReason, Event, EventState, Segment, Watch,
    maps::{EVENT_STATE, EVENTS, WATCH},
};
use contiv_model::mac::Mac;
use futures::future::BoxFuture;
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
    telemetry::{Connection, Counters, PacketAddress, PacketEvent, PacketEvents, Tag, Telemetry},
};

/// Maximum number of events per CPU and second.
const EVENTS_PER_SECOND: u32 = 500;
/// Seconds after the last renewal during which the programs report events.
const LEASE: u64 = 5;

/// Access to counters and packet events through the pinned maps, independent of the datapath's own handles.
#[derive(Clone, Debug)]
pub(crate) struct MapTelemetry {
    pins: Pins,
    rules: RuleNames,
    services: ServiceNames,
}

impl MapTelemetry {
    pub(crate) fn new(pins: Pins, rules: RuleNames, services: ServiceNames) -> MapTelemetry {
        MapTelemetry { pins, rules, services }
    }
}

impl Telemetry for MapTelemetry {
    fn counters(&self) -> Result<Counters, Error> {
        // Programs of another ABI version forward, or none forward yet.
        if !self.pins.has_maps() {
            return Ok(Counters::default());
        }
        counters::read(&self.pins, &self.rules, &self.services)
    }

    fn connections(&self) -> Result<Vec<Connection>, Error> {
        connections::to_services(&self.pins)
    }

    /// All subscribers share one ring buffer: an event that one of them reads is lost for the others.
    fn subscribe(&self) -> Result<Box<dyn PacketEvents>, Error> {
        let mut ring: RingBuf<MapData> = self.pins.open_map(EVENTS)?;
        // Discard events of an earlier subscription.
        while ring.next().is_some() {}
        // SAFETY: the ring owns its descriptor and keeps it open.
        let ring = unsafe { AsyncFd::register(ring) }
            .map_err(|error| failed(format!("wait for the map {EVENTS}"), error))?;
        let mut subscription = Subscription {
            ring,
            watch: self.pins.open_map(WATCH)?,
            reported: self.pins.open_map(EVENT_STATE)?,
            lost_before: 0,
            rules: self.rules.clone(),
        };
        subscription.lost_before = subscription.total_lost()?;
        subscription.renew()?;
        Ok(Box::new(subscription))
    }
}

/// Packet events read from the programs' ring buffer.
struct Subscription {
    ring: AsyncFd<RingBuf<MapData>>,
    watch: Array<MapData, Watch>,
    reported: PerCpuArray<MapData, EventState>,
    /// Events lost before the subscription.
    lost_before: u64,
    rules: RuleNames,
}

impl Subscription {
    async fn read(&mut self) -> Result<PacketEvent, Error> {
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
                Some(event) => return Ok(packet_event(&event, &self.rules)),
                None => ready.clear_ready(),
            }
        }
    }

    fn total_lost(&self) -> Result<u64, Error> {
        let reported =
            self.reported.get(&0, 0).map_err(|error| failed(format!("read the map {EVENT_STATE}"), error))?;
        Ok(reported.iter().map(|cpu| cpu.lost).sum())
    }

    fn set(&mut self, watch: Watch) -> Result<(), Error> {
        self.watch.set(0, watch, 0).map_err(|error| failed(format!("write to the map {WATCH}"), error))
    }
}

impl PacketEvents for Subscription {
    fn next(&mut self) -> BoxFuture<'_, Result<PacketEvent, Error>> {
        Box::pin(self.read())
    }

    fn renew(&mut self) -> Result<(), Error> {
        let until = (since_boot().as_secs() + LEASE) as u32;
        self.set(Watch { until, limit: EVENTS_PER_SECOND })
    }

    fn lost(&self) -> Result<u64, Error> {
        Ok(self.total_lost()?.saturating_sub(self.lost_before))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // After an error, the lease expires.
        let _result = self.set(Watch::default());
    }
}

/// `CLOCK_MONOTONIC`, the clock of the programs.
pub(crate) fn since_boot() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the structure; the call fails only for unknown clocks.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn packet_event(event: &Event, rules: &RuleNames) -> PacketEvent {
    let age = since_boot().saturating_sub(Duration::from_nanos(event.at));
    let ip = |address: Address| {
        (event.protocol != 0 || address != Address::default()).then(|| IpAddr::from(address))
    };
    let address =
        |ip_address, port: Be16, mac| PacketAddress { ip: ip(ip_address), port: port.get(), mac: Mac(mac) };
    let translated = (event.backend, event.backend_port) != (event.destination, event.destination_port);
    PacketEvent {
        at: SystemTime::now() - age,
        dropped: reason(event.reason),
        tag: tag(event.segment),
        interface: name(event.ifindex),
        ethertype: event.kind.get(),
        protocol: event.protocol,
        source: address(event.source, event.source_port, event.source_mac),
        destination: address(event.destination, event.destination_port, event.destination_mac),
        backend: (event.service != 0 && translated)
            .then(|| address(event.backend, event.backend_port, [0; 6])),
        rules: rules.lookup(event.rules),
        len: event.len,
    }
}

fn reason(number: u32) -> Option<&'static str> {
    if number == 0 {
        return None;
    }
    let known = DropReason::ALL.iter().find(|reason| **reason as u32 == number);
    Some(known.map_or("unknown", |reason| reason.as_str()))
}

fn tag(segment: Segment) -> Option<Tag> {
    match (segment.vni(), segment.tag()) {
        (Some(vni), _) => Some(Tag::Vxlan(vni)),
        (None, 0) => None,
        (None, tag) => Some(Tag::Vlan(tag)),
    }
}

/// Name of an interface; `None` if it does not exist any more.
fn name(ifindex: u32) -> Option<String> {
    (ifindex != 0).then(|| if_indextoname(ifindex).ok()?.into_string().ok()).flatten()
}
