//! Records of VTEPs for nodes whose agents do not write them.
//!
//! An agent writes the VTEP of its node to the node status and to a record of its own, which all
//! agents follow. An agent of an earlier release writes the status only. Without a record, the other
//! nodes would not reach the node's endpoints after such an agent has stopped for longer than its
//! lease, although its switch still forwards. The leader therefore writes the record from the status.

use contiv_model::node;

use crate::cache::{ClusterCache, StagedTxn};
use crate::problem::Answer;

/// Nodes whose record is missing or differs from the status.
pub fn nodes_with_outdated_vtep(cache: &ClusterCache) -> Vec<String> {
    let is_outdated = |status: &&node::Status| {
        vtep(status).is_some_and(|vtep| cache.get::<node::Vtep>(&status.host) != Some(&vtep))
    };
    cache.all::<node::Status>().filter(is_outdated).map(|status| status.host.clone()).collect()
}

/// Stages the records of these nodes, as far as they are still outdated.
pub fn write_vteps(hosts: &[String], staged: &mut StagedTxn<'_>) -> Answer {
    for host in hosts {
        let vtep = staged.get::<node::Status>(host).and_then(|status| vtep(&status));
        if let Some(vtep) = vtep.filter(|vtep| staged.get::<node::Vtep>(host).as_deref() != Some(vtep)) {
            staged.put(host, vtep);
        }
    }
    Ok(vec![])
}

/// The VTEP in a status; none if it has none.
fn vtep(status: &node::Status) -> Option<node::Vtep> {
    let node::Status { host, vtep_ip, vxlan_port, .. } = status;
    (!vtep_ip.is_empty()).then(|| node::Vtep {
        host: host.clone(),
        vtep_ip: vtep_ip.clone(),
        vxlan_port: *vxlan_port,
    })
}
