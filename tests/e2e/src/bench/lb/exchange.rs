//! Run time of the programs for each packet of one connection.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::Value;
use testkit::packet::{Packet, mac, tcp_flags};

use super::lab::Lab;
use crate::{
    bench::{
        pinned::{self, Target, median},
        report::Report,
    },
    cluster::{Datapath, Pod},
    interrupt,
};

const REDIRECT: u32 = 7;
const SYN_ACK: u8 = tcp_flags::SYN | tcp_flags::ACK;
const RESET: u8 = tcp_flags::RST | tcp_flags::ACK;

/// Name, whether the client sends it, flags, payload.
const PACKETS: [(&str, bool, u8, &[u8]); 6] = [
    ("SYN", true, tcp_flags::SYN, &[]),
    ("SYN-ACK", false, SYN_ACK, &[]),
    ("ACK", true, tcp_flags::ACK, &[]),
    ("byte", true, tcp_flags::ACK, &[7]),
    ("byte back", false, tcp_flags::ACK, &[7]),
    ("reset", true, RESET, &[]),
];
const FIRST_PORT: u16 = 1024;
const CONNECTIONS: u16 = 20_000;

#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct Options {
    /// Number of measured connections
    #[arg(long, default_value_t = CONNECTIONS, value_parser = clap::value_parser!(u16).range(1..=60_000))]
    exchanges: u16,
}

impl Default for Options {
    fn default() -> Options {
        Options { exchanges: CONNECTIONS }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Exchange {
    services: u16,
    connections: u16,
    rows: Vec<Row>,
}

/// Medians of all connections, in nanoseconds.
#[derive(Debug, Serialize)]
struct Row {
    way: &'static str,
    packets: Vec<(&'static str, f64)>,
}

pub(super) fn measure(options: &Options, services: u16) -> Result<Exchange> {
    let lab = Lab::build(Datapath::Ebpf, services.into())?;
    let rows = lab.node()?.netns().run(|| {
        pinned::pin_thread()?;
        let stage = Stage::open(&lab)?;
        let ways = [("pods", lab.near.direct()?), ("service", lab.near.through_service())];
        let mut times = ways.map(|_| vec![vec![]; PACKETS.len()]);
        for port in (FIRST_PORT..).take(options.exchanges.into()) {
            interrupt::check()?;
            for ((_, to), times) in ways.iter().zip(&mut times) {
                let taken = stage.exchange(*to, port)?;
                taken.into_iter().zip(times).for_each(|(time, all)| all.push(time.as_nanos() as f64));
            }
        }
        let row = |((way, _), times): ((&'static str, _), Vec<Vec<f64>>)| Row {
            way,
            packets: PACKETS.iter().map(|packet| packet.0).zip(times.into_iter().map(median)).collect(),
        };
        Ok(ways.into_iter().zip(times).map(row).collect())
    })?;
    lab.shut_down()?;
    Ok(Exchange { services, connections: options.exchanges, rows })
}

/// The program on the interfaces of the client and of each backend.
struct Stage<'a> {
    client: &'a Pod,
    from_client: Target,
    backends: Vec<(&'a Pod, Target)>,
}

impl<'a> Stage<'a> {
    fn open(lab: &'a Lab) -> Result<Stage<'a>> {
        let pin = pinned::find(lab.node()?.pins(), "ctv_from_pod")?;
        let target = |pod| Target::open(&pin, pinned::port_of(pod)?);
        let backends = lab.near.pods.iter().map(|pod| Ok((pod, target(pod)?))).collect::<Result<_>>()?;
        Ok(Stage { client: &lab.client, from_client: target(&lab.client)?, backends })
    }

    /// Run time of each packet of a connection.
    fn exchange(&self, to: SocketAddr, port: u16) -> Result<Vec<Duration>> {
        let SocketAddr::V4(to) = to else { bail!("{to} is not an IPv4 address") };
        let direct = self.backends.iter().find(|(pod, _)| pod.ip == *to.ip());
        let [a, b, c, d] = to.ip().octets();
        let next = direct.map_or([2, 2, a, b, c, d], |(pod, _)| mac(&pod.mac));
        // The client's last packet as the backend receives it.
        let mut there = vec![0; 256];
        let mut times = vec![];
        for (name, is_clients, flags, payload) in PACKETS {
            let mut out = vec![0; 256];
            let (code, time) = if is_clients {
                let frame = Packet::eth(next, mac(&self.client.mac))
                    .ipv4(self.client.ip, *to.ip())
                    .tcp(port, to.port(), flags)
                    .payload(payload)
                    .build();
                let result = self.from_client.run(&frame, &mut out)?;
                there = out;
                result
            } else {
                let frame = reply(&there, flags, payload)?;
                let backend = self.backends.iter().find(|(pod, _)| pod.ip.octets() == there[30..34]);
                let (_, target) = backend.context("a packet was not redirected to a backend")?;
                target.run(&frame, &mut out)?
            };
            ensure!(code == REDIRECT, "unexpected code {code} for the {name} of a connection to {to}");
            times.push(time);
        }
        Ok(times)
    }
}

/// Builds the reply to a packet.
fn reply(to: &[u8], flags: u8, payload: &[u8]) -> Result<Vec<u8>> {
    let address =
        |at: usize| -> Result<std::net::Ipv4Addr> { Ok(<[u8; 4]>::try_from(&to[at..at + 4])?.into()) };
    let port = |at: usize| u16::from_be_bytes([to[at], to[at + 1]]);
    let frame = Packet::eth(to[6..12].try_into()?, to[..6].try_into()?)
        .ipv4(address(30)?, address(26)?)
        .tcp(port(36), port(34), flags)
        .payload(payload);
    Ok(frame.build())
}

impl Report for Exchange {
    fn title(&self) -> String {
        format!(
            "Packets of one connection, client and backends on the same node, among {} services: nanoseconds in \
             ctv_from_pod, medians of {} connections, interleaved for a pod and a service",
            self.services, self.connections
        )
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        let names = PACKETS.iter().map(|packet| packet.0);
        let header = std::iter::once("to").chain(names).chain(["total"]);
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_header(header);
        for row in &self.rows {
            let sum: f64 = row.packets.iter().map(|(_, ns)| ns).sum();
            let figures = row.packets.iter().map(|(_, ns)| *ns).chain([sum]);
            let way = std::iter::once(row.way.to_owned());
            table.add_row(way.chain(figures.map(|ns| format!("{ns:.0}"))));
        }
        table
    }

    fn value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}
