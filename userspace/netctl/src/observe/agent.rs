//! Addresses of the nodes' agents.

use contiv_model::api::Node;

use crate::{client::Client, error::Error, observe::endpoint::read};

/// Default REST port of agents.
const PORT: u16 = 9090;

/// Reads all nodes.
pub fn nodes(client: &Client) -> Result<Vec<Node>, Error> {
    read(client.get("/api/v1/inspect/nodes/")?, "nodes")
}

/// REST URL of a node's agent.
pub fn url(nodes: &[Node], host: &str) -> Result<String, Error> {
    let known = || nodes.iter().map(|node| node.status.host.as_str()).collect::<Vec<_>>().join(", ");
    let node = nodes
        .iter()
        .find(|node| node.status.host == host)
        .ok_or_else(|| Error::Usage(format!("--node {host}: no such node; known nodes: {}", known())))?;
    let address = [&node.control_ip, &node.status.vtep_ip].into_iter().find(|address| !address.is_empty());
    match address {
        None => Err(Error::Refused(format!("node {host}: address unknown; set --agent URL"))),
        Some(address) if address.contains(':') => Ok(format!("http://[{address}]:{PORT}")),
        Some(address) => Ok(format!("http://{address}:{PORT}")),
    }
}
