//! Reads the connections that the switch tracks. They are in the zone of their network or VRF. Connections of clients to
//! services are in another zone; the translated connections have the service in their label. The label also identifies
//! the opener. Connections opened by an endpoint whose address has since passed to another endpoint are omitted.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use contiv_model::{name::NetworkId, service::Protocol};

use super::{
    bridge::BridgeKind,
    desired::{domain::domain_of_network, model::installed_numbers},
    error::ovs_error,
    options::Options,
    pipeline::{self, Domain, Opener},
    switch::{session::Session, unixctl},
    tables::ids::ObjectNumbers,
};
use crate::datapath::{Desired, Error, Network, Object, Scope, TrackedConnection};

/// Time limit of a dump, which may contain all connections of the host.
const DUMP_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of zones that are dumped one by one. The switch reads all connections for each zone, so that dumping
/// more zones takes longer than one dump of all.
const MAX_DUMPS: usize = 16;

/// Returns the connections of endpoints and services in `desired`. Changes nothing.
///
/// # Errors
///
/// The switch does not respond, or has no bridges.
pub(super) async fn read(options: &Options, desired: &Desired) -> Result<Vec<TrackedConnection>, Error> {
    let failed = |error| ovs_error("read the connections of the switch", error);
    let session = Session::open_existing(&options.socket).await.map_err(failed)?;
    let dump = session.dump().await.map_err(failed)?;
    let numbers = installed_numbers(&dump.tables, desired);
    let numbers = numbers.map_err(|error| ovs_error("read the flows of the bridges", error))?;
    let zones = Zones::of(desired, &numbers);
    let is_netdev = session
        .database()
        .bridge(BridgeKind::Vxlan.name())
        .is_some_and(|(_, bridge)| bridge.datapath_type == "netdev");
    let datapath = if is_netdev { "netdev@ovs-netdev" } else { "system@ovs-system" };
    let mut entries: Vec<Entry> = vec![];
    for words in zones.dumps(datapath) {
        let text = unixctl::run_within(DUMP_TIMEOUT, &options.socket, "dpctl/dump-conntrack", &words).await;
        let text = text.map_err(|error| ovs_error("read the connections of the switch", error))?;
        entries.extend(text.lines().filter_map(Entry::parse));
    }
    let left = zones.left(&entries);
    Ok(entries.iter().filter_map(|entry| zones.connection(entry, &left)).collect())
}

/// Zone and tuple of an entry.
type Key = (u16, Protocol, SocketAddr, SocketAddr);

/// Interpretation of zones and labels.
#[derive(Default)]
struct Zones<'a> {
    /// A network of each zone.
    networks: HashMap<u16, &'a Network>,
    /// Likewise, of the zones of clients, with the other zone of the network.
    clients: HashMap<u16, (&'a Network, u16)>,
    /// Openers of the connections of this node's endpoints, by zone and address.
    openers: HashMap<(u16, IpAddr), Opener>,
    /// Current ports of the backends of services, by the zone of their clients.
    targets: HashMap<(u16, SocketAddr, Protocol), u16>,
}

impl<'a> Zones<'a> {
    fn of(desired: &'a Desired, numbers: &ObjectNumbers) -> Zones<'a> {
        let mut zones = Zones::default();
        let of_network = |object: &'a Object| match object {
            Object::Network(network) => Some((network, domain_of_network(desired, numbers, network)?)),
            _ => None,
        };
        let networks: Vec<_> = desired.iter().filter_map(|(_, object)| of_network(object)).collect();
        for (network, domain) in &networks {
            zones.networks.entry(domain.zone()).or_insert(network);
            zones.clients.entry(domain.clients_zone()).or_insert((*network, domain.zone()));
        }
        let domains: HashMap<&NetworkId, Domain> =
            networks.iter().map(|(network, domain)| (&network.id, *domain)).collect();
        for (_, object) in desired.iter() {
            let Object::Local(local) = object else { continue };
            let Some(domain) = domains.get(&local.network) else { continue };
            let (zone, opener) = (domain.zone(), Opener::endpoint(&local.id));
            let addresses = pipeline::addresses(local.mac, &local.addresses);
            zones.openers.extend(addresses.map(|ip| ((zone, ip), opener)));
        }
        for (_, object) in desired.iter() {
            let Object::Service(service) = object else { continue };
            for (_, domain) in networks.iter().filter(|(network, _)| is_for(&service.scope, network)) {
                for port in &service.ports {
                    let address = SocketAddr::new(service.vip, port.port);
                    let key = (domain.clients_zone(), address, port.protocol);
                    zones.targets.insert(key, port.target);
                }
            }
        }
        zones
    }

    /// Returns the arguments of the dumps that contain the entries of these zones. Other zones, of which the host may
    /// have many, are omitted.
    fn dumps(&self, datapath: &str) -> Vec<Vec<String>> {
        // Includes the states of both ends.
        let words = ["-m", datapath].map(str::to_owned);
        let zones: BTreeSet<u16> = self.networks.keys().chain(self.clients.keys()).copied().collect();
        if zones.len() > MAX_DUMPS {
            return vec![words.into()];
        }
        let of_zone = |zone: u16| words.iter().cloned().chain([format!("zone={zone}")]).collect();
        zones.into_iter().map(of_zone).collect()
    }

    /// Returns the entries opened by endpoints whose address now belongs to another endpoint.
    fn left(&self, entries: &[Entry]) -> HashSet<Key> {
        let is_left = |entry: &&Entry| {
            let current = self.openers.get(&(entry.zone, entry.client.ip())).copied();
            let opener = Opener::of_label(entry.label);
            self.networks.contains_key(&entry.zone)
                && opener != Opener::Unknown
                && opener != current.unwrap_or(Opener::Outside)
        };
        let key = |entry: &Entry| (entry.zone, entry.protocol, entry.client, entry.destination);
        entries.iter().filter(is_left).map(key).collect()
    }

    /// Returns the connection of an entry. Returns `None` for a connection of another program, for the translated
    /// connection to a service, and for connections in `left`.
    fn connection(&self, entry: &Entry, left: &HashSet<Key>) -> Option<TrackedConnection> {
        let Entry { protocol, client, destination, zone, label, is_closing, .. } = *entry;
        let (network, zone, backend) = match self.networks.get(&zone) {
            Some(_) if pipeline::is_of_service(label) => return None,
            Some(network) => (network, zone, None),
            None => {
                let (network, to_backend) = self.clients.get(&zone)?;
                let current = self.targets.get(&(zone, destination, protocol))?;
                // An established connection keeps its port when the target port of the service changes.
                let port = pipeline::chosen_port(entry.mark).unwrap_or(*current);
                let backend = pipeline::chosen_backend(destination.is_ipv4(), entry.mark, label)?;
                (network, *to_backend, Some(SocketAddr::new(backend, port)))
            }
        };
        if left.contains(&(zone, protocol, client, backend.unwrap_or(destination))) {
            return None;
        }
        Some(TrackedConnection {
            vrf: network.vrf.clone(),
            network: network.id.clone(),
            encap: network.encap,
            protocol,
            client,
            destination,
            backend,
            is_closing,
            numbers: None,
        })
    }
}

/// Whether pods of the network are clients of a service with this scope.
fn is_for(scope: &Scope, network: &Network) -> bool {
    match &scope.network {
        Some(only) => only.id == network.id,
        None => scope.vrf == network.vrf,
    }
}

/// An entry of a connection that has been answered and is not closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    protocol: Protocol,
    client: SocketAddr,
    destination: SocketAddr,
    zone: u16,
    mark: u32,
    label: u128,
    is_closing: bool,
}

impl Entry {
    /// Parses a line of `dpctl/dump-conntrack -m`; `None` for other protocols and states.
    fn parse(line: &str) -> Option<Entry> {
        let protocol = match line.split(',').next()? {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            _ => return None,
        };
        let (tuple, rest) = line.split_once("orig=(")?.1.split_once(')')?;
        let of = |name: &str| tuple.split(',').find_map(|part| part.strip_prefix(name));
        let end = |address: &str, port: &str| {
            let (address, port): (IpAddr, u16) = (of(address)?.parse().ok()?, of(port)?.parse().ok()?);
            Some(SocketAddr::new(address, port))
        };
        let field = |name: &str| Some(rest.split_once(name)?.1.split([',', ')']).next().unwrap_or_default());
        let states = [field("state_orig="), field("state_reply=")];
        Some(Entry {
            protocol,
            client: end("src=", "sport=")?,
            destination: end("dst=", "dport=")?,
            // Fields that are zero are not printed.
            zone: field(",zone=").map_or(Some(0), |zone| zone.parse().ok())?,
            mark: field(",mark=").map_or(Some(0), |mark| mark.parse().ok())?,
            label: field(",labels=0x").map_or(Some(0), |label| u128::from_str_radix(label, 16).ok())?,
            is_closing: match (protocol, states) {
                (Protocol::Udp, _) => false,
                (Protocol::Tcp, [Some(original), Some(reply)]) => is_closing(original, reply)?,
                (Protocol::Tcp, _) => return None,
            },
        })
    }
}

/// Reports whether one end of a connection has sent its FIN. Returns `None` for an unanswered or closed connection. The
/// kernel has one state for both ends.
fn is_closing(original: &str, reply: &str) -> Option<bool> {
    const OPEN: [&str; 2] = ["ESTABLISHED", "SYN_RECV"];
    const ENDED: [&str; 5] = ["CLOSING", "LAST_ACK", "FIN_WAIT_2", "TIME_WAIT", "CLOSED"];
    // The userspace datapath reports SYN_SENT for an answer that has not been acknowledged.
    let is_answered = original != "SYN_SENT" && original != "CLOSED" && reply != "CLOSED";
    if !is_answered || ENDED.contains(&original) && ENDED.contains(&reply) {
        return None;
    }
    Some(!(OPEN.contains(&original) && (OPEN.contains(&reply) || reply == "SYN_SENT")))
}

#[cfg(test)]
mod tests {
    use contiv_model::{tag::Encap, vrf::Vrf};

    use super::*;
    use crate::datapath::{Local, Service, ovs::tables::ids::Numbers};

    const ORIGINAL: &str = "orig=(src=10.1.0.1,dst=10.1.0.200,sport=4000,dport=80)";
    const REPLY: &str = "reply=(src=10.1.0.200,dst=10.1.0.1,sport=80,dport=4000)";
    const ESTABLISHED: &str =
        "protoinfo=(state_orig=ESTABLISHED,state_reply=ESTABLISHED,flags_orig=WINDOW_SCALE)";

    #[test]
    fn lines_of_the_switch_are_parsed() {
        let line = format!(
            "tcp,{ORIGINAL},{REPLY},id=77,zone=8292,status=SEEN_REPLY|CONFIRMED,mark=1,labels=0xa010002,{ESTABLISHED}"
        );
        let expected = Entry {
            protocol: Protocol::Tcp,
            client: "10.1.0.1:4000".parse().unwrap(),
            destination: "10.1.0.200:80".parse().unwrap(),
            zone: 8292,
            mark: 1,
            label: 0x0a01_0002,
            is_closing: false,
        };
        assert_eq!(Entry::parse(&line), Some(expected));
        let udp = "udp,orig=(src=fd00::1,dst=fd00::2,sport=53,dport=5353),reply=(src=fd00::2,dst=fd00::1,sport=5353,dport=53),id=3";
        let expected = Entry {
            protocol: Protocol::Udp,
            client: "[fd00::1]:53".parse().unwrap(),
            destination: "[fd00::2]:5353".parse().unwrap(),
            zone: 0,
            mark: 0,
            label: 0,
            is_closing: false,
        };
        assert_eq!(Entry::parse(udp), Some(expected));
        let others = [
            "",
            "icmp,orig=(src=10.1.0.1,dst=10.1.0.2,id=1,type=8,code=0),reply=(src=10.1.0.2,dst=10.1.0.1,id=1,type=0,code=0)",
            "tcp,orig=(src=10.1.0.1",
            &format!("tcp,{ORIGINAL},{REPLY},zone=70000,{ESTABLISHED}"),
            &format!("tcp,{ORIGINAL},{REPLY},zone=7"),
        ];
        for line in others {
            assert_eq!(Entry::parse(line), None, "{line}");
        }
    }

    #[test]
    fn states_tell_which_connections_go_on() {
        let cases = [
            // Both datapaths.
            (["ESTABLISHED", "ESTABLISHED"], Some(false)),
            (["SYN_RECV", "SYN_RECV"], Some(false)),
            (["SYN_SENT", "SYN_SENT"], None),
            (["TIME_WAIT", "TIME_WAIT"], None),
            (["FIN_WAIT_1", "FIN_WAIT_1"], Some(true)),
            (["CLOSE_WAIT", "CLOSE_WAIT"], Some(true)),
            // The userspace datapath.
            (["SYN_SENT", "CLOSED"], None),
            (["ESTABLISHED", "SYN_SENT"], Some(false)),
            (["FIN_WAIT_2", "ESTABLISHED"], Some(true)),
            (["ESTABLISHED", "CLOSING"], Some(true)),
            (["FIN_WAIT_2", "FIN_WAIT_2"], None),
        ];
        for ([original, reply], expected) in cases {
            assert_eq!(is_closing(original, reply), expected, "{original} {reply}");
        }
    }

    #[test]
    fn zones_and_labels_tell_what_a_connection_is() {
        let blue = Network::new("blue.net", Encap::Vlan(100.try_into().unwrap()));
        let tenant = Vrf::Tenant("red".parse().unwrap());
        let encap = Encap::Vxlan { local: 5.try_into().unwrap(), vni: 5000.try_into().unwrap() };
        let red = Network { vrf: tenant.clone(), ..Network::new("red.net", encap) };
        let service = |network: &Network| Service {
            ports: vec!["80:8080:TCP".parse().unwrap()],
            ..Service::new("web:net", Scope::network(network), [10, 1, 0, 200])
        };
        let objects = [Object::Network(blue.clone()), Object::Network(red.clone())];
        let services = [Object::Service(service(&red))];
        let desired: Desired = objects.into_iter().chain(services).collect();
        let numbers = ObjectNumbers { vrfs: Numbers::of([(tenant.clone(), 3)]), ..ObjectNumbers::default() };
        let zones = Zones::of(&desired, &numbers);
        let [blues, reds] =
            [&blue, &red].map(|network| domain_of_network(&desired, &numbers, network).unwrap());
        let entry = |zone, mark, label| Entry {
            protocol: Protocol::Tcp,
            client: "10.1.0.1:4000".parse().unwrap(),
            destination: "10.1.0.200:80".parse().unwrap(),
            zone,
            mark,
            label,
            is_closing: false,
        };
        let found = |zone, mark, label| zones.connection(&entry(zone, mark, label), &HashSet::new());
        let plain = found(blues.zone(), 0, 0).unwrap();
        assert_eq!((plain.vrf, plain.encap, plain.backend), (blue.vrf.clone(), blue.encap, None));
        assert_eq!(found(blues.zone(), 0, 80), None, "it is of a service");
        let to_service = found(reds.clients_zone(), 1, 0x0a01_0002).unwrap();
        assert_eq!((to_service.vrf, to_service.encap), (tenant, encap));
        assert_eq!(to_service.backend, Some("10.1.0.2:8080".parse().unwrap()));
        let of_earlier_port = found(reds.clients_zone(), 9090 << 16 | 3, 0x0a01_0002).unwrap();
        assert_eq!(of_earlier_port.backend, Some("10.1.0.2:9090".parse().unwrap()));
        assert_eq!(found(reds.clients_zone(), 0, 0x0a01_0002), None, "it has no backend yet");
        assert_eq!(found(blues.clients_zone(), 1, 0x0a01_0002), None, "there is no such service");
        assert_eq!(found(0, 0, 0), None, "it is not of this node's endpoints");
    }

    #[test]
    fn only_the_zones_of_the_agent_are_dumped() {
        let networks = |tags: std::ops::Range<u16>| -> Desired {
            let network = |tag: u16| {
                let encap = Encap::Vlan(tag.try_into().unwrap());
                Object::Network(Network::new(format!("blue{tag}.net").as_str(), encap))
            };
            tags.map(network).collect()
        };
        let numbers = ObjectNumbers::default();
        let of = |desired: &Desired| Zones::of(desired, &numbers).dumps("netdev@ovs-netdev");
        let dumps = of(&networks(100..101));
        let lines: Vec<String> = dumps.iter().map(|words| words.join(" ")).collect();
        assert_eq!(lines, ["-m netdev@ovs-netdev zone=100", "-m netdev@ovs-netdev zone=8292"]);
        assert_eq!(of(&networks(100..120)), [["-m", "netdev@ovs-netdev"]]);
        assert_eq!(of(&Desired::default()), Vec::<Vec<String>>::new());
    }

    #[test]
    fn connections_of_a_predecessor_are_left_out() {
        let blue = Network::new("blue.net", Encap::Vlan(100.try_into().unwrap()));
        let mac = "02:02:0a:01:00:01".parse().unwrap();
        let ip = std::net::Ipv4Addr::new(10, 1, 0, 1);
        let pod = Local::new("blue.net-pod1", &blue, "vvport1", mac, ip);
        let web = Service {
            ports: vec!["80:8080:TCP".parse().unwrap()],
            ..Service::new("web:net", Scope::network(&blue), [10, 1, 0, 200])
        };
        let objects = [Object::Network(blue.clone()), Object::Local(pod.clone()), Object::Service(web)];
        let desired: Desired = objects.into_iter().collect();
        let numbers = ObjectNumbers::default();
        let zones = Zones::of(&desired, &numbers);
        let domain = domain_of_network(&desired, &numbers, &blue).unwrap();
        let entry = |zone, destination: &str, mark, label| Entry {
            protocol: Protocol::Tcp,
            client: "10.1.0.1:4000".parse().unwrap(),
            destination: destination.parse().unwrap(),
            zone,
            mark,
            label,
            is_closing: false,
        };
        let (own, other) = (Opener::endpoint(&pod.id), Opener::endpoint(&"blue.net-pod0".into()));
        for (opener, count) in [(own, 2), (Opener::Unknown, 2), (other, 0), (Opener::Outside, 0)] {
            // The second connection has the former target port of the service.
            for (mark, backend) in [(1, "10.1.0.2:8080"), (9090 << 16 | 3, "10.1.0.2:9090")] {
                let entries = [
                    entry(domain.zone(), "10.1.0.3:443", 0, opener.label()),
                    // The connection to the service, and its translated connection.
                    entry(domain.clients_zone(), "10.1.0.200:80", mark, 0x0a01_0002),
                    entry(domain.zone(), backend, 0, opener.label() | 80),
                ];
                let left = zones.left(&entries);
                let found = entries.iter().filter_map(|entry| zones.connection(entry, &left)).count();
                assert_eq!(found, count, "{opener:?} {backend}");
            }
        }
    }
}
