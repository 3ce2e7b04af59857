//! Contents of both bridges and the objects that account for them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use contiv_model::vrf::Vrf;
use openflow_rs::DecodeError;

use crate::datapath::{
    Desired, ObjectId,
    ovs::{
        bridge::{BridgeKind, PerBridge},
        pipeline,
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
    /// Port numbers of the uplinks; the active one is first.
    pub(crate) uplinks: Vec<u32>,
    /// Port numbers of the standby uplinks.
    pub(crate) standby: Vec<u32>,
    /// Port number of the node's kernel on each bridge, if it routes VLAN networks or provides host access of VXLAN
    /// networks.
    pub(crate) kernel: PerBridge<Option<u32>>,
    /// Address of the node's own tunnels, if configured.
    pub(crate) vtep: Option<IpAddr>,
    /// Port numbers without an object, if flows, groups and ports without an object are retained.
    pub(crate) retained: Option<PerBridge<BTreeSet<u32>>>,
    /// Ports of desired endpoints that have no flows yet. The index has these endpoints without a port, and garbage
    /// collection keeps the ports.
    pub(crate) unprogrammed: BTreeSet<String>,
    /// Flows of groups without an object are retained: endpoints may have these groups.
    pub(crate) retains_groups: bool,
    /// Another datapath owns the interfaces to the node's kernel.
    pub(crate) stands_by: bool,
    /// All frames that enter the bridges are dropped until the connections of another datapath are imported. Garbage
    /// collection keeps the flows that drop them. They are removed after the import, which follows garbage collection.
    pub(crate) holds: bool,
}

/// Ports of objects.
pub(crate) type BridgePorts = HashMap<ObjectId, BridgePort>;

/// Reads the numbers of the services, and of the VRFs of the desired objects, from the tables.
///
/// # Errors
///
/// Returns the error of a flow with a number that cannot be decoded.
pub(crate) fn installed_numbers(
    tables: &PerBridge<Tables>,
    desired: &Desired,
) -> Result<ObjectNumbers, DecodeError> {
    let tables = || BridgeKind::ALL.into_iter().map(|bridge| tables.get(bridge));
    let mut services = vec![];
    for flow in tables().flat_map(Tables::flows).filter(|flow| flow.table() == pipeline::SERVICE_NUMBERS) {
        services
            .extend(pipeline::service_number(&flow.unpack()?).map(|number| (Cookie(flow.cookie()), number)));
    }
    let mut vrfs: BTreeMap<&Vrf, u32> = BTreeMap::new();
    for (id, object) in desired.iter() {
        let Some(vrf) = vrf_of(object).filter(|vrf| matches!(vrf, Vrf::Tenant(_))) else { continue };
        if vrfs.contains_key(vrf) {
            continue;
        }
        for flow in tables().flat_map(|tables| tables.flows_of(Cookie::of(id))) {
            if let Some(number) = pipeline::vrf_number(&flow.unpack()?) {
                vrfs.insert(vrf, number);
                break;
            }
        }
    }
    let vrfs = vrfs.into_iter().map(|(vrf, number)| (vrf.clone(), number));
    Ok(ObjectNumbers { services: Numbers::of(services), vrfs: Numbers::of(vrfs) })
}

/// Reads the numbers of all VRFs from the tables.
///
/// # Errors
///
/// Returns the error of a flow that cannot be decoded. Flows of other programs may be undecodable.
pub(crate) fn vrf_numbers(tables: &PerBridge<Tables>) -> Result<BTreeSet<u32>, DecodeError> {
    let mut numbers = BTreeSet::new();
    let flows = BridgeKind::ALL.into_iter().flat_map(|bridge| tables.get(bridge).flows());
    for flow in flows.filter(|flow| Cookie(flow.cookie()).is_own()) {
        numbers.extend(pipeline::vrf_number(&flow.unpack()?));
    }
    Ok(numbers)
}
