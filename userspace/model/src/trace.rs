//! Traces: the path of one packet through the datapath of a node, as an agent's `POST /trace` reports
//! it. All datapaths use the same stages and words.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    mac::Mac,
    tag::{Vlan, Vni},
};

/// Where a packet enters a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Ingress {
    /// An endpoint of the node sends it: the id, `<network>.<tenant>-<endpoint>`.
    Endpoint(String),
    /// It comes from another node by VXLAN.
    Tunnel {
        /// VTEP of the other node.
        vtep: IpAddr,
        /// VNI of the network.
        vni: Vni,
    },
    /// It comes from the wire with the tag of a VLAN network.
    Uplink {
        /// VLAN id of the network.
        vlan: Vlan,
    },
}

/// Body of `POST /trace`: a packet that opens a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Query {
    /// Where the packet enters the node.
    pub ingress: Ingress,
    /// Source address; by default the address of the endpoint in the family of the destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    /// Destination address; for a service its own.
    pub destination: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Source port; for ICMP the identifier of the echo request. 0 if the protocol has none.
    #[serde(default)]
    pub source_port: u16,
    /// Destination port; 0 if the protocol has none.
    #[serde(default)]
    pub destination_port: u16,
    /// TCP flags.
    #[serde(default)]
    pub tcp_flags: TcpFlags,
    /// DSCP, 0 to 63.
    #[serde(default)]
    pub dscp: u8,
    /// Source Ethernet address; by default the endpoint's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_mac: Option<Mac>,
    /// Destination Ethernet address; by default the one that ARP or ND resolves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination_mac: Option<Mac>,
}

/// Flags of a TCP header, written `syn,ack`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TcpFlags(u8);

/// A text that is not a list of TCP flags.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("TCP flags {0:?}: expected names separated by commas: fin, syn, rst, psh, ack, urg, ece, cwr")]
pub struct TcpFlagsError(String);

impl TcpFlags {
    /// Names, the lowest bit first.
    const NAMES: [&'static str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];

    /// The flag of the packet that opens a connection.
    pub const SYN: TcpFlags = TcpFlags(0x02);

    /// The flags as in the header.
    pub const fn bits(self) -> u8 {
        self.0
    }
}

impl From<u8> for TcpFlags {
    fn from(bits: u8) -> TcpFlags {
        TcpFlags(bits)
    }
}

impl FromStr for TcpFlags {
    type Err = TcpFlagsError;

    fn from_str(text: &str) -> Result<Self, TcpFlagsError> {
        let mut bits = 0;
        for name in text.split(',').filter(|_| !text.is_empty()) {
            let bit = TcpFlags::NAMES.iter().position(|known| known.eq_ignore_ascii_case(name.trim()));
            bits |= 1 << bit.ok_or_else(|| TcpFlagsError(text.to_owned()))?;
        }
        Ok(TcpFlags(bits))
    }
}

impl fmt::Display for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = TcpFlags::NAMES.iter().enumerate().filter(|(bit, _)| self.0 >> bit & 1 == 1);
        f.write_str(&set.map(|(_, name)| *name).collect::<Vec<_>>().join(","))
    }
}

impl TryFrom<String> for TcpFlags {
    type Error = TcpFlagsError;
    fn try_from(text: String) -> Result<Self, TcpFlagsError> {
        text.parse()
    }
}

impl From<TcpFlags> for String {
    fn from(flags: TcpFlags) -> String {
        flags.to_string()
    }
}

/// Headers of a packet, without tags and outer headers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// Source Ethernet address.
    pub source_mac: Mac,
    /// Destination Ethernet address.
    pub destination_mac: Mac,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Source port; for ICMP the identifier of the echo request. 0 if the protocol has none.
    pub source_port: u16,
    /// Destination port; 0 if the protocol has none.
    pub destination_port: u16,
    /// TCP flags.
    pub tcp_flags: TcpFlags,
    /// DSCP.
    pub dscp: u8,
}

impl fmt::Display for Header {
    /// Formats as `tcp 10.1.1.2:40000 -> 10.1.1.3:80 syn`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |ip: IpAddr, port: u16| match (ip, port) {
            (ip, 0) => ip.to_string(),
            (IpAddr::V4(ip), port) => format!("{ip}:{port}"),
            (IpAddr::V6(ip), port) => format!("[{ip}]:{port}"),
        };
        let ports = match self.protocol {
            6 | 17 => [self.source_port, self.destination_port],
            _ => [0, 0],
        };
        let protocol = match self.protocol {
            1 => "icmp".to_owned(),
            6 => "tcp".to_owned(),
            17 => "udp".to_owned(),
            58 => "icmpv6".to_owned(),
            132 => "sctp".to_owned(),
            number => format!("protocol {number}"),
        };
        let (source, destination) = (end(self.source, ports[0]), end(self.destination, ports[1]));
        write!(f, "{protocol} {source} -> {destination}")?;
        if self.protocol == 6 {
            write!(f, " {}", self.tcp_flags)?;
        }
        match self.dscp {
            0 => Ok(()),
            dscp => write!(f, " dscp {dscp}"),
        }
    }
}

/// A stage of a datapath, in the order that packets pass them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// Checks of addresses and of the form of the frame.
    Guard,
    /// Translation of a service's address to a backend.
    Service,
    /// Lookup of the connection.
    Connection,
    /// Rules of the source, on its node.
    PolicyOut,
    /// Rules of the destination, on its node.
    PolicyIn,
    /// Selection of the way out.
    Forward,
}

impl Stage {
    /// All stages in their order.
    pub const ALL: [Stage; 6] =
        [Stage::Guard, Stage::Service, Stage::Connection, Stage::PolicyOut, Stage::PolicyIn, Stage::Forward];
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Stage::Guard => "guard",
            Stage::Service => "service",
            Stage::Connection => "connection",
            Stage::PolicyOut => "policy out",
            Stage::PolicyIn => "policy in",
            Stage::Forward => "forward",
        })
    }
}

/// Result of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// The packet goes on.
    Pass,
    /// The packet is dropped, or refused with a reset or an ICMP error.
    Drop,
    /// The stage does not apply to the packet.
    Skip,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Pass => "pass",
            Verdict::Drop => "drop",
            Verdict::Skip => "-",
        })
    }
}

/// State of the connection that a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ConnectionState {
    /// No connection is known: the packet opens one.
    New,
    /// The packet belongs to a connection that an earlier packet with its addresses opened.
    Established,
    /// The packet is a reply of a connection.
    Reply,
}

impl fmt::Display for ConnectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConnectionState::New => "new",
            ConnectionState::Established => "established",
            ConnectionState::Reply => "reply",
        })
    }
}

/// What one stage did with the packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Stage.
    pub stage: Stage,
    /// Result.
    pub verdict: Verdict,
    /// Why the packet was dropped, or why the stage does not apply; may be empty otherwise.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Service whose address is the destination, `<service>:<tenant>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Backend that the service's address is translated to: address and port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<(IpAddr, u16)>,
    /// State of the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<ConnectionState>,
    /// Rule that decided. Without one in a policy stage that passes, no rule matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The datapath's own account of the stage, such as its flows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
}

impl Step {
    /// A step without further facts.
    pub fn new(stage: Stage, verdict: Verdict) -> Step {
        Step {
            stage,
            verdict,
            reason: String::new(),
            service: None,
            backend: None,
            connection: None,
            rule: None,
            details: vec![],
        }
    }

    /// The step with a reason.
    pub fn because(self, reason: impl Into<String>) -> Step {
        Step { reason: reason.into(), ..self }
    }
}

impl Step {
    /// What is known about the step, for people.
    pub fn facts(&self) -> String {
        let mut facts = vec![];
        facts.extend(self.connection.map(|state| state.to_string()));
        facts.extend(self.service.as_ref().map(|service| format!("service {service}")));
        facts.extend(self.backend.map(|(ip, port)| match (ip, port) {
            (ip, 0) => format!("backend {ip}"),
            (IpAddr::V4(ip), port) => format!("backend {ip}:{port}"),
            (IpAddr::V6(ip), port) => format!("backend [{ip}]:{port}"),
        }));
        facts.extend(self.rule.as_ref().map(|rule| format!("rule {rule}")));
        facts.extend(Some(self.reason.clone()).filter(|reason| !reason.is_empty()));
        let is_policy = matches!(self.stage, Stage::PolicyOut | Stage::PolicyIn);
        if self.verdict == Verdict::Pass && is_policy && facts.is_empty() {
            facts.push("no rule matches".to_owned());
        }
        facts.join(", ")
    }
}

impl fmt::Display for Step {
    /// Formats as `policy in   drop rule web:default:...`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let facts = self.facts();
        match facts.is_empty() {
            true => write!(f, "{:<11} {}", self.stage, self.verdict),
            false => write!(f, "{:<11} {:<4} {facts}", self.stage, self.verdict),
        }
    }
}

/// Where a copy of the packet leaves a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Egress {
    /// An endpoint of the node receives it.
    Endpoint {
        /// Id of the endpoint.
        endpoint: String,
        /// Interface of the node to the endpoint.
        port: String,
    },
    /// A tunnel to another node.
    Tunnel {
        /// VTEP of the other node.
        vtep: IpAddr,
        /// VNI of the network.
        vni: Vni,
    },
    /// The uplinks, with the tag of the network.
    Uplink {
        /// VLAN id of the network.
        vlan: Vlan,
    },
    /// Another interface of the node.
    Interface(String),
    /// Back to where it came from: the datapath answers the packet itself.
    Answer,
}

impl fmt::Display for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Egress::Endpoint { endpoint, port } => write!(f, "endpoint {endpoint} ({port})"),
            Egress::Tunnel { vtep, vni } => write!(f, "tunnel to {vtep}, vni {vni}"),
            Egress::Uplink { vlan } => write!(f, "uplink, vlan {vlan}"),
            Egress::Interface(name) => write!(f, "interface {name}"),
            Egress::Answer => f.write_str("answered by the node"),
        }
    }
}

/// A copy of the packet that leaves the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Where it leaves.
    pub to: Egress,
    /// Its headers; none if it is not the traced packet but an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet: Option<Header>,
}

/// Answer to `POST /trace`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trace {
    /// Node.
    pub host: String,
    /// Its datapath.
    pub datapath: String,
    /// How the datapath was asked, e.g. `ofproto/trace`.
    pub method: String,
    /// Where the packet enters the node.
    pub ingress: Ingress,
    /// Network, `<network>.<tenant>`.
    pub network: String,
    /// The packet as it enters.
    pub packet: Header,
    /// Stages up to the one that dropped the packet.
    pub steps: Vec<Step>,
    /// Copies that leave the node; none if the packet was dropped.
    pub outputs: Vec<Output>,
    /// Number of further copies that leave the node: the datapath has recorded only the first ones.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted_copies: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Trace {
    /// The stage that dropped the packet.
    pub fn dropped(&self) -> Option<&Step> {
        self.steps.iter().find(|step| step.verdict == Verdict::Drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_flags_are_names() {
        let flags: TcpFlags = "syn,ACK".parse().unwrap();
        assert_eq!((flags.bits(), flags.to_string().as_str()), (0x12, "syn,ack"));
        assert_eq!("".parse::<TcpFlags>().unwrap().bits(), 0);
        let error = "syn,bogus".parse::<TcpFlags>().unwrap_err().to_string();
        assert!(error.contains("syn,bogus") && error.contains("fin, syn"), "{error}");
    }

    #[test]
    fn query_has_few_required_fields() {
        let text = r#"{"ingress":{"endpoint":"n.default-a"},"destination":"10.1.1.3","protocol":1}"#;
        let query: Query = serde_json::from_str(text).unwrap();
        assert_eq!((query.source, query.tcp_flags, query.dscp), (None, TcpFlags::default(), 0));
        assert_eq!(serde_json::from_str::<Query>(&serde_json::to_string(&query).unwrap()).unwrap(), query);
        let bad =
            r#"{"ingress":{"tunnel":{"vtep":"10.0.0.1","vni":0}},"destination":"10.1.1.3","protocol":1}"#;
        let error = serde_json::from_str::<Query>(bad).unwrap_err().to_string();
        assert!(error.contains("expected 1 to 16777215"), "{error}");
    }

    #[test]
    fn steps_are_one_line() {
        let drop = Step { rule: Some("r1".into()), ..Step::new(Stage::PolicyIn, Verdict::Drop) };
        assert_eq!(drop.to_string(), "policy in   drop rule r1");
        let pass = Step::new(Stage::PolicyOut, Verdict::Pass);
        assert_eq!(pass.to_string(), "policy out  pass no rule matches");
        let skip = Step::new(Stage::Service, Verdict::Skip).because("no service has the address");
        assert_eq!(skip.to_string(), "service     -    no service has the address");
    }
}
