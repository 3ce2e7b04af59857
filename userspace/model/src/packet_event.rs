//! Packet events: dropped packets and new flows, as an agent's `GET /monitor` reports them, one
//! line of JSON each.

use std::{fmt, net::IpAddr};

use serde::{Deserialize, Serialize};

/// What a line reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// A dropped packet.
    #[default]
    Drop,
    /// A new flow.
    Flow,
    /// Events were lost because of the rate limit or a full ring.
    Lost,
}

/// Source, destination or backend of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FlowEnd {
    /// IP address, if the frame has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<IpAddr>,
    /// Port, if the protocol has ports; else 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub port: u16,
    /// Ethernet address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// Endpoint with the address, `<network>.<tenant>-<endpoint>`; empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// Group of the endpoint, `<group>:<tenant>`; empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
}

/// A line of `GET /monitor`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PacketEvent {
    /// Time of the event, RFC 3339, UTC.
    pub time: String,
    /// Node that reports the event.
    pub host: String,
    /// What the line reports.
    pub event: EventKind,
    /// Drop reason; empty for other events.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// `<network>.<tenant>`, or the tag if no network has it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// Interface of the node that the packet was received on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interface: String,
    /// `tcp`, `udp`, `icmp`, `icmpv6`, `sctp`, or the IP protocol number; `arp` or the EtherType if
    /// the frame is not IP.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// Source of the packet.
    pub source: FlowEnd,
    /// Destination of the packet.
    pub destination: FlowEnd,
    /// Service at the destination, `<service>:<tenant>`; empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service: String,
    /// Backend that the service's address is translated to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<FlowEnd>,
    /// Rules that decided, the source's first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// Length of the frame in bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes: u32,
    /// Number of events that were lost; for [`EventKind::Lost`] only.
    #[serde(skip_serializing_if = "is_zero")]
    pub lost: u64,
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl fmt::Display for FlowEnd {
    /// Formats as `10.1.1.2:80 (net.default-c1)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.ip, self.port) {
            (None, _) => f.write_str(&self.mac)?,
            (Some(ip), 0) => write!(f, "{ip}")?,
            (Some(IpAddr::V4(ip)), port) => write!(f, "{ip}:{port}")?,
            (Some(IpAddr::V6(ip)), port) => write!(f, "[{ip}]:{port}")?,
        }
        match (self.endpoint.is_empty(), self.group.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => write!(f, " ({})", self.endpoint),
            (false, false) => write!(f, " ({}, {})", self.endpoint, self.group),
        }
    }
}

impl fmt::Display for PacketEvent {
    /// Formats the event for people, without its time.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.event {
            EventKind::Lost => return write!(f, "lost {} more packets than are shown", self.lost),
            EventKind::Drop => write!(f, "drop {}", self.reason)?,
            EventKind::Flow => f.write_str("flow")?,
        }
        write!(f, " {} {} -> {}", self.protocol, self.source, self.destination)?;
        if !self.service.is_empty() {
            write!(f, ", service {}", self.service)?;
        }
        if let Some(backend) = &self.backend {
            write!(f, " -> {backend}")?;
        }
        if !self.rules.is_empty() {
            write!(f, ", rule {}", self.rules.join(", "))?;
        }
        for (what, name) in [("on", &self.network), ("from", &self.interface)] {
            if !name.is_empty() {
                write!(f, " {what} {name}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(ip: [u8; 4], port: u16, endpoint: &str) -> FlowEnd {
        FlowEnd { ip: Some(ip.into()), port, endpoint: endpoint.into(), ..FlowEnd::default() }
    }

    #[test]
    fn a_line_is_parsed_and_displayed() {
        let event = PacketEvent {
            reason: "policy".into(),
            network: "net.default".into(),
            interface: "vvport1".into(),
            protocol: "tcp".into(),
            source: FlowEnd { group: "web:default".into(), ..end([10, 1, 1, 2], 40000, "net.default-a") },
            destination: end([10, 1, 1, 3], 80, ""),
            rules: vec!["deny-80:p:default".into()],
            ..PacketEvent::default()
        };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<PacketEvent>(&text).unwrap(), event);
        assert!(!text.contains("lost") && !text.contains("backend"), "{text}");
        assert_eq!(
            event.to_string(),
            "drop policy tcp 10.1.1.2:40000 (net.default-a, web:default) -> 10.1.1.3:80, rule deny-80:p:default \
             on net.default from vvport1"
        );
    }
}
