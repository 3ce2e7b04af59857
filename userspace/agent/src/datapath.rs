//! The seam between what a node should forward and what makes it so.
//!
//! A datapath is told objects in the words of the domain, each complete in itself: it never looks
//! anything up in the store, in Kubernetes or in the plan. It can be read back, so a restart and a
//! drift are repaired by the same code that makes an ordinary change.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::Future,
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

pub mod ebpf;
pub mod fake;
pub mod ovs;
pub mod sight;

/// A network that this node carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Which.
    pub id: NetworkId,
    /// Its tag. No two networks of one `Desired` share a tag of the same kind.
    pub encap: Encap,
    /// Whether ARP and ND are answered for known endpoints, or flooded.
    pub arp: ArpMode,
}

/// Who has the other end of a port's pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Holder {
    /// A pod, in its own network namespace.
    #[default]
    Pod,
    /// The node itself: both ends are in its namespace.
    Node,
}

/// An endpoint whose interface is on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// Which.
    pub id: EndpointId,
    /// The network that it is on.
    pub network: NetworkId,
    /// The network's tag.
    pub encap: Encap,
    /// The name of the host end of its veth pair, e.g. `vvport3`. The interface exists before the
    /// object is told and is removed after the object is deleted.
    pub port: String,
    /// Whose the other end is.
    pub holder: Holder,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Its IPv4 address.
    pub ip: Ipv4Addr,
    /// Its IPv6 address.
    pub ip6: Option<Ipv6Addr>,
    /// The group that it belongs to.
    pub group: Option<GroupNumber>,
}

/// An endpoint on another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Which.
    pub id: EndpointId,
    /// The network that it is on.
    pub network: NetworkId,
    /// The network's tag.
    pub encap: Encap,
    /// The VTEP of its node. `None` on a VLAN network: the frame finds its way by the tag alone.
    /// On a VXLAN network an endpoint whose node is not known yet is not told at all.
    pub vtep: Option<IpAddr>,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Its IPv4 address.
    pub ip: Ipv4Addr,
    /// Its IPv6 address.
    pub ip6: Option<Ipv6Addr>,
    /// The group that it belongs to.
    pub group: Option<GroupNumber>,
}

/// The VTEP of another node: frames of VXLAN networks are taken from it and flooded to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The address of the tunnel's other end.
    pub vtep: IpAddr,
    /// The UDP port that it listens on.
    pub port: u16,
}

/// What holds for the endpoints of a group that are on this node. A group about which there is nothing to say, or
/// without endpoints here, is no object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Which.
    pub number: GroupNumber,
    /// How the packets that its endpoints send are marked, of either family, also in the header of a tunnel.
    pub dscp: Option<Dscp>,
    /// What each of its endpoints may send, and be sent.
    pub rate: Option<Rate>,
    /// What [`contiv_model::policy::decide`] goes by: `out` rules where these endpoints are the source, `in` rules
    /// where they are the destination. A change of the rules is in force at once: no packet sees some of the old and
    /// some of the new. Rules of which only the subnets differ share an id.
    pub rules: Arc<[Rule]>,
}

/// An address that stands for several endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Which.
    pub id: ServiceId,
    /// The network whose endpoints can use the address. None for services of the whole cluster.
    pub scope: Option<Scope>,
    /// The address. The Ethernet address of an IPv4 one is [`Mac::of_endpoint`] of it, as if an endpoint had it.
    pub vip: IpAddr,
    /// What it serves: no two with the same protocol and port.
    pub ports: Vec<Port>,
    /// What serves it, by address; each once. Without one that is ready, clients are refused.
    pub backends: Vec<Backend>,
    /// For how long after its last connection a client stays with its backend.
    pub affinity: Option<Duration>,
}

/// The network of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Which.
    pub network: NetworkId,
    /// The network's tag.
    pub encap: Encap,
}

/// What serves a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend {
    /// Its address.
    pub ip: IpAddr,
    /// The tag of the network that has the address, which need not be the service's.
    pub encap: Encap,
    /// Whether it takes new connections.
    pub readiness: Readiness,
}

/// Anything that a datapath holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// Another node's VTEP.
    Peer(Peer),
    /// A network.
    Network(Network),
    /// What holds for endpoints here.
    Group(Group),
    /// An endpoint elsewhere.
    Remote(Remote),
    /// A service.
    Service(Service),
    /// An endpoint here.
    Local(Local),
}

/// What an [`Object`] is known by. The order is the order of making: an endpoint here comes last,
/// when all that it may talk to is in place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectId {
    /// Another node's VTEP.
    Peer(IpAddr),
    /// A network.
    Network(NetworkId),
    /// What holds for endpoints here.
    Group(GroupNumber),
    /// An endpoint elsewhere.
    Remote(EndpointId),
    /// A service.
    Service(ServiceId),
    /// An endpoint here.
    Local(EndpointId),
}

impl Object {
    /// What it is known by.
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

/// What sort of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is the object that its name says")]
pub enum ObjectKind {
    Peer,
    Network,
    Group,
    Remote,
    Service,
    Local,
}

impl fmt::Display for ObjectKind {
    /// Of several.
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
    /// What sort of object it is the id of.
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

/// All that a node's datapath should hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    objects: BTreeMap<ObjectId, Object>,
}

impl Desired {
    /// The object known by `id`.
    pub fn get(&self, id: &ObjectId) -> Option<&Object> {
        self.objects.get(id)
    }

    /// Adds or replaces an object; what stood there before is returned.
    pub fn insert(&mut self, object: Object) -> Option<Object> {
        self.objects.insert(object.id(), object)
    }

    /// Takes an object out.
    pub fn remove(&mut self, id: &ObjectId) -> Option<Object> {
        self.objects.remove(id)
    }

    /// Every object, in the order of making.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectId, &Object)> {
        self.objects.iter()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// True when nothing is desired.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }
}

impl FromIterator<Object> for Desired {
    fn from_iter<I: IntoIterator<Item = Object>>(objects: I) -> Self {
        Desired { objects: objects.into_iter().map(|o| (o.id(), o)).collect() }
    }
}

/// What a datapath holds, measured against a [`Desired`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Desired objects that are in place in every detail.
    pub same: BTreeSet<ObjectId>,
    /// How many things (flows, ports, map entries) are there that no desired object accounts for.
    pub strays: usize,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Make the object be there just so, whatever was there before.
    Set(Object),
    /// Make the object be gone.
    Delete(ObjectId),
    /// Remove the strays that the last `observe` counted. Comes after every `Set` of its batch.
    Sweep,
}

/// An op that did not happen.
#[derive(Debug)]
pub struct Failed {
    /// Its place in the ops that `apply` was given.
    pub op: usize,
    /// Why.
    pub error: Error,
}

/// A datapath could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[error("{datapath} datapath: {operation}")]
pub struct Error {
    /// Which kind of datapath.
    pub datapath: Kind,
    /// What it was doing and to what, and what the operator may try.
    pub operation: String,
    /// What went wrong.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// The datapath has no means for what it was asked: trying again is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not supported by this datapath yet")]
pub struct Unsupported;

impl Error {
    /// `datapath` has no means for the object.
    pub fn unsupported(datapath: Kind, object: &Object) -> Self {
        Error::new(datapath, format!("set {}", object.id()), Unsupported)
    }

    /// Whether it says that the datapath has no means for what it was asked.
    pub fn is_unsupported(&self) -> bool {
        self.source.is::<Unsupported>()
    }

    /// `operation` failed with `source`.
    pub fn new(
        datapath: Kind,
        operation: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Error { datapath, operation: operation.into(), source: source.into() }
    }
}

/// The kinds of datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Open vSwitch.
    Ovs,
    /// TC and XDP programs.
    Ebpf,
    /// A datapath in memory, for tests.
    Fake,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Ovs => "ovs",
            Kind::Ebpf => "ebpf",
            Kind::Fake => "fake",
        })
    }
}

/// What a datapath counts, for metrics. A datapath that counts nothing of a sort has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that went no further, by reason.
    pub drops: Vec<(&'static str, u64)>,
    /// What has happened to flows.
    pub flows: Vec<(&'static str, u64)>,
    /// Its tables.
    pub tables: Vec<Fill>,
    /// Packets to services that were sent on to the nodes of their backends, by the program that did it.
    pub relayed: Vec<(&'static str, u64)>,
    /// Announcements of services on the wire, by what has become of them.
    pub announced: Vec<(&'static str, u64)>,
    /// Where its programs are attached: the hook, and how.
    pub hooks: Vec<(&'static str, String)>,
}

/// How full a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Its name.
    pub table: &'static str,
    /// What is in it.
    pub entries: usize,
    /// What it holds at most.
    pub room: usize,
}

/// What a datapath needs of the veth pairs that it is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortNeeds {
    /// The pod's end must not leave checksums to be finished by the receiver.
    pub tx_offload_off: bool,
}

/// Makes one node's forwarding match a list of operations.
///
/// Forwarding state outlives the value: dropping a datapath, or the death of its process, removes
/// nothing, and the next one adopts what it finds.
pub trait Datapath: Send {
    /// Measures what the switch or kernel holds, including what an earlier run left, against
    /// `desired`. Changes nothing but, on the first call, the scaffolding (bridges, devices,
    /// programs) if it is not there. Afterwards the datapath knows everything that is in place, so
    /// that ops may follow.
    ///
    /// When everything is as desired, no write of any kind happens.
    fn observe(&mut self, desired: &Desired) -> impl Future<Output = Result<Observed, Error>> + Send;

    /// Makes the ops happen, in their order as far as it can be seen from outside. Idempotent: an op
    /// that is already true succeeds. Ops that fail are returned; the rest stand. An `Err` means
    /// that the state of the datapath is not known any more: `observe` comes next.
    fn apply(&mut self, ops: &[Op]) -> impl Future<Output = Result<Vec<Failed>, Error>> + Send;

    /// Resolves when the datapath has reason to believe that what it held was lost or changed behind
    /// its back (the switch restarted, its connection broke), so that `observe` should come soon.
    fn disturbed(&mut self) -> impl Future<Output = ()> + Send;

    /// What is changed in the switch or kernel since the value was made: database rows, flows, groups,
    /// map entries, attachments. Reading is no write.
    fn writes(&self) -> u64;

    /// What the veth pairs need.
    fn port_needs(&self) -> PortNeeds;

    /// The inside, for `/inspect/driver`.
    fn inspect(&self) -> serde_json::Value;

    /// What it counts.
    fn counts(&self) -> Counts {
        Counts::default()
    }

    /// What is in force in another way than was asked for, a line each: what, why, and what to do.
    fn shortfalls(&self) -> Vec<String> {
        vec![]
    }

    /// Tells of single packets to whoever asks; `None` for a datapath that cannot.
    fn watcher(&self) -> Option<ebpf::Watcher> {
        None
    }

    /// Removes everything that any run of this datapath made on the node.
    fn cleanup(&mut self) -> impl Future<Output = Result<(), Error>> + Send;
}
