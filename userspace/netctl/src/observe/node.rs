//! `netctl node`.

use std::io::Write;

use clap::Subcommand;
use contiv_model::{
    api::{Node, NodeState},
    node,
};
use serde_json::Value;

use crate::{
    client::{Client, segment},
    commands::watch,
    error::{Error, Rejections},
    flags::{InspectFlags, ListFlags},
    observe::endpoint::read,
    output::{
        self,
        list::{List, Width},
        printable, style,
        table::{self, Cell, Column},
        text,
    },
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
    /// Change the datapath of a node while its pods run; the choice goes before the agent's flag.
    SetDatapath {
        /// Host name of the node.
        host: String,
        /// The datapath.
        #[arg(value_parser = node::DATAPATHS)]
        datapath: String,
    },
    /// Delete nodes that will not return, and release their endpoints at once.
    #[command(visible_alias = "delete")]
    Rm {
        /// Host names of the nodes.
        #[arg(required = true)]
        hosts: Vec<String>,
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

/// Path of the list of all nodes.
const PATH: &str = "/api/v1/inspect/nodes/";

/// Further columns before the last one.
const WIDE: [Column<'_>; 4] = [
    ("Control IP", "----------"),
    ("VXLAN port", "----------"),
    ("Failed", "------"),
    ("Gone since", "----------"),
];

const COLUMNS: [Column<'_>; 7] = [
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
        Command::Inspect { host, flags } => {
            output::object(out, &flags.output, &client.inspect("node", host)?)
        }
        Command::AcceptStore { all: true, .. } => accept_for_all(client, out),
        Command::AcceptStore { hosts, all: false } => accept_store(client, hosts, &|_| false, out),
        Command::SetDatapath { host, datapath } => {
            client.post(&format!("/api/v1/nodes/{}/datapath/{datapath}/", segment(host)))?;
            writeln!(out, "{}: datapath {datapath} chosen; see netctl node ls", printable(host))?;
            Ok(())
        }
        Command::Rm { hosts } => remove(client, hosts, out),
        Command::Ls(flags) => watch::show(flags.watch, out, &|out| list(client, flags, out)),
    }
}

/// Accepts the store for all nodes that report its loss of data.
fn accept_for_all(client: &Client, out: &mut dyn Write) -> Result<(), Error> {
    let hosts = regressed(client)?;
    if hosts.is_empty() {
        return Ok(writeln!(out, "no node reports {}", node::STORE_REGRESSED)?);
    }
    // Since the list the data came back, or another operator accepted the store.
    accept_store(client, &hosts, &|message| message.ends_with(node::NOT_REGRESSED), out)
}

/// Accepts the store for nodes. A rejection does not stop later requests, any other failure does; a rejection that `is_done`
/// selects is no error.
fn accept_store(
    client: &Client,
    hosts: &[String],
    is_done: &dyn Fn(&str) -> bool,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let (mut written, mut refused) = (Ok(()), Rejections::default());
    for (at, host) in hosts.iter().enumerate() {
        let line = match client.post(&format!("/api/v1/nodes/{}/acceptedStore/", segment(host))) {
            Ok(_) => format!("{}: store accepted", printable(host)),
            Err(Error::Refused(message)) if is_done(&message) => {
                format!("{}: does not report {} any more", printable(host), node::STORE_REGRESSED)
            }
            Err(error) => {
                let line = |message: &str| format!("accept the store for node {host}: {message}");
                refused.add(error, hosts.len() - at - 1, line)?;
                continue;
            }
        };
        written = written.and_then(|()| writeln!(out, "{line}"));
    }
    refused.finish()?;
    Ok(written?)
}

/// Deletes nodes. A rejection does not stop later deletions; any other failure does.
fn remove(client: &Client, hosts: &[String], out: &mut dyn Write) -> Result<(), Error> {
    let (mut written, mut refused) = (Ok(()), Rejections::default());
    for (at, host) in hosts.iter().enumerate() {
        match client.delete_at(&format!("/api/v1/nodes/{}/", segment(host))) {
            Ok(deleted) => {
                let released = deleted.get("releasedEndpoints").and_then(Value::as_u64).unwrap_or_default();
                let line = format!("{}: deleted, endpoints released: {released}", printable(host));
                written = written.and_then(|()| writeln!(out, "{line}"));
            }
            Err(error) => {
                let line = |message: &str| format!("delete node {host}: {message}");
                refused.add(error, hosts.len() - at - 1, line)?;
            }
        }
    }
    refused.finish()?;
    Ok(written?)
}

fn list(client: &Client, flags: &ListFlags, out: &mut dyn Write) -> Result<(), Error> {
    let objects = objects(client)?;
    let list = List {
        objects: &objects,
        name: &|node| text(node, "host"),
        table: &|out, width| table(&objects, out, width),
    };
    list.write(&flags.format(), out)
}

/// Reads all nodes.
pub fn objects(client: &Client) -> Result<Vec<Value>, Error> {
    read(client.get(PATH)?, "nodes")
}

/// Finds a node.
pub fn find(client: &Client, host: &str) -> Result<Option<Value>, Error> {
    Ok(objects(client)?.into_iter().find(|node| text(node, "host") == host))
}

/// Writes a table of nodes.
pub fn table(nodes: &[Value], out: &mut dyn Write, width: Width) -> Result<(), Error> {
    let nodes: Vec<Node> = read(nodes.into(), "nodes")?;
    let rows: Vec<_> = nodes.iter().map(|node| row(node, width)).collect();
    let more: &[Column<'_>] = if width == Width::Wide { &WIDE } else { &[] };
    let (last, first) = COLUMNS.split_last().unwrap_or((&("", ""), &[]));
    let columns = [first, more, &[*last]].concat();
    Ok(table::write_cells(out, &columns, &rows)?)
}

/// Nodes that wait for an operator to accept the store.
fn regressed(client: &Client) -> Result<Vec<String>, Error> {
    let is_regressed =
        |node: &Node| node.status.degraded.iter().any(|line| line.starts_with(node::STORE_REGRESSED));
    let all = read::<Vec<Node>>(client.get(PATH)?, "nodes")?;
    Ok(all.into_iter().filter(is_regressed).map(|node| node.status.host).collect())
}

fn row(node: &Node, width: Width) -> Vec<Cell> {
    let status = &node.status;
    let mut cells: Vec<Cell> = vec![
        status.host.clone().into(),
        status.datapath.clone().into(),
        state(node.state),
        status.applied_revision.to_string().into(),
        status.vtep_ip.clone().into(),
        status.version.clone().into(),
    ];
    if width == Width::Wide {
        cells.extend([
            node.control_ip.clone().into(),
            status.vxlan_port.to_string().into(),
            status.failed.to_string().into(),
            node.gone_since.clone().into(),
        ]);
    }
    cells.push(reason(node).into());
    cells
}

fn state(state: NodeState) -> Cell {
    let colour = match state {
        NodeState::Ready => style::GOOD,
        NodeState::Starting | NodeState::Degraded => style::WARNING,
        NodeState::Gone => style::BAD,
    };
    Cell::styled(colour, state.as_str())
}

/// Degraded conditions of the node, also if it is not ready for another reason.
fn reason(node: &Node) -> String {
    match &node.status.degraded[..] {
        [] if node.status.failed > 0 => format!("{} objects failed", node.status.failed),
        lines => lines.join("; "),
    }
}
