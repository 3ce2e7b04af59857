//! Services: an address that stands for many endpoints.

mod state;

use std::{fmt, net::IpAddr, str::FromStr, time::Duration};

pub use state::{Provider, Providers, State};

use crate::{
    Invalid,
    name::{NetworkId, ServiceId, ServiceName, TenantName},
    policy::{TCP, UDP},
};

/// What a service can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// The number in the IP header.
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
    /// Of what.
    pub protocol: Protocol,
    /// At the service's address, 1 or more.
    pub port: u16,
    /// At the backends' addresses, 1 or more.
    pub target: u16,
}

/// A text that is no port of a service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: expected PORT:TARGETPORT:PROTOCOL, the ports 1 to 65535, the protocol TCP or UDP")]
pub struct PortError(String);

impl FromStr for Port {
    type Err = PortError;

    /// `80:8080:TCP`; the protocol in letters of either case.
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

/// Whether a backend takes new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Readiness {
    /// It does.
    Ready,
    /// It only keeps those that it has.
    Terminating,
}

/// A service as the agent sees it, without its backends: they are told apart, in [`Providers`] or by Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// The key's last part.
    pub id: ServiceId,
    /// Whose it is: its backends' addresses are those of this tenant's networks.
    pub tenant: TenantName,
    /// The network whose endpoints can use the address; none if all can.
    pub network: Option<NetworkId>,
    /// The service's address.
    pub vip: IpAddr,
    /// What it serves: no two with the same protocol and port.
    pub ports: Vec<Port>,
    /// For how long after its last connection a client stays with its backend.
    pub affinity: Option<Duration>,
}

/// A client of the original's stayed with its backend for as long as both were there. Here it may stay away for as
/// long as Kubernetes lets it (`ClientIP`'s default), so that the table of clients has an end.
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
    /// The addresses, each once, in their order.
    ///
    /// # Errors
    ///
    /// The first that is none.
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

/// Where the packets of a new connection may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Where they are addressed to: that is no service.
    Direct,
    /// To one of these addresses, at this port.
    To {
        /// Of the backends that are ready, in order; never empty.
        backends: Vec<IpAddr>,
        /// The target port.
        port: u16,
    },
    /// Back: the service has no backend that is ready. The client is told so at once.
    Refused,
}

/// Where a new connection to `port` of a service's address may go: the service has these `ports` and `backends`.
///
/// Which of the backends it is, is for the datapath to choose: the same for all packets of the connection, and while
/// its affinity lasts for all connections of the client. Policies are asked about the backend's address and port, not
/// the service's. A port that the service has not is nobody's, as an address that no endpoint has.
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
    fn the_bodies_are_the_originals_to_the_byte() {
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
    fn what_is_wrong_is_named() {
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
