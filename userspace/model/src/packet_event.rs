//! What an agent tells of packets while somebody watches: a line of JSON each.

use std::{fmt, net::IpAddr};

use serde::{Deserialize, Serialize};

/// Of what a line tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// A packet went no further.
    #[default]
    Drop,
    /// A flow began.
    Flow,
    /// There was more than is told.
    Lost,
}

/// One end of a packet's way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FlowEnd {
    /// Its address, where the frame tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<IpAddr>,
    /// Its port, where the protocol has one.
    #[serde(skip_serializing_if = "is_zero")]
    pub port: u16,
    /// Its Ethernet address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// The endpoint that has the address, `<network>.<tenant>-<endpoint>`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// Its group, `<group>:<tenant>`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
}

/// A line of `GET /monitor`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PacketEvent {
    /// When, as in RFC 3339, in UTC.
    pub time: String,
    /// The node that tells.
    pub host: String,
    /// Of what.
    pub event: EventKind,
    /// Why it was dropped.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// `<network>.<tenant>`, or the tag where no network has it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// By which interface of the node it came.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interface: String,
    /// `tcp`, `udp`, `icmp`, `icmpv6`, `sctp` or the number of IP's protocol; `arp` or Ethernet's type.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// Who sent it.
    pub source: FlowEnd,
    /// Whom it addresses.
    pub destination: FlowEnd,
    /// The service at that address, `<service>:<tenant>`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service: String,
    /// Where the service's address leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<FlowEnd>,
    /// The rules that decided, the source's first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// Bytes of the frame.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes: u32,
    /// How many packets are not told of.
    #[serde(skip_serializing_if = "is_zero")]
    pub lost: u64,
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl fmt::Display for FlowEnd {
    /// `10.1.1.2:80 net.default-c1`.
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
    /// For people: what happened, and why; not when.
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
    fn a_line_is_read_back_and_shown() {
        let sight = PacketEvent {
            reason: "policy".into(),
            network: "net.default".into(),
            interface: "vvport1".into(),
            protocol: "tcp".into(),
            source: FlowEnd { group: "web:default".into(), ..end([10, 1, 1, 2], 40000, "net.default-a") },
            destination: end([10, 1, 1, 3], 80, ""),
            rules: vec!["deny-80:p:default".into()],
            ..PacketEvent::default()
        };
        let text = serde_json::to_string(&sight).unwrap();
        assert_eq!(serde_json::from_str::<PacketEvent>(&text).unwrap(), sight);
        assert!(!text.contains("lost") && !text.contains("backend"), "{text}");
        assert_eq!(
            sight.to_string(),
            "drop policy tcp 10.1.1.2:40000 (net.default-a, web:default) -> 10.1.1.3:80, rule deny-80:p:default \
             on net.default from vvport1"
        );
    }
}
