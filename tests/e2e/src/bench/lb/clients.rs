//! Runs frames of a client of services through the pinned program of its pod with `BPF_PROG_TEST_RUN`, one frame per call: a
//! repeated call would get the translated packet. The duration includes the overhead of the kernel's clock, which an empty
//! program measures in the same run.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result, bail, ensure};
use testkit::packet::{Packet, mac, tcp_flags};

use super::{
    loading::PORTS,
    services::{Bench, vip},
};
use crate::{
    bench::pinned::{self, Lines, Target, interleaved},
    cluster::Pod,
    interrupt,
    progress::step,
};

const FROM_POD: &str = "ctv_from_pod";
/// Flows between two checks for an interrupt.
const FLOWS_PER_CHECK: usize = 10_000;
/// First source port of persistent connections.
const LIVE: u16 = 20_000;
/// Cache lines that the programs read per service: a copy of its entry in two lines, and counters in up to two; for some services a
/// bucket of the hash table.
const LINES: u64 = 5;
/// Ports without a service.
const DIRECT: std::ops::Range<u16> = 1..900;

/// A connection to a service, before translation.
#[derive(Clone, Copy)]
struct Flow {
    client: usize,
    service: usize,
    port: u16,
    source_port: u16,
}

/// The clients, and their connections so far.
pub(super) struct Clients<'a> {
    bench: &'a Bench<'a>,
    floor: Target,
    clients: Vec<(&'a Pod, Target)>,
    backends: Vec<(Ipv4Addr, Target)>,
    /// Flows to the first service, which does not change: established flows do not look the service up.
    flows: Vec<Flow>,
    /// Source ports of new connections.
    spare: Vec<u16>,
    began: usize,
}

/// Nanoseconds per packet.
#[derive(Clone, Copy)]
pub(super) struct Took {
    pub(super) floor: f64,
    pub(super) hot: f64,
    pub(super) live: f64,
    pub(super) new: f64,
    pub(super) direct: f64,
    /// Nanoseconds per cache miss.
    pub(super) line: f64,
}

impl<'a> Clients<'a> {
    /// Opens the persistent connections. Must run in the namespace of the node.
    pub(super) fn new(bench: &'a Bench<'a>, clients: &[&'a Pod], flows: usize) -> Result<Clients<'a>> {
        let pin = pinned::find(bench.node.pins(), FROM_POD)?;
        let clients: Vec<_> = clients
            .iter()
            .map(|pod| Ok((*pod, Target::open(&pin, pinned::port_of(pod)?)?)))
            .collect::<Result<_>>()?;
        let backends = bench.pods[1..]
            .iter()
            .map(|pod| Ok((pod.ip, Target::open(&pin, pinned::port_of(pod)?)?)))
            .collect::<Result<_>>()?;
        let empty = bench.node.pins().join("empty");
        pinned::pin_empty(&empty)?;
        let floor = Target::open(&empty, pinned::port_of(bench.pods[0])?)?;
        let flows: Vec<Flow> = (0..flows)
            .map(|number| {
                let (client, number) = (number % clients.len(), number / clients.len());
                Flow {
                    client,
                    service: 0,
                    port: 80 + (number % usize::from(PORTS)) as u16,
                    source_port: LIVE + (number / usize::from(PORTS)) as u16,
                }
            })
            .collect();
        // More combinations with the destination ports than the capacity of the table of new flows.
        let spare = (1024..LIVE).chain(live_end(flows.len().div_ceil(clients.len()))..=u16::MAX).collect();
        let clients = Clients { bench, floor, clients, backends, flows, spare, began: 0 };
        let mut out = vec![0; 256];
        step(&format!("{} live flows", clients.flows.len()), || {
            clients.flows.chunks(FLOWS_PER_CHECK).try_for_each(|some| {
                interrupt::check()?;
                some.iter().try_for_each(|flow| clients.establish(*flow, &mut out))
            })
        })?;
        Ok(clients)
    }

    /// One round with `calls` calls of each kind.
    pub(super) fn round(&mut self, services: usize, calls: usize) -> Result<Took> {
        pinned::pin_thread()?;
        let (mut frames, mut out) = (self.frames(tcp_flags::ACK), vec![0; 256]);
        let mut known = |target: Option<&Target>, at: &dyn Fn(usize) -> Flow| -> Result<f64> {
            let [took] = interleaved(calls, |_, number| {
                let flow = at(number);
                let frame = &mut frames[flow.client];
                address(frame, flow);
                Ok(target.unwrap_or(&self.clients[flow.client].1).run(frame, &mut out)?.1)
            })?;
            Ok(took)
        };
        let floor = known(Some(&self.floor), &|_| self.flows[0])?;
        let hot = known(None, &|_| self.flows[0])?;
        // Visits every flow; consecutive flows are not neighbours in memory.
        let live = known(None, &|number| self.flows[number.wrapping_mul(7919) % self.flows.len()])?;
        let pin = self.bench.node.pins().join("lines");
        let port = pinned::port_of(self.bench.pods[0])?;
        let lines = Lines::open(&pin, services as u64 * LINES * u64::from(Lines::BYTES), port)?;
        let mut opening = self.frames(tcp_flags::SYN);
        let mut straight: Vec<Vec<Vec<u8>>> = (0..self.clients.len())
            .map(|client| (1..self.bench.pods.len()).map(|pod| self.direct_frame(client, pod)).collect())
            .collect();
        let mut any = self.frames(tcp_flags::ACK).swap_remove(0);
        let first = self.began;
        self.began += calls;
        // Interleaved, so that the state of the CPU caches affects all kinds equally.
        let [new, direct, read] = interleaved(calls, |side, number| match side {
            0 => {
                let flow = self.new_flow(first + number, services);
                let frame = &mut opening[flow.client];
                address(frame, flow);
                Ok(self.clients[flow.client].1.run(frame, &mut out)?.1)
            }
            1 => {
                let call = first + number;
                let client = call % straight.len();
                let call = call / straight.len();
                let pod = call % straight[client].len();
                let frame = &mut straight[client][pod];
                let source_port = self.spare[call % self.spare.len()];
                let port = DIRECT.start + (call / self.spare.len()) as u16 % DIRECT.end;
                frame[34..36].copy_from_slice(&source_port.to_be_bytes());
                frame[36..38].copy_from_slice(&port.to_be_bytes());
                Ok(self.clients[client].1.run(frame, &mut out)?.1)
            }
            _ => lines.read(number as u32, &mut any, &mut out),
        })?;
        let line = (read - floor) / f64::from(Lines::COUNT);
        Ok(Took { floor, hot, live, new, direct, line })
    }

    /// Returns a flow that the table of new flows does not contain any more.
    fn new_flow(&self, call: usize, services: usize) -> Flow {
        let client = call % self.clients.len();
        let service = call.wrapping_mul(7919) % services;
        let call = call / self.clients.len();
        let (port, spare) = match service {
            0 => (80 + (call % usize::from(PORTS)) as u16, call / usize::from(PORTS)),
            _ => (80, call),
        };
        Flow { client, service, port, source_port: self.spare[spare % self.spare.len()] }
    }

    /// A frame to a service for each client.
    fn frames(&self, flags: u8) -> Vec<Vec<u8>> {
        // The checksums become invalid when fields are changed; the programs only add differences.
        let frame = |client: &Pod| {
            Packet::eth([2; 6], mac(&client.mac))
                .ipv4(client.ip, vip(0))
                .tcp(0, 80, flags)
                .payload(&[0; 10])
                .build()
        };
        self.clients.iter().map(|(client, _)| frame(client)).collect()
    }

    /// Frame to a backend directly.
    fn direct_frame(&self, client: usize, pod: usize) -> Vec<u8> {
        let (client, pod) = (self.clients[client].0, self.bench.pods[pod]);
        Packet::eth(mac(&pod.mac), mac(&client.mac))
            .ipv4(client.ip, pod.ip)
            .tcp(0, 0, tcp_flags::SYN)
            .payload(&[0; 10])
            .build()
    }

    /// Completes the handshake of a connection with the chosen backend: an incomplete connection would be evicted before the
    /// last measurement.
    fn establish(&self, flow: Flow, out: &mut [u8]) -> Result<()> {
        const REDIRECT: u32 = 7;
        let [mut opening, mut acknowledging] =
            [tcp_flags::SYN, tcp_flags::ACK].map(|flags| self.frames(flags).swap_remove(flow.client));
        let client = &self.clients[flow.client].1;
        address(&mut opening, flow);
        address(&mut acknowledging, flow);
        let (code, _) = client.run(&opening, out)?;
        if code != REDIRECT {
            let inspected = self.bench.node.client().get("/inspect/driver")?.json()?;
            bail!("unexpected code {code} for a connection to {}: {}", vip(flow.service), inspected["drops"]);
        }
        let chosen: [u8; 4] = out[30..34].try_into()?;
        let backend = self.backends.iter().find(|(ip, _)| ip.octets() == chosen);
        let (_, backend) = backend
            .with_context(|| format!("redirected to {}, which is not a backend", Ipv4Addr::from(chosen)))?;
        // The frame with source and destination exchanged.
        let mut answer = out[..opening.len()].to_vec();
        for (a, b, len) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
            for at in 0..len {
                answer.swap(a + at, b + at);
            }
        }
        answer[47] = tcp_flags::SYN | tcp_flags::ACK;
        let (code, _) = backend.run(&answer, out)?;
        ensure!(code == REDIRECT, "unexpected code {code} for a SYN-ACK");
        let (code, _) = client.run(&acknowledging, out)?;
        ensure!(code == REDIRECT, "unexpected code {code} for an ACK");
        Ok(())
    }
}

/// First source port after those of persistent connections.
fn live_end(flows: usize) -> u16 {
    LIVE.saturating_add(flows.div_ceil(usize::from(PORTS)) as u16)
}

/// Sets the addresses and ports of a flow in a frame.
fn address(frame: &mut [u8], flow: Flow) {
    let vip = vip(flow.service).octets();
    frame[..2].copy_from_slice(&[2, 2]);
    frame[2..6].copy_from_slice(&vip);
    frame[30..34].copy_from_slice(&vip);
    frame[34..36].copy_from_slice(&flow.source_port.to_be_bytes());
    frame[36..38].copy_from_slice(&flow.port.to_be_bytes());
}
