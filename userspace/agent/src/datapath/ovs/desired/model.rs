//! Contents of both bridges and the objects that account for them.

use std::{collections::HashMap, net::IpAddr};

use crate::datapath::{
    ObjectId,
    ovs::{
        bridge::PerBridge,
        pipeline::NdMode,
        tables::{
            edit::Tables,
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
