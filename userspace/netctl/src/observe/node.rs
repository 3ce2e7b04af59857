//! `netctl node`.

use std::io::Write;

use clap::Subcommand;
use contiv_model::api::{Node, NodeState};
use serde_json::Value;

use crate::{
    client::{Client, segment},
    error::Error,
    flags::{InspectFlags, ListFlags, ListFormat},
    observe::endpoint::read,
    output::{self, style, table},
};

/// Commands for nodes.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List nodes with datapath, state, applied revision and degraded conditions.
    #[command(visible_alias = "list")]
    Ls(ListFlags),
    /// Let nodes follow the store after it lost data; until then they forward as before and refuse new endpoints.
    AcceptStore {
        /// Host names of the nodes.
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        hosts: Vec<String>,
        /// All nodes that report store-regressed.
        #[arg(long)]
        all: bool,
    },
    /// Show the complete status of a node.
    Inspect {
        /// Host name of the node.
        host: String,
        /// Output flags.
        #[command(flatten)]
        flags: InspectFlags,
    },
}

const COLUMNS: [table::Column; 7] = [
    ("Host", "----"),
    ("Datapath", "--------"),
    ("State", "-----"),
    ("Revision", "--------"),
    ("VTEP", "----"),
    ("Version", "-------"),
    ("Reason", "------"),
];

/// Runs a command.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Inspect { host, flags } => output::object(out, flags.output, &client.inspect("node", host)?),
        Command::AcceptStore { hosts, all } => {
            let hosts = match all {
                true => regressed(client)?,
                false => hosts.clone(),
            };
            for host in &hosts {
                client.post(&format!("/api/v1/nodes/{}/acceptedStore/", segment(host)))?;
                writeln!(out, "{host}: told to follow the store")?;
            }
            if hosts.is_empty() {
                writeln!(out, "no node reports {}", contiv_model::node::STORE_REGRESSED)?;
            }
            Ok(())
        }
        Command::Ls(flags) => {
            let answer = client.get("/api/v1/inspect/nodes/")?;
            match flags.format() {
                ListFormat::Json => output::json(out, &answer),
                ListFormat::Yaml => output::yaml(out, &answer),
                ListFormat::Name => {
                    Ok(nodes(answer)?.iter().try_for_each(|it| writeln!(out, "{}", it.status.host))?)
                }
                ListFormat::Table => {
                    let rows: Vec<_> = nodes(answer)?.iter().map(row).collect();
                    Ok(table::write(out, &COLUMNS, &rows)?)
                }
            }
        }
    }
}

/// Nodes that wait for the word of an operator.
fn regressed(client: &Client) -> Result<Vec<String>, Error> {
    let is_regressed = |node: &Node| {
        node.status.degraded.iter().any(|line| line.starts_with(contiv_model::node::STORE_REGRESSED))
    };
    let all = nodes(client.get("/api/v1/inspect/nodes/")?)?;
    Ok(all.into_iter().filter(is_regressed).map(|node| node.status.host).collect())
}

fn nodes(answer: Value) -> Result<Vec<Node>, Error> {
    read(answer, "nodes")
}

fn row(node: &Node) -> Vec<String> {
    let status = &node.status;
    vec![
        status.host.clone(),
        status.datapath.clone(),
        state(node.state),
        status.applied_revision.to_string(),
        status.vtep_ip.clone(),
        status.version.clone(),
        reason(node),
    ]
}

fn state(state: NodeState) -> String {
    let colour = match state {
        NodeState::Ready => style::GOOD,
        NodeState::Starting | NodeState::Degraded => style::WARNING,
        NodeState::Gone => style::BAD,
    };
    style::paint(colour, state.as_str())
}

/// Degraded conditions of the node, also if it is not ready for another reason.
fn reason(node: &Node) -> String {
    match &node.status.degraded[..] {
        [] if node.status.failed > 0 => format!("{} objects failed", node.status.failed),
        lines => lines.join("; "),
    }
}
