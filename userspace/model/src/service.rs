//! Services: an address that is translated to one of several backends.

mod state;

use std::{fmt, net::IpAddr, str::FromStr, time::Duration};

pub use state::{Provider, Providers, State};

use crate::{
    Invalid,
    name::{NetworkId, ServiceId, ServiceName, TenantName},
    policy::{TCP, UDP},
};

/// Transport protocol of a service's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// The IP protocol number.
    pub const fn number(self) -> u8 {
        match self {
            Protocol::Tcp => TCP,
            Protocol::Udp => UDP,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        })
    }
}

/// One port of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port at the service's address, 1 or more.
    pub port: u16,
    /// Port at the backends' addresses, 1 or more.
    pub target: u16,
}

/// A text that is not a port of a service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: expected PORT:TARGETPORT:PROTOCOL, the ports 1 to 65535, the protocol TCP or UDP")]
pub struct PortError(String);

impl FromStr for Port {
    type Err = PortError;

    /// Parses `80:8080:TCP`; the case of the protocol does not matter.
    fn from_str(text: &str) -> Result<Self, PortError> {
        let read = || {
            let mut parts = text.split(':');
            let (port, target, protocol) = (parts.next()?, parts.next()?, parts.next()?);
            let number = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0);
            let protocol = match protocol.to_ascii_uppercase().as_str() {
                "TCP" => Protocol::Tcp,
                "UDP" => Protocol::Udp,
                _ => return None,
            };
            parts.next().is_none().then_some(())?;
            Some(Port { protocol, port: number(port)?, target: number(target)? })
        };
        read().ok_or_else(|| PortError(text.to_owned()))
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.port, self.target, self.protocol)
    }
}

/// Whether a backend gets new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Readiness {
    /// It gets new connections.
    Ready,
    /// It keeps its established connections only.
    Terminating,
}

/// A service, validated, without its backends: these come separately, by [`Providers`] or from
/// Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Last part of the key.
    pub id: ServiceId,
    /// Tenant of the service. The backends are on networks of this tenant.
    pub tenant: TenantName,
    /// Network whose endpoints can use the address; `None` if all can.
    pub network: Option<NetworkId>,
    /// IP address of the service.
    pub vip: IpAddr,
    /// Ports of the service, unique by protocol and port.
    pub ports: Vec<Port>,
    /// Time after its last connection for which a client keeps its backend; `None` without
    /// affinity.
    pub affinity: Option<Duration>,
}

/// In the original a client keeps its backend as long as both exist. Here the affinity ends after
/// the default of Kubernetes' `ClientIP`, which bounds the table of clients.
const AFFINITY: Duration = Duration::from_hours(3);

impl TryFrom<&State> for Service {
    type Error = Invalid;

    fn try_from(s: &State) -> Result<Self, Invalid> {
        let bad = |field, value: &dyn ToString, expected| {
            Invalid::new(format!("service {}", s.id), field, value.to_string(), expected)
        };
        let tenant = s.tenant_name.parse().map_err(|_| bad("tenantname", &s.tenant_name, "a name"))?;
        let name: ServiceName =
            s.service_name.parse().map_err(|_| bad("servicename", &s.service_name, "a name"))?;
        let network =
            s.network_name.parse().map_err(|_| bad("subnet", &s.network_name, "a network's name"))?;
        let mut ports: Vec<Port> = vec![];
        for text in s.ports.iter().flatten() {
            let port: Port = text.parse().map_err(|_| bad("ports", text, "80:8080:TCP and the like"))?;
            let same = |known: &Port| (known.protocol, known.port) == (port.protocol, port.port);
            if ports.iter().any(same) {
                return Err(bad("ports", text, "each port once for each protocol"));
            }
            ports.push(port);
        }
        ports.sort_unstable();
        Ok(Service {
            id: ServiceId::new(&name, &tenant),
            network: Some(NetworkId::new(&network, &tenant)),
            tenant,
            vip: s.ip_address.parse().map_err(|_| bad("ipaddress", &s.ip_address, "an IP address"))?,
            ports,
            affinity: Some(AFFINITY),
        })
    }
}

impl Providers {
    /// Id of the service that a record belongs to. The providers of a service are kept in slices:
    /// `key` is the last part of the key, `<service>:<tenant>` for the first slice and
    /// `<service>:<tenant>/<number>` for others.
    pub fn service_of(key: &str) -> &str {
        key.split_once('/').map_or(key, |(id, _)| id)
    }

    /// The addresses, sorted, without duplicates.
    ///
    /// # Errors
    ///
    /// Fails at the first text that is not an IP address.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, Invalid> {
        let read = |text: &String| {
            let bad = |_| Invalid::new(format!("service {}", self.id), "Providers", text, "IP addresses");
            text.parse::<IpAddr>().map_err(bad)
        };
        let mut addresses: Vec<IpAddr> =
            self.providers.iter().flatten().map(read).collect::<Result<_, _>>()?;
        addresses.sort_unstable();
        addresses.dedup();
        Ok(addresses)
    }
}

/// Possible destinations of a new connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The address is not a service's: the packet's destination.
    Direct,
    /// One of these backends.
    To {
        /// Addresses of the ready backends, in order; never empty.
        backends: Vec<IpAddr>,
        /// Port at the backends.
        port: u16,
    },
    /// The service has no ready backend: the client gets an error at once.
    Refused,
}

/// Possible destinations of a new connection to `port` of a service's address; `ports` and
/// `backends` are those of the service.
///
/// The datapath chooses among the backends: the same one for all packets of the connection, and
/// within the affinity for all connections of the client. Policies see the backend's address and
/// port, not the service's. A port that the service does not have has no destination, like an
/// address without an endpoint.
pub fn resolve(
    ports: &[Port],
    backends: impl IntoIterator<Item = (IpAddr, Readiness)>,
    protocol: u8,
    port: u16,
) -> Resolution {
    let wanted = |known: &&Port| (known.protocol.number(), known.port) == (protocol, port);
    let Some(port) = ports.iter().find(wanted) else { return Resolution::Direct };
    let ready = backends.into_iter().filter(|(_, readiness)| *readiness == Readiness::Ready);
    let mut backends: Vec<IpAddr> = ready.map(|(address, _)| address).collect();
    backends.sort_unstable();
    backends.dedup();
    if backends.is_empty() { Resolution::Refused } else { Resolution::To { backends, port: port.target } }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields and order of the original's `CfgServiceLBState` and `SvcProvider`.
    const BODY: &str = r#"{"id":"web:default","servicename":"web","tenantname":"default","subnet":"n1","ports":["80:8080:TCP","53:5353:udp"],"selectors":{"app":"web"},"ipaddress":"10.1.1.9","providers":{"10.1.1.2:default":{"IPAddress":"10.1.1.2","ContainerID":"c1","Labels":{"app":"web"},"Tenant":"default","Network":"n1","Services":["web:default"],"Container":"e1","EpIDKey":"n1.default-e1"}}}"#;
    const PROVIDERS: &str =
        r#"{"id":"web:default","ServiceName":"web:default","Providers":["10.1.1.3","10.1.1.2"]}"#;

    fn service(change: impl FnOnce(&mut State)) -> Result<Service, Invalid> {
        let mut state: State = serde_json::from_str(BODY).unwrap();
        change(&mut state);
        Service::try_from(&state)
    }

    #[test]
    fn the_bodies_match_the_original_byte_for_byte() {
        let state: State = serde_json::from_str(BODY).unwrap();
        assert_eq!(serde_json::to_string(&state).unwrap(), BODY);
        let providers: Providers = serde_json::from_str(PROVIDERS).unwrap();
        assert_eq!(serde_json::to_string(&providers).unwrap(), PROVIDERS);
        let none: Providers = serde_json::from_str(r#"{"id":"web:default","Providers":null}"#).unwrap();
        assert_eq!(none.addresses(), Ok(vec![]));
    }

    #[test]
    fn a_body_becomes_a_service() {
        let service = service(|_| ()).unwrap();
        assert_eq!((service.id.as_str(), service.vip.to_string().as_str()), ("web:default", "10.1.1.9"));
        assert_eq!(service.network, Some("n1.default".into()));
        let ports: Vec<_> = service.ports.iter().map(Port::to_string).collect();
        assert_eq!(ports, ["80:8080:TCP", "53:5353:UDP"]);
        let providers: Providers = serde_json::from_str(PROVIDERS).unwrap();
        assert_eq!(providers.addresses().unwrap(), [IpAddr::from([10, 1, 1, 2]), [10, 1, 1, 3].into()]);
    }

    #[test]
    fn errors_name_the_invalid_field() {
        let why = |change: fn(&mut State)| service(change).unwrap_err().to_string();
        assert!(why(|s| s.ip_address = "x".into()).contains("service web:default: ipaddress is \"x\""));
        for port in ["80", "80:80", "0:80:TCP", "80:65536:TCP", "80:80:SCTP", "80:80:TCP:x", ""] {
            let error = service(|s| s.ports = Some(vec![port.into()])).unwrap_err().to_string();
            assert!(error.contains("ports is"), "{port}: {error}");
        }
        let twice = why(|s| s.ports = Some(vec!["80:1:TCP".into(), "80:2:tcp".into()]));
        assert!(twice.contains("each port once"), "{twice}");
        assert!(service(|s| s.ports = Some(vec!["80:1:TCP".into(), "80:2:UDP".into()])).is_ok());
        let providers = Providers { providers: Some(vec!["x".into()]), ..Providers::default() };
        assert!(providers.addresses().unwrap_err().to_string().contains("Providers is \"x\""));
    }

    #[test]
    fn new_connections_go_to_backends_that_are_ready() {
        let service = service(|_| ()).unwrap();
        let (a, b, c): (IpAddr, IpAddr, IpAddr) =
            ([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), [10, 0, 0, 3].into());
        let all = [(b, Readiness::Ready), (c, Readiness::Terminating), (a, Readiness::Ready)];
        let to = Resolution::To { backends: vec![a, b], port: 8080 };
        assert_eq!(resolve(&service.ports, all, TCP, 80), to);
        assert_eq!(resolve(&service.ports, all, UDP, 80), Resolution::Direct);
        assert_eq!(resolve(&service.ports, all, TCP, 8080), Resolution::Direct);
        assert_eq!(resolve(&service.ports, all, 132, 80), Resolution::Direct);
        assert_eq!(resolve(&service.ports, [(c, Readiness::Terminating)], TCP, 80), Resolution::Refused);
        assert_eq!(resolve(&service.ports, [], UDP, 53), Resolution::Refused);
    }
}
