//! Import of the connections of the datapath that this one replaces. OpenFlow cannot create entries in connection
//! tracking, but packets can: the agent sends three packets of each connection through connection tracking, and the
//! switch does not output them.
//!
//! Until then no frame enters the bridges. Otherwise a packet from a backend would be tracked as a connection from the
//! backend to the client. The client's packets would then be replies of that connection and would not be sent to the
//! service.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use contiv_model::{service::Protocol, vrf::Vrf};
use ipnet::IpNet;
use openflow_rs::{Action, Port, message::Body, packet::PacketOut};

use crate::{
    datapath::{
        Local, Object, ObjectId, Remote, SequenceNumbers, TrackedConnection,
        ovs::{
            bridge::BridgeKind,
            desired::{
                domain::{domain, zones},
                model::SwitchModel,
            },
            options::DatapathType,
            pipeline::{self, Opener},
            switch::session::Session,
            tables::cookie::Cookie,
        },
        wire::segment,
    },
    error::one_line,
};

/// Maximum number of recorded connections. Each needs up to six messages.
const MAX: usize = 20_000;
/// Messages between two barriers.
const CHUNK: usize = 1000;
/// Used if the sequence numbers are unknown. The kernel does not check the numbers of a connection that it picks up;
/// ovs-vswitchd does.
const ANY_NUMBERS: [SequenceNumbers; 2] = [SequenceNumbers { next: 0, acknowledged: 0 }; 2];

/// Records the connections of the networks and services in `model`. Older entries are flushed, because they do not match
/// the packets of a connection that has continued. Lost connections are logged: their next packets open new connections.
pub(super) async fn import(
    session: &Session,
    model: &SwitchModel,
    datapath_type: DatapathType,
    mut connections: Vec<TrackedConnection>,
) {
    if datapath_type == DatapathType::System {
        for connection in &mut connections {
            connection.numbers = connection.numbers.or(Some(ANY_NUMBERS));
        }
    }
    // Connections between endpoints continue without a record.
    connections.sort_by_key(|connection| connection.backend.is_none());
    let all = connections.len();
    let known = Known { services: services(model), openers: openers(model), links: links(model) };
    let packets = |connection| packets(model, &known, connection);
    let recorded: Vec<_> = connections.iter().take(MAX).filter_map(packets).collect();
    let count = recorded.len();
    let zones = zones(&model.index, &model.numbers);
    let bodies = zones.into_keys().map(Body::FlushZone).chain(recorded.into_iter().flatten());
    // Both bridges have the same connection tracking.
    let Some(bridge) = session.bridge(BridgeKind::Vxlan) else {
        tracing::warn!("connections to services may break: no bridge is connected");
        return;
    };
    let mut bodies = bodies.peekable();
    while bodies.peek().is_some() {
        let chunk: Vec<Body> = bodies.by_ref().take(CHUNK).collect();
        if let Err(error) = bridge.send_all(chunk, |_| "record a connection".into()).await {
            tracing::warn!("connections to services may break: {}", one_line(&error));
            return;
        }
    }
    tracing::info!("took over {count} connections of the other datapath; {} lost", all - count);
}

/// Installed state that the records of connections refer to.
struct Known<'a> {
    services: Services<'a>,
    openers: Openers,
    links: Links,
}

/// Numbers of services by VRF, address, port and protocol.
type Services<'a> = HashMap<(&'a Vrf, SocketAddr, Protocol), u32>;

fn services(model: &SwitchModel) -> Services<'_> {
    let mut services = HashMap::new();
    for service in model.index.services() {
        let cookie = Cookie::of(&ObjectId::Service(service.id.clone()));
        let Some(number) = model.numbers.services.get(&cookie) else { continue };
        services.extend(service.ports.iter().map(|port| {
            ((&service.scope.vrf, SocketAddr::new(service.vip, port.port), port.protocol), number)
        }));
    }
    services
}

/// Openers of a client's connections, by the zone of its domain and its address.
type Openers = HashMap<(u16, IpAddr), Opener>;

fn openers(model: &SwitchModel) -> Openers {
    let mut openers = Openers::new();
    for object in model.index.ids().filter_map(|id| Some(&model.index.get(id)?.object)) {
        let (vrf, network, addresses, opener) = match object {
            Object::Local(Local { id, vrf, network, encap, mac, addresses, .. }) => {
                (vrf, (network, *encap), pipeline::addresses(*mac, addresses), Opener::endpoint(id))
            }
            Object::Remote(Remote { vrf, network, encap, mac, addresses, .. }) => {
                (vrf, (network, *encap), pipeline::addresses(*mac, addresses), Opener::Outside)
            }
            _ => continue,
        };
        let Some(domain) = domain(&model.index, &model.numbers, vrf, network) else { continue };
        for ip in addresses {
            let known = openers.entry((domain.zone(), ip)).or_insert(opener);
            // An endpoint that moves to this node may have both records for a moment.
            if opener != Opener::Outside {
                *known = opener;
            }
        }
    }
    openers
}

/// Subnets whose endpoints are on one link, by the zone of their domain.
type Links = HashMap<u16, Vec<IpNet>>;

fn links(model: &SwitchModel) -> Links {
    let mut links = Links::new();
    for object in model.index.ids().filter_map(|id| Some(&model.index.get(id)?.object)) {
        let Object::Subnet(subnet) = object else { continue };
        let network = (&subnet.network, subnet.encap);
        let Some(domain) = domain(&model.index, &model.numbers, &subnet.vrf, network) else { continue };
        if !subnet.is_routed_vlan() {
            links.entry(domain.zone()).or_default().push(subnet.prefix);
        }
    }
    links
}

/// Returns the packets that create the entries of a connection; `None` if the switch cannot track it.
fn packets(model: &SwitchModel, known: &Known<'_>, connection: &TrackedConnection) -> Option<Vec<Body>> {
    let TrackedConnection { vrf, network, encap, protocol, destination, backend, .. } = connection;
    let domain = domain(&model.index, &model.numbers, vrf, (network, *encap))?;
    let receiver = backend.as_ref().unwrap_or(destination);
    let key = (*protocol, receiver.port());
    let client = connection.client.ip();
    let opener = known.openers.get(&(domain.zone(), client)).copied().unwrap_or(Opener::Unknown);
    let mut links = known.links.get(&domain.zone()).into_iter().flatten();
    let is_on_link = links.any(|link| link.contains(&client) && link.contains(&receiver.ip()));
    let accepted = |to| pipeline::accepted(domain, client, key, to, (opener, is_on_link));
    let Some(backend) = backend else {
        return exchange(connection, *receiver, &accepted(None));
    };
    let number = known.services.get(&(vrf, *destination, *protocol))?;
    let to = Some((*number, destination.port()));
    let mut packets = exchange(connection, *destination, &pipeline::chosen(domain, *backend))?;
    packets.extend(exchange(connection, *receiver, &accepted(to))?);
    Some(packets)
}

/// Returns a packet of the client, the reply, and the client's next packet: both ends have then acknowledged each other.
fn exchange(connection: &TrackedConnection, receiver: SocketAddr, actions: &[Action]) -> Option<Vec<Body>> {
    let client = connection.client;
    let frames: Vec<Vec<u8>> = match (connection.protocol, connection.numbers) {
        (Protocol::Udp, _) => vec![segment::datagram(client, receiver), segment::datagram(receiver, client)],
        (Protocol::Tcp, Some(numbers)) => {
            let [own, other] = numbers.map(|SequenceNumbers { next, acknowledged }| [next, acknowledged]);
            let there = segment::acknowledgement(client, receiver, own);
            vec![there.clone(), segment::acknowledgement(receiver, client, other), there]
        }
        (Protocol::Tcp, None) => return None,
    };
    let out =
        |data| Body::PacketOut(PacketOut { in_port: Port::CONTROLLER, actions: actions.to_vec(), data });
    Some(frames.into_iter().map(out).collect())
}
