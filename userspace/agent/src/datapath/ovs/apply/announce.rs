//! Announcement of the endpoints that become active, and of the services for which the node starts to answer requests.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use contiv_model::{
    mac::Mac,
    name::{NetworkId, ServiceId},
    tag::Encap,
};
use openflow_rs::Port;

use crate::datapath::{
    Local, Object, ObjectId, Op, Service, announcement,
    ovs::{
        desired::model::SwitchModel,
        pipeline::bridge_and_tag,
        switch::{
            announcer::{Announcer, Place},
            ovsdb::Database,
            ports,
        },
        tables::index::{FlowIndex, Installed},
    },
};

/// Installed state before the ops.
pub(super) struct Before<'a> {
    /// Objects of the ops.
    objects: &'a [Installed],
    services: Services,
    /// Routed VLANs that the ops may change. Their frames stayed on the node, so that switches have not learned their
    /// endpoints.
    routed: BTreeSet<NetworkId>,
}

type Answered = BTreeMap<ServiceId, Vec<u8>>;

/// Services that ops may affect.
#[derive(Default)]
struct Services {
    /// All affected services.
    affected: BTreeSet<ServiceId>,
    /// Services for which this node answers requests, and the frames that announce them.
    answered: Answered,
}

impl Services {
    /// `objects` are the objects of the ops, installed before or after them.
    fn of<'a>(index: &FlowIndex, objects: impl Iterator<Item = &'a Object>) -> Services {
        let affected: BTreeSet<ServiceId> = objects.flat_map(|object| affected(index, object)).collect();
        Services { answered: answered(index, &affected), affected }
    }
}

impl<'a> Before<'a> {
    pub(super) fn new(model: &SwitchModel, ops: &[Op], objects: &'a [Installed]) -> Before<'a> {
        let previous = objects.iter().map(|installed| &installed.object);
        let services = Services::of(&model.index, previous.chain(set(ops)));
        Before { objects, services, routed: routed(&model.index, objects) }
    }
}

/// Announces endpoints of VLAN networks that the ops installed, or whose port or address they changed, or whose network
/// they changed from routed to bridged. Also announces the services for which this node now answers. Endpoints are
/// announced even without an uplink: the bridge itself learns their ports.
pub(super) fn changed(announcer: &Announcer, model: &SwitchModel, ops: &[Op], before: &Before<'_>) {
    let was_routed = |local: &Local| before.routed.contains(&local.network);
    for op in ops {
        match op {
            Op::Delete(endpoint @ ObjectId::Local(_)) => announcer.withdraw(endpoint),
            Op::Set(Object::Local(local)) => {
                let id = ObjectId::Local(local.id.clone());
                let Some(installed) = model.index.get(&id) else { continue };
                let before = before.objects.iter().find(|installed| installed.object.id() == id);
                // Frames of routed VLANs stay on the node. Endpoints of formerly routed VLANs follow below.
                let is_bridged = !model.index.is_routed_vlan(&local.network);
                if is_new(local, installed, before) && is_bridged && !was_routed(local) {
                    announcer.announce(&id, endpoint_frames(local));
                }
            }
            _ => {}
        }
    }
    for local in bridged_since(&model.index, &before.routed) {
        announcer.announce(&ObjectId::Local(local.id.clone()), endpoint_frames(local));
    }
    if !model.base.uplinks.is_empty() {
        services(announcer, model, ops, &before.services);
    }
}

/// Returns the networks of installed subnets that are routed VLANs.
fn routed(index: &FlowIndex, objects: &[Installed]) -> BTreeSet<NetworkId> {
    let networks = objects.iter().filter_map(|installed| match &installed.object {
        Object::Subnet(subnet) => Some(&subnet.network),
        _ => None,
    });
    networks.filter(|network| index.is_routed_vlan(network)).cloned().collect()
}

/// Returns the local endpoints of those networks that are no longer routed VLANs.
fn bridged_since<'a>(
    index: &'a FlowIndex,
    routed: &'a BTreeSet<NetworkId>,
) -> impl Iterator<Item = &'a Local> {
    let bridged = routed.iter().filter(|network| !index.is_routed_vlan(network));
    bridged.flat_map(|network| index.locals(network)).map(|(local, _)| local)
}

fn services(announcer: &Announcer, model: &SwitchModel, ops: &[Op], before: &Services) {
    let mut affected = Services::of(&model.index, set(ops)).affected;
    affected.extend(before.affected.iter().cloned());
    let now = answered(&model.index, &affected);
    for service in before.answered.keys().filter(|service| !now.contains_key(service)) {
        announcer.withdraw(&ObjectId::Service(service.clone()));
    }
    for (service, frame) in now {
        if before.answered.get(&service) != Some(&frame) {
            announcer.announce(&ObjectId::Service(service), vec![frame]);
        }
    }
}

/// Sends the announcements of endpoints whose port now carries their VLAN.
pub(in super::super) fn release(announcer: &Announcer, database: &Database, index: &FlowIndex) {
    let closed = ports::closed(database);
    announcer.update(|subject| place(index, &closed, subject));
}

fn place(index: &FlowIndex, closed: &BTreeSet<&str>, subject: &ObjectId) -> Place {
    let Some(installed) = index.get(subject) else { return Place::Elsewhere };
    match (&installed.object, &installed.port) {
        (Object::Local(_), Some(port)) if closed.contains(port.name.as_str()) => Place::Closed,
        (Object::Local(_), Some(port)) => Place::At(port.number.into()),
        (Object::Service(service), _) if index.is_answered(service) => Place::At(Port::CONTROLLER),
        _ => Place::Elsewhere,
    }
}

fn set(ops: &[Op]) -> impl Iterator<Item = &Object> {
    ops.iter().filter_map(|op| match op {
        Op::Set(object) => Some(object),
        _ => None,
    })
}

/// Returns the services for which this object may change whether the node answers.
fn affected(index: &FlowIndex, object: &Object) -> Vec<ServiceId> {
    let spoken_for = |network: &NetworkId, addresses: Vec<IpAddr>| {
        addresses.into_iter().flat_map(|ip| index.spoken_for(network, ip)).cloned().collect()
    };
    match object {
        Object::Service(service) => vec![service.id.clone()],
        Object::Local(local) => spoken_for(&local.network, local.addresses.iter().collect()),
        _ => vec![],
    }
}

fn answered(index: &FlowIndex, services: &BTreeSet<ServiceId>) -> Answered {
    let frame = |id: &ServiceId| match &index.get(&ObjectId::Service(id.clone()))?.object {
        Object::Service(service) if index.is_answered(service) => service_frame(service),
        _ => None,
    };
    services.iter().filter_map(|id| Some((id.clone(), frame(id)?))).collect()
}

/// Reports whether switches may have learned the endpoint at another port, or not at all.
fn is_new(local: &Local, installed: &Installed, before: Option<&Installed>) -> bool {
    let is_in_effect = installed.object == Object::Local(local.clone());
    let same = before.is_some_and(|before| {
        before.port == installed.port
            && matches!(&before.object, Object::Local(old)
                if (old.encap, old.mac, &old.addresses) == (local.encap, local.mac, &local.addresses))
    });
    matches!(local.encap, Encap::Vlan(_)) && is_in_effect && !same
}

/// The frames enter the bridge at the endpoint's port, where the bridge assigns the tag.
fn endpoint_frames(local: &Local) -> Vec<Vec<u8>> {
    local.addresses.iter().map(|ip| announcement::untagged(local.mac.0, ip)).collect()
}

fn service_frame(service: &Service) -> Option<Vec<u8>> {
    let (_, tag) = bridge_and_tag(service.scope.network.as_ref()?.encap);
    Some(announcement::frame(tag as u16, Mac::of_service(service.vip).0, service.vip))
}

#[cfg(test)]
mod tests {
    use contiv_model::name::EndpointId;
    use serde_json::json;

    use super::*;
    use crate::datapath::{Gateway, Network, Subnet, ovs::tables::index::BridgePort};

    /// Switches have not learned the endpoint, whose object does not change, or have learned its address at another port.
    #[test]
    fn endpoints_of_a_routed_vlan_are_announced_when_it_is_bridged() {
        let network: NetworkId = NetworkId::new(&"net".parse().unwrap(), &"green".parse().unwrap());
        let network = Network::new(network, Encap::Vlan(100.try_into().unwrap()));
        let mac = "02:02:0a:01:00:01".parse().unwrap();
        let id = EndpointId::new(&network.id, "pod1");
        let local = Local::new(id.clone(), &network, "vvport1", mac, std::net::Ipv4Addr::new(10, 1, 0, 1));
        let port = Some(BridgePort { name: "vvport1".into(), number: 7 });
        let subnet = |mac| Installed {
            object: Object::Subnet(Subnet {
                network: network.id.clone(),
                vrf: network.vrf.clone(),
                encap: network.encap,
                prefix: "10.1.0.0/24".parse().unwrap(),
                gateway: Some(Gateway { ip: "10.1.0.254".parse().unwrap(), mac }),
            }),
            port: None,
        };
        let mut index = FlowIndex::default();
        index.insert(Installed { object: Object::Local(local), port });
        let announced = |index: &FlowIndex, routed: &BTreeSet<NetworkId>| -> Vec<EndpointId> {
            bridged_since(index, routed).map(|local| local.id.clone()).collect()
        };
        let [bridged, router] = [None, Some(Mac::ROUTER)].map(subnet);
        index.insert(router.clone());
        let before = routed(&index, std::slice::from_ref(&router));
        assert_eq!(announced(&index, &before), [], "it is still routed");
        index.insert(bridged.clone());
        assert_eq!(announced(&index, &before), [id]);
        let before = routed(&index, &[bridged]);
        assert_eq!(announced(&index, &before), [], "it was bridged before");
    }

    /// An endpoint with rules is moved to its VLAN after its flows are programmed. If the agent loses the switch in
    /// between, the retry finds both.
    #[test]
    fn an_endpoint_is_announced_when_its_port_carries_the_vlan() {
        let network: NetworkId = NetworkId::new(&"net".parse().unwrap(), &"green".parse().unwrap());
        let network = Network::new(network, Encap::Vlan(100.try_into().unwrap()));
        let id = EndpointId::new(&network.id, "pod1");
        let mac = "02:02:0a:01:00:01".parse().unwrap();
        let local = Local::new(id.clone(), &network, "vvport1", mac, std::net::Ipv4Addr::new(10, 1, 0, 1));
        let port = Some(BridgePort { name: "vvport1".into(), number: 7 });
        let id = ObjectId::Local(id);
        let mut index = FlowIndex::default();
        index.insert(Installed { object: Object::Local(local), port });
        let mut database = Database::default();
        for (tag, expected) in [(4095, Place::Closed), (100, Place::At(Port(7)))] {
            database.update(&json!({"Port": {"port": {"new": {"name": "vvport1", "tag": tag}}}}));
            assert_eq!(place(&index, &ports::closed(&database), &id), expected);
        }
        index.remove(&id);
        assert_eq!(place(&index, &ports::closed(&database), &id), Place::Elsewhere);
    }
}
