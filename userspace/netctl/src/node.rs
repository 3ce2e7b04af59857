//! `netctl node`.

use std::io::Write;

use clap::Subcommand;
use contiv_model::api::{Node, NodeState};
use serde_json::Value;

use crate::{
    Error,
    cli::{Detailed, Form, Shown},
    client::Client,
    listing::{pretty, tree, yaml},
    style, table,
};

/// What can be asked of nodes.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists the nodes, what their datapaths hold, and what keeps them from being ready.
    #[command(visible_alias = "list")]
    Ls(Shown),
    /// Shows all that a node says of itself.
    Inspect {
        /// The node.
        host: String,
        /// In which form.
        #[command(flatten)]
        form: Detailed,
    },
}

const COLUMNS: [table::Column; 6] = [
    ("Host", "----"),
    ("Datapath", "--------"),
    ("State", "-----"),
    ("Revision", "--------"),
    ("VTEP", "----"),
    ("Version", "-------"),
];

/// Runs one of the commands.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Inspect { host, form } => tree(out, form.output, &client.inspect("node", host)?),
        Command::Ls(how) => {
            let answer = client.get("/api/v1/inspect/nodes/")?;
            match how.form() {
                Form::Json => pretty(out, &answer),
                Form::Yaml => yaml(out, &answer),
                Form::Name => {
                    Ok(nodes(answer)?.iter().try_for_each(|it| writeln!(out, "{}", it.status.host))?)
                }
                Form::Table => {
                    let rows: Vec<_> = nodes(answer)?.iter().map(row).collect();
                    Ok(table::write(out, &COLUMNS, &rows)?)
                }
            }
        }
    }
}

fn nodes(answer: Value) -> Result<Vec<Node>, Error> {
    serde_json::from_value(answer).map_err(|error| {
        Error::Refused(format!("netmaster tells of its nodes otherwise than expected: {error}"))
    })
}

fn row(node: &Node) -> Vec<String> {
    let status = &node.status;
    vec![
        status.host.clone(),
        status.datapath.clone(),
        state(node),
        status.applied_revision.to_string(),
        status.vtep_ip.clone(),
        status.version.clone(),
    ]
}

/// The state and, of a degraded node, why.
fn state(node: &Node) -> String {
    let word = node.state.as_str();
    match node.state {
        NodeState::Ready => style::paint(style::GOOD, word),
        NodeState::Starting => style::paint(style::DOUBTFUL, word),
        NodeState::Degraded if node.status.degraded.is_empty() => {
            style::paint(style::DOUBTFUL, format!("{word}: {} objects failed", node.status.failed))
        }
        NodeState::Degraded => {
            style::paint(style::DOUBTFUL, format!("{word}: {}", node.status.degraded.join("; ")))
        }
        NodeState::Gone => style::paint(style::BAD, word),
    }
}
