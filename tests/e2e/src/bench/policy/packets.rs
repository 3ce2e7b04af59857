//! Interleaved packets of two pods, whose groups have one rule and many rules: both are measured with the same state of the
//! kernel and of the CPU caches.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use serde::Serialize;
use testkit::packet::{Packet, mac, tcp_flags};

use super::rules::{OPEN, Peers, Sort};
use crate::{
    bench::pinned::{self, Lines, Target, interleaved, median},
    cluster::{Node, Pod},
    interrupt,
};

const FROM_POD: &str = "ctv_from_pod";
const DROPPED: u32 = 2;
const REDIRECTED: u32 = 7;
const CLIENT_PORT: u16 = 999;

/// Kind of packet.
#[derive(Clone, Copy, Debug)]
enum Sent {
    /// Packet of an established connection.
    Known,
    /// First packet of a connection that no rule matches. It creates a flow.
    First,
    /// Packet that a rule denies.
    Denied,
}

/// Nanoseconds of one round, for each assignment of rules to pods; the first of a pair is for one rule.
#[derive(Debug, Default)]
pub(super) struct Round {
    floor: Vec<f64>,
    known: Vec<[f64; 2]>,
    first: Vec<[f64; 2]>,
    denied: Vec<[f64; 2]>,
    /// Only for many rules.
    denied_anywhere: Vec<f64>,
    lines: Vec<f64>,
}

/// Nanoseconds per packet.
#[derive(Debug, Serialize)]
pub(super) struct Compared {
    pub(super) one: f64,
    pub(super) many: f64,
    /// Median, minimum and maximum of the differences of all rounds.
    pub(super) more: f64,
    pub(super) more_least: f64,
    pub(super) more_most: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Medians {
    /// Empty program.
    pub(super) floor_ns: f64,
    pub(super) known_ns: Compared,
    pub(super) first_ns: Compared,
    /// Denied to one destination, by a rule that both groups have.
    pub(super) denied_ns: Compared,
    /// Denied by a different rule each time, of the rules that match TCP packets from this pod.
    pub(super) denied_anywhere_ns: Option<f64>,
    /// One cache line of an array with the size of the rule trees, interleaved with the packets of the previous
    /// column.
    pub(super) line_ns: Option<f64>,
}

/// Pods with rules, and their peers.
pub(super) struct Bench<'a> {
    pub(super) node: &'a Node,
    pub(super) sort: Sort,
    /// Pods with one rule and with many rules.
    pub(super) clients: [&'a Pod; 2],
    pub(super) peers: Peers<&'a Pod>,
    pub(super) rules: usize,
    /// Number of earlier connections; source ports are not reused.
    pub(super) before: usize,
    /// Size of the rule trees in bytes.
    pub(super) bytes: u64,
}

impl Bench<'_> {
    /// Adds the measurements of this assignment of rules to each round.
    pub(super) fn measure(&self, rounds: &mut [Round], calls: usize) -> Result<()> {
        pinned::pin_thread()?;
        let pin = pinned::find(self.node.pins(), FROM_POD)?;
        let open = |pod: &Pod| Target::open(&pin, pinned::port_of(pod)?);
        let clients = [open(self.clients[0])?, open(self.clients[1])?];
        let empty = self.node.pins().join("empty");
        if !empty.exists() {
            pinned::pin_empty(&empty)?;
        }
        let interface = pinned::port_of(self.clients[0])?;
        let floor = Target::open(&empty, interface)?;
        let lines = Lines::open(&self.node.pins().join("lines"), self.bytes, interface)?;
        self.establish(&clients, &open(self.peers.server)?)?;
        let ends = Peers { server: self.peers.server.ip, member: self.peers.member.ip };
        let deny = |number| self.sort.denied(number, &ends);
        let there: Vec<(Ipv4Addr, u16)> =
            (0..self.rules).filter(|number| self.sort.denies_many(*number)).map(deny).collect();
        let mut out = vec![0; 256];
        // The first match of a rule allocates its counter, which takes microseconds.
        let mut frame = self.frame(1, tcp_flags::SYN);
        for end in &there {
            to(&mut frame, *end);
            clients[1].run(&frame, &mut out)?;
        }
        for (number, round) in rounds.iter_mut().enumerate() {
            interrupt::check()?;
            let done = number * calls;
            let mut frame = self.frame(0, tcp_flags::ACK);
            round.floor.extend(interleaved::<1>(calls, |_, _| Ok(floor.run(&frame, &mut out)?.1))?);
            for (sent, series) in [
                (Sent::Known, &mut round.known),
                (Sent::First, &mut round.first),
                (Sent::Denied, &mut round.denied),
            ] {
                let (flags, expected) = match sent {
                    Sent::Known => (tcp_flags::ACK, REDIRECTED),
                    Sent::First => (tcp_flags::SYN, REDIRECTED),
                    // Without rules nothing is denied.
                    Sent::Denied if self.rules == 0 => continue,
                    Sent::Denied => (tcp_flags::SYN, DROPPED),
                };
                let mut frames = [0, 1].map(|client| self.frame(client, flags));
                if let Sent::Denied = sent {
                    frames.iter_mut().for_each(|frame| to(frame, deny(0)));
                }
                series.push(interleaved(calls, |side, number| {
                    let frame = &mut frames[side];
                    if let Sent::First = sent {
                        another(frame, self.before + done + number);
                    }
                    let (code, took) = clients[side].run(frame, &mut out)?;
                    ensure!(
                        code == expected,
                        "unexpected code {code} for {sent:?} with {} rules of kind {}",
                        [1, self.rules][side],
                        self.sort.name()
                    );
                    Ok(took)
                })?);
            }
            if there.is_empty() {
                continue;
            }
            frame = self.frame(1, tcp_flags::SYN);
            let mut line = frame.clone();
            let [denied, read] = interleaved(calls, |side, number| {
                let number = (done + number) as u32;
                if side == 1 {
                    return lines.read(number, &mut line, &mut out);
                }
                to(&mut frame, there[pinned::spread(number) as usize % there.len()]);
                let (code, took) = clients[1].run(&frame, &mut out)?;
                ensure!(code == DROPPED, "unexpected code {code} for a denied packet");
                Ok(took)
            })?;
            let floor = round.floor.last().copied().unwrap_or(f64::NAN);
            round.denied_anywhere.push(denied);
            round.lines.push((read - floor) / f64::from(Lines::COUNT));
        }
        Ok(())
    }

    /// Frame from a client to the server.
    fn frame(&self, client: usize, flags: u8) -> Vec<u8> {
        let (client, server) = (self.clients[client], self.peers.server);
        Packet::eth(mac(&server.mac), mac(&client.mac))
            .ipv4(client.ip, server.ip)
            .tcp(CLIENT_PORT, OPEN, flags)
            .build()
    }

    fn establish(&self, clients: &[Target; 2], server: &Target) -> Result<()> {
        let mut out = vec![0; 256];
        for (client, target) in clients.iter().enumerate() {
            let (pod, peer) = (self.clients[client], self.peers.server);
            let answer = Packet::eth(mac(&pod.mac), mac(&peer.mac)).ipv4(peer.ip, pod.ip).tcp(
                OPEN,
                CLIENT_PORT,
                tcp_flags::SYN | tcp_flags::ACK,
            );
            let opening = self.frame(client, tcp_flags::SYN);
            for (target, frame) in [(target, opening), (server, answer.build())] {
                let (code, _) = target.run(&frame, &mut out)?;
                ensure!(code == REDIRECTED, "unexpected code {code} for an allowed connection");
            }
        }
        Ok(())
    }
}

impl Round {
    /// Medians over rounds; each round has both assignments.
    pub(super) fn medians(rounds: &[Round]) -> Medians {
        let all = |series: fn(&Round) -> &Vec<f64>| {
            let all: Vec<f64> = rounds.iter().flat_map(series).copied().collect();
            (!all.is_empty()).then(|| median(all))
        };
        let compared = |series: fn(&Round) -> &Vec<[f64; 2]>| {
            let side =
                |side: usize| median(rounds.iter().flat_map(series).map(|sides| sides[side]).collect());
            let more: Vec<f64> = rounds
                .iter()
                .map(series)
                .map(|halves| halves.iter().map(|[one, many]| many - one).sum::<f64>() / halves.len() as f64)
                .collect();
            let [least, most] =
                [f64::min, f64::max].map(|choose| more.iter().copied().reduce(choose).unwrap_or(f64::NAN));
            Compared { one: side(0), many: side(1), more: median(more), more_least: least, more_most: most }
        };
        Medians {
            floor_ns: all(|round| &round.floor).unwrap_or(f64::NAN),
            known_ns: compared(|round| &round.known),
            first_ns: compared(|round| &round.first),
            denied_ns: compared(|round| &round.denied),
            denied_anywhere_ns: all(|round| &round.denied_anywhere),
            line_ns: all(|round| &round.lines),
        }
    }
}

/// Sets destination address and port of a frame. The programs do not verify checksums.
fn to(frame: &mut [u8], (address, port): (Ipv4Addr, u16)) {
    frame[30..34].copy_from_slice(&address.octets());
    frame[36..38].copy_from_slice(&port.to_be_bytes());
}

/// Sets unused ports of a frame to the server.
fn another(frame: &mut [u8], number: usize) {
    let count = usize::from(u16::MAX) - 1024;
    let (source, destination) = (1024 + number % count, 1 + number / count % usize::from(OPEN));
    frame[34..36].copy_from_slice(&(source as u16).to_be_bytes());
    frame[36..38].copy_from_slice(&(destination as u16).to_be_bytes());
}
