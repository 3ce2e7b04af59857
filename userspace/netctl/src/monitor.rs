//! `netctl monitor`.

use std::{
    io::{BufRead, Write},
    thread,
    time::Duration,
};

use clap::{Args, ValueEnum};
use contiv_model::{
    api::Node,
    packet_event::{EventKind, PacketEvent},
};

use crate::{Error, client::Client, endpoint::read, style};

/// The port of the agents' REST service.
const PORT: u16 = 9090;

/// Which node to watch, and for what.
#[derive(Args, Debug)]
pub struct Watch {
    /// The node.
    #[arg(long, required_unless_present = "agent", conflicts_with = "agent", value_name = "HOST")]
    pub node: Option<String>,
    /// The REST address of the node's agent, where netmaster need not be asked.
    #[arg(long, value_name = "URL")]
    pub agent: Option<String>,
    /// Packets that go no further, or flows that begin; both unless it is said.
    #[arg(long, value_enum)]
    pub only: Option<Only>,
    /// Ends after so many lines.
    #[arg(long, value_name = "LINES")]
    pub count: Option<u64>,
    /// The form.
    #[arg(long, short, value_enum, default_value = "text")]
    pub output: Lines,
}

/// A sort of line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "each is what its name says")]
pub enum Only {
    Drops,
    Flows,
}

/// The form of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "each is the form that its name says")]
pub enum Lines {
    Text,
    Json,
}

/// How long an agent that has gone is left alone.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Until there are enough lines, or whoever reads goes. An agent that ends, such as for an upgrade, is waited for.
pub fn run(client: &Client, watch: &Watch, out: &mut dyn Write) -> Result<(), Error> {
    let base = match (&watch.agent, &watch.node) {
        (Some(url), _) => url.trim_end_matches('/').to_owned(),
        (None, Some(host)) => agent_of(client, host)?,
        (None, None) => {
            return Err(Error::Usage("name a node (--node HOST) or its agent (--agent URL)".into()));
        }
    };
    let url = format!("{base}/monitor");
    let mut left = watch.count.unwrap_or(u64::MAX);
    let mut stream = client.stream(&url)?;
    loop {
        // What is cut off in a line is not told.
        for line in stream.lines().map_while(Result::ok) {
            let sight: PacketEvent = serde_json::from_str(&line).map_err(|source| Error::Answer {
                method: "GET",
                url: url.clone(),
                source,
            })?;
            if !watch.wants(sight.event) {
                continue;
            }
            watch.print(&line, &sight, out)?;
            left -= 1;
            if left == 0 {
                return Ok(());
            }
        }
        eprintln!("{url}: the agent has ended; waiting for it");
        stream = loop {
            thread::sleep(ASK_AGAIN_AFTER);
            // Not there yet, or there before its datapath is.
            if let Ok(stream) = client.stream(&url) {
                break stream;
            }
        };
        eprintln!("{url}: the agent is there again");
    }
}

impl Watch {
    /// Each line when it comes, also in a pipe.
    fn print(&self, line: &str, sight: &PacketEvent, out: &mut dyn Write) -> Result<(), Error> {
        match self.output {
            Lines::Json => writeln!(out, "{line}")?,
            Lines::Text => writeln!(out, "{} {}", sight.time, painted(sight))?,
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

fn painted(sight: &PacketEvent) -> String {
    let colour = match sight.event {
        EventKind::Drop => style::BAD,
        EventKind::Flow => style::GOOD,
        EventKind::Lost => style::DOUBTFUL,
    };
    let text = sight.to_string();
    let (first, rest) = text.split_once(' ').unwrap_or((&text, ""));
    format!("{} {rest}", style::paint(colour, first))
}

/// Where a node's agent is reached.
fn agent_of(client: &Client, host: &str) -> Result<String, Error> {
    let nodes: Vec<Node> = read(client.get("/api/v1/inspect/nodes/")?, "nodes")?;
    let known = || nodes.iter().map(|node| node.status.host.as_str()).collect::<Vec<_>>().join(", ");
    let node = nodes
        .iter()
        .find(|node| node.status.host == host)
        .ok_or_else(|| Error::Usage(format!("--node {host}: no such node; there are: {}", known())))?;
    let address = [&node.control_ip, &node.status.vtep_ip].into_iter().find(|address| !address.is_empty());
    match address {
        None => {
            Err(Error::Refused(format!("node {host}: its address is not known; name it with --agent URL")))
        }
        Some(address) if address.contains(':') => Ok(format!("http://[{address}]:{PORT}")),
        Some(address) => Ok(format!("http://{address}:{PORT}")),
    }
}
