//! Objects of the datapath, in terms of the domain.

mod endpoint;
mod network;
mod policy;
mod service;

use std::{collections::BTreeMap, fmt, net::IpAddr};

use contiv_model::{
    name::{EndpointId, NetworkId, ServiceId},
    policy::Identity,
};

pub use endpoint::{Local, Owner, Remote};
pub use network::{Family, Gateway, Network, Peer, Route, RouteId, Subnet, SubnetId};
pub use policy::Group;
pub use service::{Backend, Scope, ScopeNetwork, Service};

/// An object of the datapath.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// VTEP of another node.
    Peer(Peer),
    /// Network.
    Network(Network),
    /// Subnet of a network.
    Subnet(Subnet),
    /// Route to addresses that are in no subnet.
    Route(Route),
    /// Settings of local endpoints with one identity.
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
    /// Subnet of a network.
    Subnet(SubnetId),
    /// Route to addresses that are in no subnet.
    Route(RouteId),
    /// Settings of local endpoints with one identity.
    Group(Identity),
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
            Object::Subnet(subnet) => ObjectId::Subnet(subnet.id()),
            Object::Route(route) => ObjectId::Route(route.id.clone()),
            Object::Group(group) => ObjectId::Group(group.identity),
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
    Subnet,
    Route,
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
            ObjectKind::Subnet => "subnets",
            ObjectKind::Route => "routes",
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
            ObjectId::Subnet(_) => ObjectKind::Subnet,
            ObjectId::Route(_) => ObjectKind::Route,
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
            ObjectId::Subnet(id) => write!(f, "subnet {id}"),
            ObjectId::Route(id) => write!(f, "route {id}"),
            ObjectId::Group(identity) => write!(f, "group {identity}"),
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
