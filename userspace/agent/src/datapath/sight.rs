//! What a datapath tells of single packets, and what it has counted of them.

use std::{net::IpAddr, time::SystemTime};

use contiv_model::{
    mac::Mac,
    name::{RuleId, ServiceId},
    service::Protocol,
    tag::Encap,
};

use super::Fill;

/// A packet that was dropped, or the first of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// When.
    pub at: SystemTime,
    /// Why it went no further; `None` when a flow begins.
    pub dropped: Option<&'static str>,
    /// The tag of its network, if that is known.
    pub tag: Option<Tag>,
    /// The interface that it came in by; `None` of a flow from outside.
    pub interface: Option<String>,
    /// Ethernet's type; zero when the frame is too short.
    pub kind: u16,
    /// The protocol above IP; zero when it is not IP.
    pub protocol: u8,
    /// Who sent it.
    pub source: End,
    /// Whom it addresses.
    pub destination: End,
    /// Where the service goes that it addresses.
    pub backend: Option<End>,
    /// The rules that decided, the source's first.
    pub rules: Vec<RuleId>,
    /// Bytes of the frame.
    pub len: u32,
}

/// One end of a packet's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// `None` when it is not IP.
    pub ip: Option<IpAddr>,
    /// Zero when it has none.
    pub port: u16,
    /// All zero when it is not told.
    pub mac: Mac,
}

/// A network as the wire knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tag {
    /// 802.1Q.
    Vlan(u16),
    /// VXLAN identifier.
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
    /// Who began it.
    pub client: IpAddr,
    /// The service's address and port.
    pub service: (IpAddr, u16),
    /// Where it goes.
    pub backend: (IpAddr, u16),
    /// TCP or UDP.
    pub protocol: Protocol,
    /// What the client has sent.
    pub to_backend: Traffic,
    /// What it was answered.
    pub to_client: Traffic,
}

/// Frames, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are what their names say")]
pub struct Traffic {
    pub packets: u64,
    pub bytes: u64,
}

/// What packets have left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tallies {
    /// By rule: connections that it let through, or packets that it stopped. Rules that never decided are left out.
    pub rules: Vec<(RuleId, Traffic)>,
    /// By port of a service. Those without a connection are left out.
    pub services: Vec<(ServicePort, Served)>,
    /// The tables that packets fill.
    pub tables: Vec<Fill>,
}

/// A port of a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServicePort {
    /// Of which.
    pub service: ServiceId,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The number.
    pub port: u16,
}

impl std::fmt::Display for ServicePort {
    /// `<service>:<tenant>:TCP:80`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.service, self.protocol, self.port)
    }
}

/// What clients here and a service have sent each other, flows that have ended included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Connections that began.
    pub connections: u64,
    /// What clients have sent.
    pub to_backends: Traffic,
    /// What they were answered.
    pub to_clients: Traffic,
}
