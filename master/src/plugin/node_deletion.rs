//! Deletion of a node that is gone, at the request of an operator.
//!
//! Garbage collection stops while most nodes are gone, and cannot know which of them will not return.
//! When an operator deletes those, it goes on for the others.

use std::time::SystemTime;

use contiv_model::node;

use super::node_gc::{gone_since, is_registered, release_endpoints};
use crate::cache::StagedTxn;
use crate::problem::{Answer, Problem};

/// Begins the deletion: marks the node as gone, if it has a status and is not marked yet. Fails while it is
/// registered. `now` is for people.
pub fn begin_node_deletion(host: &str, now: SystemTime, staged: &mut StagedTxn<'_>) -> Answer {
    let has_status = staged.get::<node::Status>(host).is_some();
    // Garbage collection deletes the status and keeps the chosen datapath.
    if !has_status && staged.get::<node::ChosenDatapath>(host).is_none() {
        return Err(Problem::not_found("node not found"));
    }
    check_gone(host, staged)?;
    if has_status && staged.get::<node::Gone>(host).is_none() {
        staged.put(host, gone_since(host, now));
    }
    Ok(vec![])
}

/// Releases endpoints of the node, and returns their number, as [`release_endpoints`] does. With `last`,
/// deletes the datapath that was chosen for the node as well: a new machine may get the name. Fails if
/// the node has registered since the deletion began.
pub fn continue_node_deletion(
    host: &str,
    endpoints: &[String],
    last: bool,
    staged: &mut StagedTxn<'_>,
) -> Answer {
    check_gone(host, staged)?;
    // Without a status either, garbage collection has deleted the node.
    if staged.get::<node::Gone>(host).is_none() && staged.get::<node::Status>(host).is_some() {
        return Err(Problem::conflict(format!(
            "node {host} has registered meanwhile; repeat the request if it is gone again"
        )));
    }
    let released = release_endpoints(host, endpoints, last, staged)?;
    if last && staged.get::<node::ChosenDatapath>(host).is_some() {
        staged.delete::<node::ChosenDatapath>(host);
    }
    Ok(released)
}

fn check_gone(host: &str, staged: &StagedTxn<'_>) -> Result<(), Problem> {
    if is_registered(staged.cache(), host) {
        return Err(Problem::conflict(format!(
            "node {host} is registered; stop its agent, and repeat the request when the registration has expired"
        )));
    }
    Ok(())
}
