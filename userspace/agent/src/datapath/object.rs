use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use contiv_model::{
    global::ArpMode,
    group::{Dscp, GroupNumber, Rate},
    mac::Mac,
    name::{EndpointId, NetworkId, ServiceId},
    policy::Rule,
    service::{Port, Readiness},
    tag::Encap,
};

/// A network present on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Network's id.
    pub id: NetworkId,
    /// Encapsulation tag. Unique within a [`Desired`] among tags of the same kind.
    pub encap: Encap,
    /// Whether the datapath answers ARP and ND for known endpoints, or floods the requests.
    pub arp: ArpMode,
}

/// Owner of the other end of a port's veth pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Owner {
    /// A pod; the other end is in the pod's network namespace.
    #[default]
    Pod,
    /// The node; both ends are in the node's network namespace.
    Node,
}

/// An endpoint whose interface is on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// Endpoint's id.
    pub id: EndpointId,
    /// Network that the endpoint belongs to.
    pub network: NetworkId,
    /// Tag of the network.
    pub encap: Encap,
    /// Name of the host end of the veth pair, e.g. `vvport3`. The interface exists before the object is set, and is
    /// removed after the object is deleted.
    pub port: String,
    /// Owner of the other end of the veth pair.
    pub owner: Owner,
    /// Ethernet address.
    pub mac: Mac,
    /// IPv4 address.
    pub ip: Ipv4Addr,
    /// IPv6 address, if any.
    pub ip6: Option<Ipv6Addr>,
    /// Group that the endpoint belongs to, if any.
    pub group: Option<GroupNumber>,
}

/// An endpoint on another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Endpoint's id.
    pub id: EndpointId,
    /// Network that the endpoint belongs to.
    pub network: NetworkId,
    /// Tag of the network.
    pub encap: Encap,
    /// VTEP of the endpoint's node; `None` on VLAN networks, where the tag alone selects the destination. On a VXLAN
    /// network an endpoint whose node is unknown is not planned.
    pub vtep: Option<IpAddr>,
    /// Ethernet address.
    pub mac: Mac,
    /// IPv4 address.
    pub ip: Ipv4Addr,
    /// IPv6 address, if any.
    pub ip6: Option<Ipv6Addr>,
    /// Group that the endpoint belongs to, if any.
    pub group: Option<GroupNumber>,
}

/// The VTEP of another node: the datapath accepts VXLAN frames from it and floods frames to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address of the remote VTEP.
    pub vtep: IpAddr,
    /// UDP port of the remote VTEP.
    pub port: u16,
}

/// Settings for a group's endpoints on this node. A group without settings, or without endpoints on this node, has no
/// object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Group's number.
    pub number: GroupNumber,
    /// DSCP of the packets that the endpoints send, IPv4 and IPv6, also set in the outer header of a tunnel.
    pub dscp: Option<Dscp>,
    /// Bandwidth limit per endpoint, for each direction.
    pub rate: Option<Rate>,
    /// Input of [`contiv_model::policy::decide`]: `out` rules if these endpoints are the source, `in` rules if they
    /// are the destination. A change takes effect atomically: no packet is evaluated against a mix of the old and the
    /// new rules. Rules that differ only in their subnets share an id.
    pub rules: Arc<[Rule]>,
}

/// A virtual address that selects among backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Service's id.
    pub id: ServiceId,
    /// Network whose endpoints can use the address; `None` for services of the whole cluster.
    pub scope: Option<Scope>,
    /// Virtual address. The Ethernet address of an IPv4 one is [`Mac::of_endpoint`], as for an endpoint.
    pub vip: IpAddr,
    /// Ports, unique by protocol and port.
    pub ports: Vec<Port>,
    /// Backends, unique and sorted by address. Without a ready backend, clients are refused.
    pub backends: Vec<Backend>,
    /// Time for which a client keeps its backend after its last connection.
    pub affinity: Option<Duration>,
}

/// Network of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Network's id.
    pub network: NetworkId,
    /// Tag of the network.
    pub encap: Encap,
}

/// Backend of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend {
    /// Backend's address.
    pub ip: IpAddr,
    /// Tag of the network that contains the address; may differ from the service's network.
    pub encap: Encap,
    /// Whether the backend accepts new connections.
    pub readiness: Readiness,
}

/// An object of the datapath.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// VTEP of another node.
    Peer(Peer),
    /// Network.
    Network(Network),
    /// Settings of a group's local endpoints.
    Group(Group),
    /// Endpoint on another node.
    Remote(Remote),
    /// Service.
    Service(Service),
    /// Endpoint on this node.
    Local(Local),
}

/// Identity of an [`Object`]. The order is the order of creation: a local endpoint comes last, after everything that
/// it may communicate with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectId {
    /// VTEP of another node.
    Peer(IpAddr),
    /// Network.
    Network(NetworkId),
    /// Settings of a group's local endpoints.
    Group(GroupNumber),
    /// Endpoint on another node.
    Remote(EndpointId),
    /// Service.
    Service(ServiceId),
    /// Endpoint on this node.
    Local(EndpointId),
}

impl Object {
    /// Identity of the object.
    pub fn id(&self) -> ObjectId {
        match self {
            Object::Peer(peer) => ObjectId::Peer(peer.vtep),
            Object::Network(network) => ObjectId::Network(network.id.clone()),
            Object::Group(group) => ObjectId::Group(group.number),
            Object::Remote(remote) => ObjectId::Remote(remote.id.clone()),
            Object::Service(service) => ObjectId::Service(service.id.clone()),
            Object::Local(local) => ObjectId::Local(local.id.clone()),
        }
    }
}

/// Kind of an [`Object`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the variants are those of `Object`")]
pub enum ObjectKind {
    Peer,
    Network,
    Group,
    Remote,
    Service,
    Local,
}

impl fmt::Display for ObjectKind {
    /// Formats as a plural noun.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ObjectKind::Peer => "peers",
            ObjectKind::Network => "networks",
            ObjectKind::Group => "groups with policies, DSCP or bandwidth",
            ObjectKind::Remote => "remote endpoints",
            ObjectKind::Service => "services",
            ObjectKind::Local => "local endpoints",
        })
    }
}

impl ObjectId {
    /// Kind of the object.
    pub fn kind(&self) -> ObjectKind {
        match self {
            ObjectId::Peer(_) => ObjectKind::Peer,
            ObjectId::Network(_) => ObjectKind::Network,
            ObjectId::Group(_) => ObjectKind::Group,
            ObjectId::Remote(_) => ObjectKind::Remote,
            ObjectId::Service(_) => ObjectKind::Service,
            ObjectId::Local(_) => ObjectKind::Local,
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectId::Peer(vtep) => write!(f, "peer {vtep}"),
            ObjectId::Network(id) => write!(f, "network {id}"),
            ObjectId::Group(number) => write!(f, "group {number}"),
            ObjectId::Remote(id) => write!(f, "remote endpoint {id}"),
            ObjectId::Service(id) => write!(f, "service {id}"),
            ObjectId::Local(id) => write!(f, "local endpoint {id}"),
        }
    }
}

/// Desired state of a node's datapath.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    objects: BTreeMap<ObjectId, Object>,
}

impl Desired {
    /// Returns the object with this id.
    pub fn get(&self, id: &ObjectId) -> Option<&Object> {
        self.objects.get(id)
    }

    /// Inserts or replaces an object and returns the previous one.
    pub fn insert(&mut self, object: Object) -> Option<Object> {
        self.objects.insert(object.id(), object)
    }

    /// Removes an object and returns it.
    pub fn remove(&mut self, id: &ObjectId) -> Option<Object> {
        self.objects.remove(id)
    }

    /// Iterates over all objects in the order of creation.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectId, &Object)> {
        self.objects.iter()
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }
}

impl FromIterator<Object> for Desired {
    fn from_iter<I: IntoIterator<Item = Object>>(objects: I) -> Self {
        Desired { objects: objects.into_iter().map(|o| (o.id(), o)).collect() }
    }
}
