//! GARP and NA announcer: sends gratuitous ARP replies and unsolicited neighbour advertisements on a VLAN when this node
//! starts to answer for a service, and when an endpoint appears on it, so that switches learn the port of the Ethernet
//! address. When another uplink becomes active, it announces the services and the endpoints of this node on that uplink.
//! Each announcement is repeated once: the previous node may still answer for a moment. A thread sends the frames, so the
//! reconciler does not wait.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    net::IpAddr,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use contiv_abi::{Mac, VipKey, service_mac};

use crate::datapath::announcement::{self, Outcomes};

/// Interval between frames. Each frame is flooded to every pod of the network on every node.
const SEND_INTERVAL: Duration = Duration::from_millis(4);
/// Interval between the two announcements of an address (`ANNOUNCE_INTERVAL` in RFC 5227, section 1.1).
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of services that wait for their first announcement: sending more takes longer than four minutes.
const MAX_PENDING: usize = 65_536;

/// An IP address in a VLAN, and the Ethernet address that switches must learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Announcement {
    subject: Subject,
    address: VipKey,
    mac: Mac,
}

/// Owner of the announced address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Subject {
    Service,
    Endpoint,
}

impl Announcement {
    fn service(address: VipKey) -> Announcement {
        Announcement { subject: Subject::Service, address, mac: service_mac(&address.ip) }
    }

    pub(crate) fn endpoint(address: VipKey, mac: Mac) -> Announcement {
        Announcement { subject: Subject::Endpoint, address, mac }
    }
}

/// The services for which this node answers ARP and ND on the uplink, and the thread that announces new ones.
#[derive(Default)]
pub(crate) struct Announcer {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Announces everything when the active uplink changes.
#[derive(Clone)]
pub(crate) struct UplinkAnnouncer(Arc<Shared>);

#[derive(Default)]
struct Shared {
    pending: Mutex<Pending>,
    changed: Condvar,
    services: Outcomes,
    endpoints: Outcomes,
}

#[derive(Default)]
struct Pending {
    /// Answered services; `None` until the services that an earlier process has announced are known.
    answered: Option<HashSet<VipKey>>,
    /// Uplink on which each address must still be announced.
    addresses: HashMap<Announcement, u32>,
    first: VecDeque<Announcement>,
    repeat: VecDeque<(Instant, Announcement)>,
    stopped: bool,
}

impl Announcer {
    /// Replaces the set of answered services, and announces new ones on the interface `uplink`.
    pub(crate) fn replace(&mut self, uplink: u32, answers: HashSet<VipKey>) {
        let before = self.shared.lock().answered.replace(answers.clone());
        if let Some(before) = before {
            let ended: Vec<VipKey> = before.difference(&answers).copied().collect();
            let started: Vec<VipKey> = answers.difference(&before).copied().collect();
            self.enqueue(uplink, &started, &ended);
        }
    }

    /// Updates services; the flag says whether this node answers for the service.
    pub(crate) fn update(&mut self, uplink: u32, changed: impl IntoIterator<Item = (VipKey, bool)>) {
        let (mut started, mut ended) = (vec![], vec![]);
        {
            let mut pending = self.shared.lock();
            let Some(answered) = &mut pending.answered else { return };
            for (service, answers) in changed {
                if answers && answered.insert(service) {
                    started.push(service);
                } else if !answers && answered.remove(&service) {
                    ended.push(service);
                }
            }
        }
        self.enqueue(uplink, &started, &ended);
    }

    /// Announces endpoints on the interface `uplink`.
    pub(crate) fn endpoints(&mut self, uplink: u32, endpoints: Vec<Announcement>) {
        if endpoints.is_empty() || uplink == 0 {
            return;
        }
        {
            let mut pending = self.shared.lock();
            for endpoint in endpoints {
                self.shared.add(&mut pending, uplink, endpoint);
            }
        }
        self.shared.changed.notify_one();
        self.ensure_thread();
    }

    /// Ends the announcement of endpoints that are not `present`.
    pub(crate) fn retain_endpoints(&self, present: impl FnOnce() -> HashSet<Announcement>) {
        let Pending { addresses, .. } = &mut *self.shared.lock();
        let is_service = |announcement: &Announcement| announcement.subject == Subject::Service;
        if !addresses.keys().all(is_service) {
            let present = present();
            addresses.retain(|announcement, _| is_service(announcement) || present.contains(announcement));
        }
    }

    /// Returns the announcer for changes of the active uplink. Starts the thread, which runs in the network namespace of
    /// the caller.
    pub(crate) fn for_uplinks(&mut self) -> UplinkAnnouncer {
        self.ensure_thread();
        UplinkAnnouncer(Arc::clone(&self.shared))
    }

    fn enqueue(&mut self, uplink: u32, started: &[VipKey], ended: &[VipKey]) {
        if started.is_empty() && ended.is_empty() {
            return;
        }
        {
            let mut pending = self.shared.lock();
            for service in ended {
                pending.addresses.remove(&Announcement::service(*service));
            }
            for service in started {
                self.shared.add(&mut pending, uplink, Announcement::service(*service));
            }
        }
        self.shared.changed.notify_one();
        if !started.is_empty() {
            self.ensure_thread();
        }
    }

    fn ensure_thread(&mut self) {
        if self.thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let started = thread::Builder::new().name("announce".to_owned()).spawn(move || shared.run());
            match started {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => tracing::warn!("start the announcer thread: {error}"),
            }
        }
    }

    /// Number of announcements of services, by result.
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        self.shared.services.counts()
    }

    /// Number of announcements of endpoints, by result.
    pub(crate) fn endpoint_counts(&self) -> Vec<(&'static str, u64)> {
        self.shared.endpoints.counts()
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.changed.notify_one();
    }
}

impl UplinkAnnouncer {
    /// Announces the endpoints and all answered services on the new active uplink.
    pub(crate) fn uplink_changed(&self, uplink: u32, endpoints: impl IntoIterator<Item = Announcement>) {
        let mut pending = self.0.lock();
        for pending_on in pending.addresses.values_mut() {
            *pending_on = uplink;
        }
        let services: Vec<_> =
            pending.answered.iter().flatten().copied().map(Announcement::service).collect();
        for announcement in endpoints.into_iter().chain(services) {
            self.0.add(&mut pending, uplink, announcement);
        }
        drop(pending);
        self.0.changed.notify_one();
    }
}

impl Shared {
    fn add(&self, pending: &mut Pending, uplink: u32, announcement: Announcement) {
        // The queue of the thread is full.
        if pending.first.len() >= MAX_PENDING {
            self.outcomes(&announcement).leave_out(1);
            return;
        }
        pending.addresses.insert(announcement, uplink);
        pending.first.push_back(announcement);
    }

    fn outcomes(&self, announcement: &Announcement) -> &Outcomes {
        match announcement.subject {
            Subject::Service => &self.services,
            Subject::Endpoint => &self.endpoints,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends announcements until the announcer is dropped.
    fn run(&self) {
        let mut socket = None;
        let mut last_sent = true;
        while let Some((announcement, uplink)) = self.next() {
            let sent = send(&mut socket, uplink, &frame(&announcement));
            self.outcomes(&announcement).count(sent.is_ok());
            if let Err(error) = &sent
                && last_sent
            {
                let address = IpAddr::from(announcement.address.ip);
                tracing::warn!(
                    "announce {address} on interface {uplink}: {error}; \
                     clients find the address with their next ARP or ND request"
                );
            }
            last_sent = sent.is_ok();
            thread::sleep(SEND_INTERVAL);
        }
    }

    /// Waits for the next announcement, and its uplink. `None` when the announcer has been dropped.
    fn next(&self) -> Option<(Announcement, u32)> {
        let mut pending = self.lock();
        loop {
            if pending.stopped {
                return None;
            }
            if let Some(next) = pending.pop(Instant::now()) {
                return Some(next);
            }
            let due = pending.repeat.front().map(|(due, _)| due.saturating_duration_since(Instant::now()));
            let waited = self.changed.wait_timeout(pending, due.unwrap_or(ANNOUNCE_INTERVAL));
            pending = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Pending {
    fn pop(&mut self, now: Instant) -> Option<(Announcement, u32)> {
        while let Some((_, announcement)) = self.repeat.pop_front_if(|(due, _)| *due <= now) {
            if let Some(uplink) = self.addresses.remove(&announcement) {
                return Some((announcement, uplink));
            }
        }
        while let Some(announcement) = self.first.pop_front() {
            if let Some(uplink) = self.addresses.get(&announcement) {
                self.repeat.push_back((now + ANNOUNCE_INTERVAL, announcement));
                return Some((announcement, *uplink));
            }
        }
        None
    }
}

fn send(socket: &mut Option<OwnedFd>, uplink: u32, frame: &[u8]) -> io::Result<()> {
    let socket = match socket {
        Some(socket) => socket,
        None => socket.insert(open()?),
    };
    // SAFETY: all fields are integers, for which zero is a valid value.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_ifindex = i32::try_from(uplink).map_err(io::Error::other)?;
    // SAFETY: the frame and the address have the given lengths and outlive the call.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            libc::MSG_DONTWAIT,
            (&raw const to).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a packet socket that sends Ethernet frames and receives none.
fn open() -> io::Result<OwnedFd> {
    // SAFETY: creates a descriptor or fails.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// The announcement with the VLAN tag of the network.
fn frame(announcement: &Announcement) -> Vec<u8> {
    let Announcement { address, mac, .. } = *announcement;
    announcement::frame(address.segment.tag(), mac, address.ip.into())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use contiv_abi::{Address, Segment};
    use testkit::packet::{Packet, nd_flags, verify};

    use super::*;

    fn service(ip: impl Into<IpAddr>) -> VipKey {
        VipKey { segment: Segment::vlan(100), ip: Address::from(ip.into()) }
    }

    #[test]
    fn ipv4_services_are_announced_by_arp_replies() {
        let ip = Ipv4Addr::new(10, 1, 1, 250);
        let mac = [2, 2, 10, 1, 1, 250];
        let expected = Packet::eth([0xff; 6], mac).vlan(100).arp(2, (mac, ip), ([0xff; 6], ip));
        assert_eq!(frame(&Announcement::service(service(ip))), expected.build());
    }

    #[test]
    fn ipv6_services_are_announced_by_advertisements_with_checksum() {
        let ip: Ipv6Addr = "fd00::fa".parse().unwrap();
        let frame = frame(&Announcement::service(service(ip)));
        verify(&frame).unwrap();
        assert_eq!(frame[14..18], [0, 100, 0x86, 0xdd]);
        let flags_at = 18 + 40 + 4;
        assert_eq!(frame[flags_at], nd_flags::OVERRIDE);
        assert_eq!(frame[flags_at + 4..flags_at + 20], ip.octets());
    }

    #[test]
    fn a_service_is_announced_twice_while_the_node_answers_for_it() {
        let [a, b] = [1, 2].map(|n| Announcement::service(service([10, 1, 1, n])));
        let mut pending =
            Pending { addresses: [(a, 7), (b, 7)].into(), first: [a, b].into(), ..Pending::default() };
        let now = Instant::now();
        assert_eq!(
            [pending.pop(now), pending.pop(now), pending.pop(now)],
            [Some((a, 7)), Some((b, 7)), None]
        );
        pending.addresses.remove(&a);
        let later = now + ANNOUNCE_INTERVAL;
        assert_eq!([pending.pop(later), pending.pop(later)], [Some((b, 7)), None]);
        assert!(pending.addresses.is_empty());
    }

    #[test]
    fn services_of_an_earlier_process_are_not_announced() {
        let [a, b] = [1, 2].map(|n| service([10, 1, 1, n]));
        // The test must not send frames, so no thread may run.
        let mut announcer = Announcer::default();
        announcer.update(7, [(a, true)]);
        announcer.replace(7, [a].into());
        announcer.update(7, [(a, true), (b, false)]);
        assert!(announcer.thread.is_none() && announcer.shared.lock().addresses.is_empty());
        announcer.update(7, [(a, false)]);
        assert_eq!(announcer.shared.lock().answered, Some([].into()));
    }

    #[test]
    fn a_new_active_uplink_gets_all_announcements() {
        let [a, b] = [1, 2].map(|n| service([10, 1, 1, n]));
        let announcer = Announcer::default();
        *announcer.shared.lock() = Pending {
            answered: Some([a].into()),
            addresses: [(Announcement::service(b), 7)].into(),
            first: [Announcement::service(b)].into(),
            ..Pending::default()
        };
        let endpoint = Announcement::endpoint(service([10, 1, 1, 3]), [2, 0, 0, 0, 0, 3]);
        UplinkAnnouncer(Arc::clone(&announcer.shared)).uplink_changed(8, [endpoint]);
        let mut pending = announcer.shared.lock();
        let all = [b, a].map(Announcement::service);
        let popped: Vec<_> = std::iter::from_fn(|| pending.pop(Instant::now())).collect();
        assert_eq!(popped, [(all[0], 8), (endpoint, 8), (all[1], 8)]);
    }

    #[test]
    fn an_endpoint_that_has_gone_is_not_announced_and_services_are() {
        // The endpoint has the IP address and the Ethernet address of the service.
        let address = service([10, 1, 1, 1]);
        let [vip, gone] =
            [Announcement::service(address), Announcement::endpoint(address, service_mac(&address.ip))];
        let here = Announcement::endpoint(service([10, 1, 1, 2]), [2, 0, 0, 0, 0, 2]);
        let announcer = Announcer::default();
        *announcer.shared.lock() = Pending {
            addresses: [vip, gone, here].map(|announcement| (announcement, 7)).into(),
            first: [gone, vip, here].into(),
            ..Pending::default()
        };
        announcer.retain_endpoints(|| [here].into());
        let mut pending = announcer.shared.lock();
        let popped: Vec<_> = std::iter::from_fn(|| pending.pop(Instant::now())).collect();
        assert_eq!(popped, [(vip, 7), (here, 7)]);
    }
}
