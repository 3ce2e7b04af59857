//! The active uplink: one of several interfaces carries the VLAN networks, and the others are standby.
//!
//! The active uplink stays active as long as it has a carrier. Otherwise the first uplink in the configured order that
//! has a carrier becomes active. A task changes it as soon as the kernel reports the carrier, independently of the
//! reconciler, and announces the endpoints of this node on the new one, because the switches have learned their Ethernet
//! addresses on the other.

use std::{
    collections::HashMap as StdHashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use aya::maps::{Array, HashMap, MapData};
use contiv_abi::{
    Address, Mac, Port, Segment, VipKey,
    maps::{PORTS, UPLINK},
};

use super::{
    device::InterfaceMonitor,
    failure::failed,
    maps::{pins::Pins, writes::Writes},
    service::announcer::{Announcement, Announcer, UplinkAnnouncer},
};
use crate::{datapath::Error, error::one_line};

/// The active uplink in the kernel, and the task that changes it.
#[derive(Default)]
pub(super) struct Uplinks {
    shared: Option<Arc<Mutex<Shared>>>,
    task: Option<tokio::task::JoinHandle<()>>,
}

struct Shared {
    uplinks: Carriers,
    active: Array<MapData, u32>,
    ports: HashMap<MapData, u32, Port>,
    announcer: UplinkAnnouncer,
    writes: Writes,
}

impl Uplinks {
    /// Starts to watch the carriers if more than one uplink is `configured`. States that are read from then on are passed
    /// to [`Reading::finish`].
    pub(super) fn watch(
        &mut self,
        pins: &Pins,
        configured: usize,
        announcer: &mut Announcer,
        writes: &Writes,
    ) -> Result<Reading, Error> {
        let shared = match &self.shared {
            Some(shared) => Arc::clone(shared),
            None => Arc::clone(self.shared.insert(Arc::new(Mutex::new(Shared {
                uplinks: Carriers::default(),
                active: pins.open_map(UPLINK)?,
                ports: pins.open_map(PORTS)?,
                announcer: announcer.for_uplinks(),
                writes: writes.clone(),
            })))),
        };
        // This precedes the reading, so that either the monitor or the reading sees each change.
        if configured > 1 && self.task.as_ref().is_none_or(|task| task.is_finished()) {
            let monitor = InterfaceMonitor::open()?;
            self.task = Some(tokio::spawn(watch(monitor, Arc::clone(&shared))));
        }
        lock(&shared).uplinks.begin_read();
        Ok(Reading(shared))
    }

    /// Index of the active uplink; zero if there is none.
    pub(super) fn active(&self) -> Result<u32, Error> {
        self.shared.as_ref().map_or(Ok(0), |shared| lock(shared).active())
    }
}

/// Carriers are being read, while the kernel reports their changes.
#[must_use]
pub(super) struct Reading(Arc<Mutex<Shared>>);

impl Reading {
    /// Selects the active uplink. `uplinks` are the indexes in the order of preference, and whether each had a carrier when it was
    /// read.
    pub(super) fn finish(self, uplinks: &[(u32, bool)]) -> Result<(), Error> {
        let mut shared = lock(&self.0);
        shared.uplinks.end_read(uplinks);
        shared.select()
    }
}

impl Drop for Uplinks {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn watch(mut monitor: InterfaceMonitor, shared: Arc<Mutex<Shared>>) {
    while let Some((ifindex, has_carrier)) = monitor.next().await {
        let mut shared = lock(&shared);
        if shared.uplinks.report(ifindex, has_carrier)
            && let Err(error) = shared.select()
        {
            tracing::warn!("change the active VLAN uplink: {}", one_line(&error));
        }
    }
}

impl Shared {
    fn active(&self) -> Result<u32, Error> {
        self.active.get(&0, 0).map_err(|error| failed(format!("read the map {UPLINK}"), error))
    }

    fn select(&mut self) -> Result<(), Error> {
        let before = self.active()?;
        let active = self.uplinks.select(before);
        if active == before {
            return Ok(());
        }
        self.writes.count();
        self.active.set(0, active, 0).map_err(|error| failed(format!("write to the map {UPLINK}"), error))?;
        // At the first start, switches cannot have learned addresses on another uplink.
        if before != 0 && active != 0 {
            tracing::warn!("interface {active} is the active VLAN uplink instead of interface {before}");
            let ports = self.ports.iter().filter_map(Result::ok).map(|(_, port)| port);
            self.announcer.uplink_changed(active, announcements(ports));
        }
        Ok(())
    }
}

/// One announcement for each Ethernet address in a VLAN.
fn announcements(ports: impl Iterator<Item = Port>) -> Vec<Announcement> {
    let on_vlans = ports.filter(|port| port.segment.vni().is_none());
    let addresses: StdHashMap<(Segment, Mac), Address> = on_vlans
        .map(|port| {
            let ip = if port.ip == [0; 4] { port.ip6 } else { Address::v4(port.ip) };
            ((port.segment, port.mac), ip)
        })
        .collect();
    let announcement = |((segment, mac), ip)| Announcement::endpoint(VipKey { segment, ip }, mac);
    addresses.into_iter().map(announcement).collect()
}

#[derive(Debug, Default)]
struct Carriers {
    /// Indexes of the uplinks in the order of preference, and whether each has a carrier.
    uplinks: Vec<(u32, bool)>,
    /// Reports about all interfaces since a reading began; `None` after the reading has ended.
    reported: Option<StdHashMap<u32, bool>>,
}

impl Carriers {
    fn begin_read(&mut self) {
        self.reported = Some(StdHashMap::new());
    }

    /// Replaces the uplinks with those that were read. A report since the beginning of the reading takes precedence: it
    /// may be newer. If the carrier was read after another change, a report of that change follows.
    fn end_read(&mut self, read: &[(u32, bool)]) {
        let reported = self.reported.take().unwrap_or_default();
        let newest = |&(uplink, has_carrier): &(u32, bool)| {
            (uplink, reported.get(&uplink).copied().unwrap_or(has_carrier))
        };
        self.uplinks = read.iter().map(newest).collect();
    }

    /// Records a carrier. True if it has changed.
    fn report(&mut self, ifindex: u32, has_carrier: bool) -> bool {
        if let Some(reported) = &mut self.reported {
            reported.insert(ifindex, has_carrier);
        }
        match self.uplinks.iter_mut().find(|(uplink, _)| *uplink == ifindex) {
            Some((_, recorded)) => std::mem::replace(recorded, has_carrier) != has_carrier,
            None => false,
        }
    }

    /// Returns the active uplink after `active`; zero if there are none. If no uplink has a carrier, nothing changes.
    fn select(&self, active: u32) -> u32 {
        let usable = |(_, has_carrier): &&(u32, bool)| *has_carrier;
        let exists = self.uplinks.iter().any(|(uplink, _)| *uplink == active);
        if self.uplinks.iter().filter(usable).any(|(uplink, _)| *uplink == active) {
            return active;
        }
        match self.uplinks.iter().find(usable) {
            Some((uplink, _)) => *uplink,
            None if exists => active,
            None => self.uplinks.first().map_or(0, |(uplink, _)| *uplink),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carriers(read: &[(u32, bool)]) -> Carriers {
        let mut carriers = Carriers::default();
        carriers.end_read(read);
        carriers
    }

    #[test]
    fn the_active_uplink_stays_while_it_has_a_carrier() {
        for (read, before, after) in [
            // First start: the first one with a carrier, or the first one.
            (&[(4, true), (5, true)][..], 0, 4),
            (&[(4, false), (5, true)], 0, 5),
            (&[(4, false), (5, false)], 0, 4),
            // It does not return to a preferred uplink.
            (&[(4, true), (5, true)], 5, 5),
            (&[(4, true), (5, false)], 5, 4),
            // No carrier at all.
            (&[(4, false), (5, false)], 5, 5),
            // The active uplink is no longer configured, or none is.
            (&[(4, true)], 5, 4),
            (&[], 5, 0),
        ] {
            assert_eq!(carriers(read).select(before), after, "{read:?} after {before}");
        }
    }

    #[test]
    fn only_changes_of_uplinks_are_reported() {
        let mut carriers = carriers(&[(4, true), (5, true)]);
        assert_eq!(
            [(4, true), (6, false), (5, false), (5, false)].map(|(i, c)| carriers.report(i, c)),
            [false, false, true, false]
        );
    }

    #[test]
    fn reports_are_newer_than_what_was_read_meanwhile() {
        let mut carriers = carriers(&[(4, true), (5, true)]);
        carriers.begin_read();
        // Both were read before their change.
        carriers.report(4, false);
        carriers.report(6, true);
        carriers.end_read(&[(4, true), (5, true), (6, false)]);
        assert_eq!(carriers.uplinks, [(4, false), (5, true), (6, true)]);
        assert_eq!(carriers.select(4), 5);
        // Reports before a reading do not count: a later one may have been lost.
        carriers.begin_read();
        carriers.end_read(&[(4, true), (5, false), (6, true)]);
        assert_eq!(carriers.uplinks, [(4, true), (5, false), (6, true)]);
    }
}
