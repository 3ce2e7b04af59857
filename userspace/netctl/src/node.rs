//! `netctl node`.

use std::io::Write;

use clap::Subcommand;
use contiv_model::api::{Node, NodeState};
use serde_json::Value;

use crate::{
    Error,
    cli::{Detailed, Form, Shown},
    client::Client,
    endpoint::read,
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

const COLUMNS: [table::Column; 7] = [
    ("Host", "----"),
    ("Datapath", "--------"),
    ("State", "-----"),
    ("Revision", "--------"),
    ("VTEP", "----"),
    ("Version", "-------"),
    ("Reason", "------"),
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
        NodeState::Starting | NodeState::Degraded => style::DOUBTFUL,
        NodeState::Gone => style::BAD,
    };
    style::paint(colour, state.as_str())
}

/// What of the state is not in force there, also on a node that is not ready for another reason.
fn reason(node: &Node) -> String {
    match &node.status.degraded[..] {
        [] if node.status.failed > 0 => format!("{} objects failed", node.status.failed),
        lines => lines.join("; "),
    }
}
