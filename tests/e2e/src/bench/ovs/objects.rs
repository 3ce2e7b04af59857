//! The objects in the form that netmaster writes.

use std::net::Ipv4Addr;

use anyhow::Result;
use contiv_model::endpoint;
use serde_json::Value;

use crate::bench::{
    lb::{self, BACKENDS},
    policy::rules::Sort,
};

const NETWORK: &str = "pods.bench";
const ENDPOINTS: &str = "/contiv.io/state/eps/";
/// Groups follow the order of creation: two of pods on the node, one of all other endpoints.
pub(super) const GROUPS: [&str; 3] = ["many", "few", "far"];
const MANY: usize = 1;
const FEW: usize = 2;
const FAR: usize = 3;

/// Objects of other nodes, and rules of this one's groups.
pub(super) struct Objects {
    /// Node and VTEP of the endpoints.
    pub(super) host: String,
    pub(super) vtep: Ipv4Addr,
}

impl Objects {
    pub(super) fn endpoint(&self, number: u32) -> Result<(String, Value)> {
        let ip = address(number);
        let [_, a, b, c] = ip.octets();
        let name = format!("far{number}");
        let id = format!("{NETWORK}-{name}");
        let state = endpoint::State {
            id: id.clone(),
            net_id: NETWORK.to_owned(),
            endpoint_id: name.clone(),
            container_id: name,
            endpoint_group_id: FAR as i64,
            endpoint_group_key: format!("{}:bench", GROUPS[FAR - 1]),
            ip_address: ip.to_string(),
            mac_address: format!("02:02:0a:{a:02x}:{b:02x}:{c:02x}"),
            homing_host: self.host.clone(),
            vtep_ip: self.vtep.to_string(),
            ..endpoint::State::default()
        };
        Ok((format!("{ENDPOINTS}{id}"), serde_json::to_value(state)?))
    }

    /// A service whose first backends are those of every other one, so that it has some of any number of endpoints.
    pub(super) fn service(number: usize, backends: usize) -> Vec<(String, Value)> {
        let ports = [format!("80:{}:TCP", lb::target_port(number))];
        let addresses: Vec<_> = (0..backends as u32).map(address).collect();
        lb::bodies(number, &ports, &addresses).into()
    }

    pub(super) fn services(count: usize) -> Vec<(String, Value)> {
        (0..count).flat_map(|number| Objects::service(number, BACKENDS)).collect()
    }

    /// Rules of the group that has many.
    pub(super) fn rules(count: usize) -> Result<Vec<(String, Value)>> {
        Sort::Prefixes.change(MANY, 0, count)
    }

    /// Changes the number of rules of the group that has few.
    pub(super) fn one_rule(before: usize, after: usize) -> Result<Vec<(String, Value)>> {
        Sort::Prefixes.change(FEW, before, after)
    }
}

/// Addresses of pods come first in the subnet, those of services last.
fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 1, 16, 0)) + number)
}
