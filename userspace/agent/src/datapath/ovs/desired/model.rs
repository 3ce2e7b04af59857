//! Contents of both bridges and the objects that account for them.

use std::{collections::HashMap, net::IpAddr};

use contiv_model::vrf::Vrf;

use crate::datapath::{
    Desired, ObjectId,
    ovs::{
        bridge::{BridgeKind, PerBridge},
        pipeline::{self, NdMode},
        tables::{
            cookie::Cookie,
            edit::Tables,
            ids::{Numbers, ObjectNumbers},
            index::{BridgePort, FlowIndex, vrf_of},
        },
    },
};

/// Contents of both bridges.
#[derive(Debug, Default)]
pub(crate) struct SwitchModel {
    pub(crate) index: FlowIndex,
    pub(crate) tables: PerBridge<Tables>,
    pub(crate) base: BaseConfig,
    pub(crate) numbers: ObjectNumbers,
}

/// Parameters of the base flows.
#[derive(Clone, Debug, Default)]
pub(crate) struct BaseConfig {
    /// Port numbers of the uplinks.
    pub(crate) uplinks: Vec<u32>,
    /// Port number of the node's kernel on the VLAN bridge, if it routes VLAN networks.
    pub(crate) kernel: Option<u32>,
    pub(crate) nd_mode: NdMode,
    /// Address of the node's own tunnels, if configured.
    pub(crate) vtep: Option<IpAddr>,
}

/// Ports of objects.
pub(crate) type BridgePorts = HashMap<ObjectId, BridgePort>;

/// Reads the numbers of the services, and of the VRFs of the desired objects, in the tables.
pub(crate) fn installed_numbers(tables: &PerBridge<Tables>, desired: &Desired) -> ObjectNumbers {
    let flows = || BridgeKind::ALL.into_iter().flat_map(|bridge| tables.get(bridge).flows());
    let services = flows().filter_map(|flow| Some((Cookie(flow.cookie), pipeline::service_number(flow)?)));
    let numbered = flows().filter_map(|flow| Some((Cookie(flow.cookie), pipeline::vrf_number(flow)?)));
    let numbered: HashMap<Cookie, u32> = numbered.collect();
    let vrfs = desired.iter().filter_map(|(id, object)| {
        let vrf = vrf_of(object).filter(|vrf| matches!(vrf, Vrf::Tenant(_)))?;
        Some((vrf.clone(), *numbered.get(&Cookie::of(id))?))
    });
    ObjectNumbers { services: Numbers::of(services), vrfs: Numbers::of(vrfs) }
}
