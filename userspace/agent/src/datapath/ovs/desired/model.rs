//! Contents of both bridges and the objects that account for them.

use std::{collections::HashMap, net::IpAddr};

use crate::datapath::{
    ObjectId,
    ovs::{
        bridge::{BridgeKind, PerBridge},
        pipeline::{self, NdMode},
        tables::{
            cookie::Cookie,
            edit::Tables,
            ids::ServiceNumbers,
            index::{BridgePort, FlowIndex},
        },
    },
};

/// Contents of both bridges.
#[derive(Debug, Default)]
pub(crate) struct SwitchModel {
    pub(crate) index: FlowIndex,
    pub(crate) tables: PerBridge<Tables>,
    pub(crate) base: BaseConfig,
    pub(crate) numbers: ServiceNumbers,
}

/// Parameters of the base flows.
#[derive(Clone, Debug, Default)]
pub(crate) struct BaseConfig {
    /// Port numbers of the uplinks.
    pub(crate) uplinks: Vec<u32>,
    pub(crate) nd_mode: NdMode,
    /// Address of the node's own tunnels, if configured.
    pub(crate) vtep: Option<IpAddr>,
}

/// Ports of objects.
pub(crate) type BridgePorts = HashMap<ObjectId, BridgePort>;

/// Reads the numbers of the services in the tables.
pub(crate) fn installed_numbers(tables: &PerBridge<Tables>) -> ServiceNumbers {
    let flows = BridgeKind::ALL.into_iter().flat_map(|bridge| tables.get(bridge).flows());
    ServiceNumbers::of(flows.filter_map(|flow| Some((Cookie(flow.cookie), pipeline::service_number(flow)?))))
}
