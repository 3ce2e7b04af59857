//! Telling the wire of a VLAN that a service is here now: switches send what is for its Ethernet address to where they
//! have last heard from it, and clients go on using what they know.
//!
//! What is announced is an *answer* that nobody asked for: the node that answered before may still do so for a moment, and
//! would reply to a question, upon which the switches would send everything back to it. For the same moment everything is
//! announced a second time. Both go out by a thread of their own, so that nobody waits for the wire.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use contiv_abi::{Mac, NeighKey, maps::VIPS_CAPACITY, service_mac};

/// Between two announcements: each is a frame for every pod of the network on every node.
const PACE: Duration = Duration::from_millis(4);
/// Until an address is announced for the second time (`ANNOUNCE_INTERVAL` of RFC 5227 1.1).
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// The services that this node answers for on the wire, and the thread that announces those that are new.
#[derive(Default)]
pub(crate) struct Herald {
    /// None before it is known what an earlier run answered for: that has been announced.
    answered: Option<HashSet<NeighKey>>,
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    pending: Mutex<Pending>,
    changed: Condvar,
    sent: AtomicU64,
    failed: AtomicU64,
    left_out: AtomicU64,
}

#[derive(Default)]
struct Pending {
    /// By which interface each is still to be announced.
    wanted: HashMap<NeighKey, u32>,
    first: VecDeque<NeighKey>,
    again: VecDeque<(Instant, NeighKey)>,
    over: bool,
}

impl Herald {
    /// Takes note of all services that the node answers for; those that are new are announced by the interface `uplink`.
    pub(crate) fn compare(&mut self, uplink: u32, answers: HashSet<NeighKey>) {
        if let Some(before) = &self.answered {
            let ended: Vec<NeighKey> = before.difference(&answers).copied().collect();
            let begun: Vec<NeighKey> = answers.difference(before).copied().collect();
            self.tell(uplink, &begun, &ended);
        }
        self.answered = Some(answers);
    }

    /// Takes note of services about which something has changed, and whether the node answers for them.
    pub(crate) fn note(&mut self, uplink: u32, changed: impl IntoIterator<Item = (NeighKey, bool)>) {
        let Some(answered) = &mut self.answered else { return };
        let (mut begun, mut ended) = (vec![], vec![]);
        for (service, answers) in changed {
            if answers && answered.insert(service) {
                begun.push(service);
            } else if !answers && answered.remove(&service) {
                ended.push(service);
            }
        }
        self.tell(uplink, &begun, &ended);
    }

    fn tell(&mut self, uplink: u32, begun: &[NeighKey], ended: &[NeighKey]) {
        if begun.is_empty() && ended.is_empty() {
            return;
        }
        {
            let mut pending = self.shared.lock();
            for service in ended {
                pending.wanted.remove(service);
            }
            for service in begun {
                // Somebody who cannot keep up is not helped by more.
                if pending.first.len() >= VIPS_CAPACITY {
                    self.shared.left_out.fetch_add(1, Relaxed);
                    continue;
                }
                pending.wanted.insert(*service, uplink);
                pending.first.push_back(*service);
            }
        }
        self.shared.changed.notify_one();
        if !begun.is_empty() && self.thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let started = thread::Builder::new().name("announce".to_owned()).spawn(move || shared.run());
            match started {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => tracing::warn!("announce services on the wire: start a thread: {error}"),
            }
        }
    }

    /// What has become of announcements.
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        let Shared { sent, failed, left_out, .. } = &*self.shared;
        [("sent", sent), ("failed", failed), ("left-out", left_out)]
            .map(|(name, n)| (name, n.load(Relaxed)))
            .into()
    }
}

impl Drop for Herald {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until the end.
    fn run(&self) {
        let mut socket = None;
        let mut was_well = true;
        while let Some((service, uplink)) = self.next() {
            let sent = send(&mut socket, uplink, &frame(&service));
            match &sent {
                Ok(()) => self.sent.fetch_add(1, Relaxed),
                Err(_) => self.failed.fetch_add(1, Relaxed),
            };
            if let Err(error) = &sent
                && was_well
            {
                let address = IpAddr::from(service.ip);
                tracing::warn!(
                    "announce {address} on the wire (interface {uplink}): {error}; \
                     the wire finds it when clients ask for it again"
                );
            }
            was_well = sent.is_ok();
            thread::sleep(PACE);
        }
    }

    /// What is to be announced next, and by which interface; none at the end.
    fn next(&self) -> Option<(NeighKey, u32)> {
        let mut pending = self.lock();
        loop {
            if pending.over {
                return None;
            }
            if let Some(next) = pending.take(Instant::now()) {
                return Some(next);
            }
            let due = pending.again.front().map(|(due, _)| due.saturating_duration_since(Instant::now()));
            let waited = self.changed.wait_timeout(pending, due.unwrap_or(AGAIN_AFTER));
            pending = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Pending {
    fn take(&mut self, now: Instant) -> Option<(NeighKey, u32)> {
        while let Some((_, service)) = self.again.pop_front_if(|(due, _)| *due <= now) {
            if let Some(uplink) = self.wanted.remove(&service) {
                return Some((service, uplink));
            }
        }
        while let Some(service) = self.first.pop_front() {
            if let Some(uplink) = self.wanted.get(&service) {
                self.again.push_back((now + AGAIN_AFTER, service));
                return Some((service, *uplink));
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
    // SAFETY: plain numbers, for which all zeros is a value.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_ifindex = i32::try_from(uplink).map_err(io::Error::other)?;
    // SAFETY: the frame and the address are as long as the lengths say, and outlive the call.
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

/// For whole frames. Receives nothing.
fn open() -> io::Result<OwnedFd> {
    // SAFETY: makes a new descriptor or fails.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

const BROADCAST: Mac = [0xff; 6];
const VLAN: u16 = 0x8100;

/// A reply for everybody (RFC 5227 3), or an advertisement that nobody asked for (RFC 4861 7.2.6), with the tag of the
/// network.
fn frame(service: &NeighKey) -> Vec<u8> {
    let mac = service_mac(&service.ip);
    let (to, kind, body) = match IpAddr::from(service.ip) {
        IpAddr::V4(ip) => (BROADCAST, 0x0806_u16, arp(mac, ip)),
        IpAddr::V6(ip) => ([0x33, 0x33, 0, 0, 0, 1], 0x86dd, advertisement(mac, ip)),
    };
    let mut frame = [&to[..], &mac].concat();
    for word in [VLAN, service.segment.tag(), kind] {
        frame.extend(word.to_be_bytes());
    }
    frame.extend(body);
    frame
}

fn arp(mac: Mac, ip: Ipv4Addr) -> Vec<u8> {
    const ETHERNET_IPV4_REPLY: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 2];
    [&ETHERNET_IPV4_REPLY[..], &mac, &ip.octets(), &BROADCAST, &ip.octets()].concat()
}

fn advertisement(mac: Mac, ip: Ipv6Addr) -> Vec<u8> {
    const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    const LEN: u8 = 32;
    const ICMPV6: u8 = 58;
    const HOPS: u8 = 255;
    const OVERRIDE: u8 = 0x20;
    let mut message = [&[136, 0, 0, 0, OVERRIDE, 0, 0, 0][..], &ip.octets(), &[2, 1], &mac].concat();
    let pseudo = [&ip.octets()[..], &ALL_NODES.octets(), &[0, 0, 0, LEN, 0, 0, 0, ICMPV6]].concat();
    let words = pseudo.chunks_exact(2).chain(message.chunks_exact(2));
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    message[2..4].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    let header = [&[0x60, 0, 0, 0, 0, LEN, ICMPV6, HOPS][..], &ip.octets(), &ALL_NODES.octets()].concat();
    [header, message].concat()
}

#[cfg(test)]
mod tests {
    use contiv_abi::{Address, Segment};
    use testkit::packet::{Packet, nd_flags, verify};

    use super::*;

    fn service(ip: impl Into<IpAddr>) -> NeighKey {
        NeighKey { segment: Segment::vlan(100), ip: Address::from(ip.into()) }
    }

    #[test]
    fn the_wire_hears_whose_address_it_is() {
        let ip = Ipv4Addr::new(10, 1, 1, 250);
        let mac = [2, 2, 10, 1, 1, 250];
        let expected = Packet::eth(BROADCAST, mac).vlan(100).arp(2, (mac, ip), (BROADCAST, ip));
        assert_eq!(frame(&service(ip)), expected.build());
    }

    #[test]
    fn and_of_ipv6_with_a_checksum() {
        let ip: Ipv6Addr = "fd00::fa".parse().unwrap();
        let frame = frame(&service(ip));
        verify(&frame).unwrap();
        assert_eq!(frame[14..18], [0, 100, 0x86, 0xdd]);
        let flags_at = 18 + 40 + 4;
        assert_eq!(frame[flags_at], nd_flags::OVERRIDE);
        assert_eq!(frame[flags_at + 4..flags_at + 20], ip.octets());
    }

    #[test]
    fn each_is_announced_twice_unless_it_has_gone_elsewhere() {
        let [a, b] = [1, 2].map(|n| service([10, 1, 1, n]));
        let mut pending =
            Pending { wanted: [(a, 7), (b, 7)].into(), first: [a, b].into(), ..Pending::default() };
        let now = Instant::now();
        assert_eq!(
            [pending.take(now), pending.take(now), pending.take(now)],
            [Some((a, 7)), Some((b, 7)), None]
        );
        pending.wanted.remove(&a);
        let later = now + AGAIN_AFTER;
        assert_eq!([pending.take(later), pending.take(later)], [Some((b, 7)), None]);
        assert!(pending.wanted.is_empty());
    }

    #[test]
    fn what_an_earlier_run_answered_for_is_not_announced() {
        let [a, b] = [1, 2].map(|n| service([10, 1, 1, n]));
        // Its thread would send: nothing is to be sent here.
        let mut herald = Herald::default();
        herald.note(7, [(a, true)]);
        herald.compare(7, [a].into());
        herald.note(7, [(a, true), (b, false)]);
        assert!(herald.thread.is_none() && herald.shared.lock().wanted.is_empty());
        herald.note(7, [(a, false)]);
        assert_eq!(herald.answered, Some([].into()));
    }
}
