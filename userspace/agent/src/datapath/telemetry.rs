//! Packet events and counters that a datapath provides.

use std::{fmt::Debug, net::IpAddr, time::SystemTime};

use contiv_model::{
    mac::Mac,
    name::{RuleId, ServiceId},
    service::Protocol,
    tag::Encap,
};
use futures::future::BoxFuture;

use super::error::Error;

/// Read access to a datapath from other tasks, independent of the reconciler's use of it.
pub trait Telemetry: Debug + Send + Sync {
    /// Counters of rules and services. Blocks for a few milliseconds at most: it does not read whole flow tables.
    fn counters(&self) -> Result<Counters, Error>;

    /// Tracked connections to services. Blocks while it reads the flow tables.
    fn connections(&self) -> Result<Vec<Connection>, Error>;

    /// Starts packet events. A datapath supports one subscriber: an earlier subscriber receives no further events.
    fn subscribe(&self) -> Result<Box<dyn PacketEvents>, Error>;
}

/// Subscription to packet events. Dropping it stops the events.
pub trait PacketEvents: Send {
    /// The next event. Cancel-safe: dropping the future loses no event.
    fn next(&mut self) -> BoxFuture<'_, Result<PacketEvent, Error>>;

    /// Renews the subscription, which expires within seconds.
    fn renew(&mut self) -> Result<(), Error>;

    /// Number of events lost since the subscription began because of the rate limit or a full buffer.
    fn lost(&self) -> Result<u64, Error>;
}

/// A dropped packet, or the first packet of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketEvent {
    /// Time at which the datapath processed the packet.
    pub at: SystemTime,
    /// Drop reason; `None` for the first packet of a flow.
    pub dropped: Option<&'static str>,
    /// Network's tag, if known.
    pub tag: Option<Tag>,
    /// Ingress interface; `None` if the interface no longer exists or the flow comes from outside.
    pub interface: Option<String>,
    /// EtherType; zero if the frame is too short.
    pub ethertype: u16,
    /// IP protocol number; zero if the packet is not IP.
    pub protocol: u8,
    /// Source.
    pub source: PacketAddress,
    /// Destination before service translation.
    pub destination: PacketAddress,
    /// Selected backend, if the destination is a service.
    pub backend: Option<PacketAddress>,
    /// Rules that decided: the source's rule before the destination's.
    pub rules: Vec<RuleId>,
    /// Frame length in bytes.
    pub len: u32,
}

/// Source or destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketAddress {
    /// IP address; `None` if the packet is not IP.
    pub ip: Option<IpAddr>,
    /// L4 port; zero if the protocol has none.
    pub port: u16,
    /// Ethernet address; all zero if not reported.
    pub mac: Mac,
}

/// Tag of a network on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tag {
    /// 802.1Q VLAN id.
    Vlan(u16),
    /// VXLAN network identifier.
    Vxlan(u32),
}

impl From<Encap> for Tag {
    fn from(encap: Encap) -> Tag {
        match encap {
            Encap::Vlan(vlan) => Tag::Vlan(vlan.get()),
            Encap::Vxlan { vni, .. } => Tag::Vxlan(vni.get()),
        }
    }
}

impl std::fmt::Display for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Tag::Vlan(tag) => write!(f, "vlan {tag}"),
            Tag::Vxlan(vni) => write!(f, "vxlan {vni}"),
        }
    }
}

/// A connection to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Client's address.
    pub client: IpAddr,
    /// Service's address and port.
    pub service: (IpAddr, u16),
    /// Backend's address and port.
    pub backend: (IpAddr, u16),
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Traffic from the client to the backend.
    pub to_backend: Traffic,
    /// Traffic from the backend to the client.
    pub to_client: Traffic,
}

/// Frames and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of frames.
    pub packets: u64,
    /// Sum of the frame lengths in bytes.
    pub bytes: u64,
}

/// Counters that the datapath updates per packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Per rule: connections allowed, or packets denied. Contains only rules with a non-zero counter.
    pub rules: Vec<(RuleId, Traffic)>,
    /// Per service port. Contains only ports with a connection.
    pub services: Vec<(ServicePort, ServiceCounters)>,
    /// Tables whose entries packets create.
    pub tables: Vec<TableUsage>,
    /// Dropped frames, by reason, that are not in [`Stats`].
    pub drops: Vec<(&'static str, u64)>,
}

/// A port of a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServicePort {
    /// Service.
    pub service: ServiceId,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Port number.
    pub port: u16,
}

impl std::fmt::Display for ServicePort {
    /// Formats as `<service>:<tenant>:TCP:80`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.service, self.protocol, self.port)
    }
}

/// Traffic between the clients on this node and a service, including ended flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceCounters {
    /// Connections opened.
    pub connections: u64,
    /// Traffic from clients to backends.
    pub to_backends: Traffic,
    /// Traffic from backends to clients.
    pub to_clients: Traffic,
}

/// Statistics for metrics. Fields that a datapath does not count are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Dropped frames, by reason.
    pub drops: Vec<(&'static str, u64)>,
    /// Flow events, by kind.
    pub flows: Vec<(&'static str, u64)>,
    /// Usage of tables.
    pub tables: Vec<TableUsage>,
    /// Service packets forwarded to the nodes of their backends (DSR), by program.
    pub dsr_forwarded: Vec<(&'static str, u64)>,
    /// GARP and ND announcements of service addresses, by result.
    pub announcements: Vec<(&'static str, u64)>,
    /// GARP and ND announcements of endpoints, by result.
    pub endpoint_announcements: Vec<(&'static str, u64)>,
    /// Attached programs: the hook and the attach mode.
    pub hooks: Vec<(&'static str, String)>,
}

/// Usage of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableUsage {
    /// Table's name.
    pub table: &'static str,
    /// Number of entries.
    pub entries: usize,
    /// Maximum number of entries.
    pub capacity: usize,
}
