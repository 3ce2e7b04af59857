//! Comparison of the switch with the desired state.

use std::{borrow::Cow, collections::BTreeSet};

use contiv_model::policy::Identity;
use openflow_rs::PackedFlow;

use super::{
    bridge::{BridgeKind, PerBridge},
    desired::{
        self,
        batch::{Batch, groups_of},
        compare::compare,
        domain::zones,
        model::{BaseConfig, BridgePorts, SwitchModel, installed_numbers, vrf_numbers},
    },
    error::ovs_error,
    options::{DatapathType, Options},
    pipeline::{self, bridge_and_tag},
    switch::{
        drift, hold, kernel,
        limit::{self, Bandwidth},
        numbers::stored,
        ovsdb::Database,
        ports::{self, PortSpec},
        session::{Dump, Session},
        tunnel, uplink,
    },
    tables::{
        cookie::Cookie,
        edit::Tables,
        ids::ObjectNumbers,
        index::{BridgePort, vrf_of},
    },
};
use crate::datapath::{Desired, Error, Group, Local, Object, ObjectId, Observed, host_end};

/// Result of an observation.
pub(crate) struct Observation {
    /// Contents of the switch, and the desired objects that have a port there. Endpoints must also have flows.
    pub(crate) model: SwitchModel,
    pub(crate) observed: Observed,
    /// Configuration that is not in effect.
    pub(crate) warnings: Vec<String>,
    /// Fingerprint of the bridge configuration at the time of the dump.
    pub(crate) fingerprint: u64,
}

/// Reads the switch and compares it with `desired`. Creates missing bridges, uplinks and base flows. `previous` are the
/// numbers that the switch had before. If `retains` is set, flows, groups and ports without a desired object are kept. If
/// `stands_by` is set, another datapath owns the interfaces to the node's kernel. If `holds` is set, drops all frames
/// that enter the bridges, and counts the flows that do so as orphans: the batch with the garbage collection imports the
/// connections of another datapath and then removes these flows.
pub(crate) async fn observe(
    session: &mut Session,
    options: &Options,
    desired: &Desired,
    previous: &ObjectNumbers,
    (retains, stands_by, holds): (bool, bool, bool),
) -> Result<Observation, Error> {
    let created = session.ensure_bridges(options.datapath_type, &options.uplinks).await;
    created.map_err(|error| ovs_error("create bridges and uplinks", error))?;
    if holds {
        hold::hold(session).await?;
    }
    let objects = desired.iter().filter(|_| !stands_by);
    let mut needed: BTreeSet<BridgeKind> =
        objects.filter_map(|(_, object)| desired::needed_kernel_port(object)).collect();
    if retains {
        let database = session.database();
        let exists = |bridge: &BridgeKind| ports::find(&database, kernel::name(*bridge)).is_some();
        needed.extend(BridgeKind::ALL.into_iter().filter(exists));
    }
    let mut kernel = PerBridge::default();
    for bridge in needed.iter().copied() {
        let port = session.ensure_kernel_port(bridge).await;
        *kernel.get_mut(bridge) =
            port.map_err(|error| ovs_error(format!("add port {}", kernel::name(bridge)), error))?;
    }
    let dump = session.dump().await.map_err(|error| ovs_error("read the tables of the bridges", error))?;
    // This precedes the base flows, which let frames from the uplinks in.
    close_ports(session, &dump, desired).await?;
    let database = session.database();

    let (mut ports, mut out_of_sync) = object_ports(&database, options, &dump, desired);
    let numbers_of = |names: Vec<&str>| -> Vec<u32> {
        names.into_iter().filter_map(|name| dump.ports.vlan.get(name)).copied().collect()
    };
    let uplinks = numbers_of(uplink::active_first(&database, &options.uplinks));
    let standby = numbers_of(uplink::standby(&database, &options.uplinks));
    let retained = retains.then(|| unowned_ports(&dump, &ports));
    // The switch has rejected or lost the flows of the other endpoints. Their ports must not become receivers of groups,
    // nor be opened, before their flows exist. Switches may also not have learned that these endpoints are here.
    let is_bare = |id: &ObjectId, port: &mut BridgePort| match desired.get(id) {
        Some(Object::Local(local)) => !has_flows(&dump.tables, local, port.number),
        _ => false,
    };
    let unprogrammed = ports.extract_if(is_bare).map(|(_, port)| port.name).collect();
    let vtep = options.vtep;
    let retains_groups = false;
    let base = BaseConfig {
        uplinks,
        standby,
        kernel,
        vtep,
        retained,
        unprogrammed,
        retains_groups,
        stands_by,
        holds,
    };
    let unreadable = |error| ovs_error("read the flows of the bridges", error);
    let mut numbers = installed_numbers(&dump.tables, desired).map_err(unreadable)?;
    for known in [previous, &stored(&database)] {
        let services = desired.iter().map(|(id, _)| id).filter(|id| matches!(id, ObjectId::Service(_)));
        numbers.services.keep(&known.services, services.map(Cookie::of));
        numbers.vrfs.keep(&known.vrfs, desired.iter().filter_map(|(_, object)| vrf_of(object)).cloned());
    }
    if retains {
        numbers.vrfs.reserve(vrf_numbers(&dump.tables).map_err(unreadable)?);
    }
    let beside = base.retained.as_ref().map(|ports| groups_of(&dump.tables, ports)).unwrap_or_default();
    let waiting = waiting_for_rules(&dump.tables, &ports, desired);
    out_of_sync.extend(waiting.iter().map(|local| ObjectId::Local(local.id.clone())));
    let present = with_waiting(desired, waiting, &dump.tables);
    let expected = desired::expected(&present, &ports, base, numbers, beside);
    let differences = compare(&expected, &dump.tables, &present);
    out_of_sync.extend(differences.out_of_sync);
    let installed = |id: &ObjectId| expected.index.get(id).is_some_and(|one| !one.is_unattached());
    out_of_sync.extend(desired.iter().map(|(id, _)| id.clone()).filter(|id| !installed(id)));

    let foreign = foreign_flows(dump.foreign);
    let held = BridgeKind::ALL.map(|kind| dump.tables.get(kind).flows_of(Cookie::HOLD).len());
    let SwitchModel { index, base, numbers, .. } = expected;
    let kept = session.store_numbers(&numbers, retains).await;
    kept.map_err(|error| ovs_error("keep the numbers of services and tenants", error))?;
    let mut model = SwitchModel { index, tables: dump.tables, base, numbers };
    if differences.base_flows {
        repair_base_flows(session, &mut model).await?;
    }
    let zones = zones(&model.index, &model.numbers);
    // Endpoints of a former owner of a zone may still send.
    let set = session.set_zones(options, zones, retains, differences.orphans == 0).await;
    let unlimited = set.map_err(|error| ovs_error("set the timeouts of connections", error))?;
    if options.datapath_type == DatapathType::Netdev {
        tunnel::resolve_next_hops(session, model.index.peers().values().copied()).await;
    }
    let unowned = differences.orphans + orphan_ports(&database, options, desired, &needed);
    let retained = if retains { unowned.saturating_sub(held.iter().sum()) } else { 0 };
    let orphans = unowned - retained + limit::orphans(&database).len();
    let in_sync = desired.iter().map(|(id, _)| id).filter(|id| !out_of_sync.contains(id)).cloned().collect();
    let observed = Observed { in_sync, orphans, retained };
    let mut warnings = uplink::warnings(&database, &options.uplinks);
    warnings.extend(needed.iter().filter_map(|bridge| kernel::warning(&database, *bridge)));
    warnings.extend(unlimited);
    warnings.extend(foreign);
    Ok(Observation { model, observed, warnings, fingerprint: drift::fingerprint(&database) })
}

/// Closes the ports on the VLAN bridge whose flows the switch has lost, as in a restart, until they are programmed.
/// Otherwise the bridge floods frames to these ports, bypassing the ingress rules of their pods. Pods without rules are
/// not interrupted longer than necessary.
async fn close_ports(session: &mut Session, dump: &Dump, desired: &Desired) -> Result<(), Error> {
    let has_rules = |local: &Local| group_of(desired, local).is_some_and(|group| !group.rules.is_empty());
    let is_programmed = |local: &Local| {
        let number = dump.ports.get(bridge_and_tag(local.encap).0).get(&local.port);
        number.is_some_and(|number| has_flows(&dump.tables, local, *number))
    };
    let is_bare = |owner| {
        let id = ObjectId::Local(owner);
        match desired.get(&id) {
            Some(Object::Local(local)) => has_rules(local) && !is_programmed(local),
            // Its record is deleted or unreadable.
            _ => entries(&dump.tables.vlan, &id).next().is_none(),
        }
    };
    let operations = ports::closing(&session.database(), is_bare);
    session.reconfigure(operations).await.map_err(|error| ovs_error("close ports without flows", error))
}

fn group_of<'a>(desired: &'a Desired, local: &Local) -> Option<&'a Group> {
    match desired.get(&ObjectId::Group(local.identity?))? {
        Object::Group(group) => Some(group),
        _ => None,
    }
}

/// Returns the ports of objects, and the objects whose port is missing or configured differently.
fn object_ports(
    database: &Database,
    options: &Options,
    dump: &Dump,
    desired: &Desired,
) -> (BridgePorts, BTreeSet<ObjectId>) {
    let mut ports = BridgePorts::new();
    let mut out_of_sync = BTreeSet::new();
    for (id, object) in desired.iter() {
        let spec = match object {
            Object::Local(local) => {
                let rate = group_of(desired, local).and_then(|group| group.rate);
                PortSpec::local(local, Bandwidth::from(rate))
            }
            Object::Peer(peer) => {
                let name = ports::tunnel_name(database, peer.vtep, |_| false);
                PortSpec::tunnel(peer, name, options.vtep)
            }
            _ => continue,
        };
        // The interface of a deleted endpoint is down.
        let is_down = matches!(object, Object::Local(local) if host_end::is_down(&local.port));
        if is_down || !spec.is_in_sync(database) {
            out_of_sync.insert(id.clone());
        }
        match dump.ports.get(spec.bridge).get(&spec.name) {
            Some(number) => {
                drop(ports.insert(id.clone(), BridgePort { name: spec.name, number: *number }));
            }
            None => drop(out_of_sync.insert(id.clone())),
        }
    }
    (ports, out_of_sync)
}

/// Reports whether the endpoint has flows at this port on the bridge of its network. Flows on the other bridge, or with
/// another tag, date from before a change of the network. An endpoint without a port has only its record.
fn has_flows(tables: &PerBridge<Tables>, local: &Local, port: u32) -> bool {
    let (bridge, tag) = bridge_and_tag(local.encap);
    let id = ObjectId::Local(local.id.clone());
    let is_own = |flow: &PackedFlow| flow.unpack().is_ok_and(|flow| pipeline::is_entry(&flow, port, tag));
    entries(tables.get(bridge), &id).any(is_own)
}

/// Returns the flows that admit the frames of an endpoint.
fn entries<'a>(tables: &'a Tables, id: &ObjectId) -> impl Iterator<Item = &'a PackedFlow> + use<'a> {
    tables.flows_of(Cookie::of(id)).iter().filter(|flow| flow.table() == pipeline::ENTRY_TABLE)
}

/// Returns the endpoints whose group in the switch differs from the desired group, if the switch has no rules of the
/// desired group. They wait until it has the rules, or until the group gets none. They are returned with the identity
/// that is in their flows.
fn waiting_for_rules(tables: &PerBridge<Tables>, ports: &BridgePorts, desired: &Desired) -> Vec<Local> {
    let waiting = |id: &ObjectId| {
        let Object::Local(local) = desired.get(id)? else { return None };
        let tables = tables.get(bridge_and_tag(local.encap).0);
        if has_rules(tables, local.identity?) {
            return None;
        }
        let mut records =
            tables.flows_of(Cookie::of(id)).iter().filter(|flow| flow.table() == pipeline::RECORD_TABLE);
        let identity = pipeline::recorded_identity(&records.next()?.unpack().ok()?);
        (identity != local.identity).then(|| Local { identity, ..local.clone() })
    };
    ports.keys().filter_map(waiting).collect()
}

/// Returns the desired objects, with these endpoints and their groups as they are in the switch. Flows of other objects,
/// such as the network or its subnets, contain the identities of endpoints: with the desired identity, the endpoints
/// would have no rules.
fn with_waiting<'a>(
    desired: &'a Desired,
    waiting: Vec<Local>,
    tables: &PerBridge<Tables>,
) -> Cow<'a, Desired> {
    let mut present = Cow::Borrowed(desired);
    for local in waiting {
        if let Some(identity) = local.identity
            && desired.get(&ObjectId::Group(identity)).is_none()
            && has_rules(tables.get(bridge_and_tag(local.encap).0), identity)
        {
            // The group's rules are in the switch, but unknown here. With any rule, the receivers of the network are
            // evaluated and the flows are kept.
            present.to_mut().insert(Object::Group(Group::new(identity, []).closed()));
        }
        present.to_mut().insert(Object::Local(local));
    }
    present
}

/// Reports whether a bridge has rules of a group.
fn has_rules(tables: &Tables, identity: Identity) -> bool {
    !tables.flows_of(Cookie::of(&ObjectId::Group(identity))).is_empty()
}

/// Returns the names of the bridges that have flows of other programs. These flows are kept: an operator has added them.
fn foreign_flows(numbers: PerBridge<usize>) -> Vec<String> {
    let found = BridgeKind::ALL.into_iter().map(|bridge| (bridge.name(), *numbers.get(bridge)));
    let found = found.filter(|(_, number)| *number > 0);
    let line = |(bridge, number): (&str, usize)| {
        format!(
            "bridge {bridge}: {number} flows of other programs: packets that match them can go past checks and policies; \
             remove them, if they are not wanted, by their cookies (ovs-ofctl del-flows)"
        )
    };
    found.map(line).collect()
}

/// Returns the numbers of the ports that belong to no object.
fn unowned_ports(dump: &Dump, ports: &BridgePorts) -> PerBridge<BTreeSet<u32>> {
    let owned: BTreeSet<&str> = ports.values().map(|port| port.name.as_str()).collect();
    let unowned = |bridge| {
        let present = dump.ports.get(bridge).iter();
        present.filter(|(name, _)| !owned.contains(name.as_str())).map(|(_, number)| *number).collect()
    };
    PerBridge { vlan: unowned(BridgeKind::Vlan), vxlan: unowned(BridgeKind::Vxlan) }
}

async fn repair_base_flows(session: &mut Session, model: &mut SwitchModel) -> Result<(), Error> {
    let mut batch = Batch::new(model);
    batch.set_base_flows();
    let changes = batch.changes();
    for (bridge, changes) in [(BridgeKind::Vlan, changes.vlan), (BridgeKind::Vxlan, changes.vxlan)] {
        session.apply(bridge, changes).await.map_err(|error| ovs_error("write the base flows", error))?;
    }
    batch.commit();
    Ok(())
}

/// Returns the number of the agent's ports that belong to no desired object. `kernels` are the bridges with a port of the
/// node's kernel.
fn orphan_ports(
    database: &Database,
    options: &Options,
    desired: &Desired,
    kernels: &BTreeSet<BridgeKind>,
) -> usize {
    let mut owned: BTreeSet<_> = kernels.iter().map(|bridge| kernel::name(*bridge).to_owned()).collect();
    for (id, object) in desired.iter() {
        match object {
            Object::Local(local) => drop(owned.insert(local.port.clone())),
            Object::Peer(_) => owned.extend(ports::of_object(database, id)),
            _ => {}
        }
    }
    uplink::collectable(database, &options.uplinks).filter(|name| !owned.contains(*name)).count()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use contiv_model::{
        mac::Mac,
        name::{EndpointId, NetworkId},
        tag::Encap,
    };
    use openflow_rs::Flow;

    use super::*;
    use crate::datapath::{Network, ovs::pipeline::Segment};

    fn local(encap: Encap) -> Local {
        let id = NetworkId::new(&"net".parse().unwrap(), &"blue".parse().unwrap());
        let (network, ip) = (Network::new(id, encap), Ipv4Addr::new(10, 1, 0, 1));
        let id = EndpointId::new(&network.id, "pod1");
        Local::new(id, &network, "vvport1", Mac::of_endpoint(ip), ip)
    }

    fn vxlan() -> Encap {
        Encap::Vxlan { vni: 5000.try_into().unwrap(), local: 7.try_into().unwrap() }
    }

    /// Returns tables with the flows of an endpoint.
    fn owned(local: &Local, flows: Vec<Flow>) -> Tables {
        let owner = Cookie::of(&ObjectId::Local(local.id.clone()));
        Tables::new(flows.into_iter().map(|flow| PackedFlow::new(&flow.cookie(owner.0))), [])
    }

    /// The port of the endpoint is now on the other bridge, and must not be opened before it has flows there.
    #[test]
    fn flows_on_the_former_bridge_of_an_endpoint_do_not_count() {
        let (before, after) = (local(vxlan()), local(Encap::Vlan(100.try_into().unwrap())));
        let flows = pipeline::local(&before, Segment::bridged(before.encap), 7, None);
        let tables = PerBridge { vxlan: owned(&before, flows), ..PerBridge::default() };
        assert!(has_flows(&tables, &before, 7));
        assert!(!has_flows(&tables, &after, 7));
    }

    /// The switch has rejected the flows after a change of the tag, or it has given the port another number.
    #[test]
    fn flows_of_an_earlier_tag_or_port_do_not_count() {
        let [before, after] = [100, 101].map(|tag: u16| local(Encap::Vlan(tag.try_into().unwrap())));
        let flows = pipeline::local(&before, Segment::bridged(before.encap), 7, None);
        let tables = PerBridge { vlan: owned(&before, flows), ..PerBridge::default() };
        let cases = [(&before, 7, true), (&before, 8, false), (&after, 7, false)];
        for (local, port, expected) in cases {
            assert_eq!(has_flows(&tables, local, port), expected, "{local:?} at port {port}");
        }
    }

    /// Garbage collection has kept the endpoint's record, and the switch has opened its port.
    #[test]
    fn a_record_does_not_count_as_the_flows_of_an_endpoint() {
        let local = local(vxlan());
        let record = owned(&local, pipeline::unattached(&local, Segment::bridged(local.encap)));
        let tables = PerBridge { vxlan: record, ..PerBridge::default() };
        assert!(!has_flows(&tables, &local, 7));
    }
}
