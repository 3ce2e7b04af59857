//! `netctl monitor`.

use std::{
    io::{BufRead, Write},
    thread,
    time::Duration,
};

use clap::{Args, ValueEnum};
use contiv_model::packet_event::{EventKind, PacketEvent};
use serde::Deserialize as _;
use serde_json::Value;

use crate::{
    client::Client,
    error::Error,
    observe::agent,
    output::{self, printable, style},
};

/// Arguments of `netctl monitor`.
#[derive(Args, Debug)]
pub struct Monitor {
    /// Host name of the node.
    #[arg(long, required_unless_present = "agent", conflicts_with = "agent", value_name = "HOST")]
    pub node: Option<String>,
    /// REST URL of the node's agent, such as http://10.0.0.2:9090; netmaster is not used then.
    #[arg(long, value_name = "URL")]
    pub agent: Option<String>,
    /// Show only dropped packets or only new flows [default: both].
    #[arg(long, value_enum)]
    pub only: Option<Only>,
    /// Number of lines to print before exiting [default: unlimited].
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "text")]
    pub output: LineFormat,
}

/// Kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Only {
    Drops,
    Flows,
}

/// Output format of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the names say it")]
pub enum LineFormat {
    Text,
    Json,
}

/// Interval of connection attempts after the agent has ended.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(500);

/// Prints events until `--count` is reached or the reader closes the pipe. Reconnects when the agent restarts.
pub fn run(client: &Client, args: &Monitor, out: &mut dyn Write) -> Result<(), Error> {
    let base = match (&args.agent, &args.node) {
        (Some(url), _) => url.trim_end_matches('/').to_owned(),
        (None, Some(host)) => agent::url(&agent::nodes(client)?, host)?,
        (None, None) => {
            return Err(Error::Usage("no node; set --node HOST or --agent URL".into()));
        }
    };
    let url = format!("{base}/monitor");
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut stream = client.stream(&url)?;
    loop {
        // A truncated last line is discarded.
        for line in stream.lines().map_while(Result::ok) {
            let invalid = |source| Error::Answer { method: "GET", url: url.clone(), source };
            let line: Value = serde_json::from_str(&line).map_err(invalid)?;
            let event = PacketEvent::deserialize(&line).map_err(invalid)?;
            if !args.wants(event.event) {
                continue;
            }
            args.print(&line, &event, out)?;
            left -= 1;
            if left == 0 {
                return Ok(());
            }
        }
        eprintln!("{url}: connection closed by the agent; reconnecting");
        stream = loop {
            thread::sleep(RECONNECT_INTERVAL);
            // The agent may not run yet, or its datapath may not be ready.
            if let Ok(stream) = client.stream(&url) {
                break stream;
            }
        };
        eprintln!("{url}: reconnected");
    }
}

impl Monitor {
    /// Prints one event and flushes, also to a pipe.
    fn print(&self, line: &Value, event: &PacketEvent, out: &mut dyn Write) -> Result<(), Error> {
        match self.output {
            LineFormat::Json => output::json_line(out, line)?,
            LineFormat::Text => writeln!(out, "{} {}", printable(&event.time), painted(event))?,
        }
        Ok(out.flush()?)
    }

    fn wants(&self, event: EventKind) -> bool {
        match (self.only, event) {
            (None, _) | (_, EventKind::Lost) => true,
            (Some(only), event) => (only == Only::Drops) == (event == EventKind::Drop),
        }
    }
}

fn painted(event: &PacketEvent) -> String {
    let colour = match event.event {
        EventKind::Drop => style::BAD,
        EventKind::Flow => style::GOOD,
        EventKind::Lost => style::WARNING,
    };
    let text = printable(&event.to_string()).into_owned();
    let (first, rest) = text.split_once(' ').unwrap_or((&text, ""));
    format!("{} {rest}", style::paint(colour, first))
}
