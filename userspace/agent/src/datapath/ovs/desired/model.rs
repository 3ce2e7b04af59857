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
    /// Port numbers of the uplinks, that of the active one first.
    pub(crate) uplinks: Vec<u32>,
    /// Those of the uplinks that stand by.
    pub(crate) standby: Vec<u32>,
    /// Port number of the node's kernel on each bridge, if it routes VLAN networks, or gives VXLAN networks host access.
    pub(crate) kernel: PerBridge<Option<u32>>,
    /// Address of the node's own tunnels, if configured.
    pub(crate) vtep: Option<IpAddr>,
    /// Port numbers that belong to no object, if what belongs to none stays.
    pub(crate) retained: Option<PerBridge<BTreeSet<u32>>>,
    /// Ports of desired endpoints that have no flows yet: the index has the endpoints without them, and a garbage collection leaves them.
    pub(crate) unprogrammed: BTreeSet<String>,
    /// The flows of groups that belong to no object stay: endpoints may have these groups.
    pub(crate) retains_groups: bool,
    /// Another datapath has the interfaces to the node's kernel.
    pub(crate) stands_by: bool,
    /// No frame enters the bridges before the connections of another datapath are taken over. A garbage collection leaves the flows that
    /// drop them: they are removed after it, when the connections are.
    pub(crate) holds: bool,
}

/// Ports of objects.
pub(crate) type BridgePorts = HashMap<ObjectId, BridgePort>;

/// Reads the numbers of the services, and of the VRFs of the desired objects, in the tables.
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

/// Reads the numbers of all VRFs in the tables.
///
/// # Errors
///
/// Returns the error of a flow that cannot be decoded. Those of other programs may not be.
pub(crate) fn vrf_numbers(tables: &PerBridge<Tables>) -> Result<BTreeSet<u32>, DecodeError> {
    let mut numbers = BTreeSet::new();
    let flows = BridgeKind::ALL.into_iter().flat_map(|bridge| tables.get(bridge).flows());
    for flow in flows.filter(|flow| Cookie(flow.cookie()).is_own()) {
        numbers.extend(pipeline::vrf_number(&flow.unpack()?));
    }
    Ok(numbers)
}
