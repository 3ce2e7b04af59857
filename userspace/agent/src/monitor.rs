//! `/monitor`: packets that are dropped and flows that begin, with the names that people know.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use contiv_model::{
    mac::Mac,
    name::{EndpointId, GroupKey, HostName, NetworkId, ServiceId},
    packet_event::{self, EventKind},
};
use tokio::{sync::broadcast, time::interval};

use crate::{
    datapath::{
        Error,
        telemetry::{Connection, Counters, PacketAddress, PacketEvent, PacketEvents, Tag, Telemetry},
    },
    error::one_line,
    state::Reader,
};

/// Lines that a slow listener may be behind.
const BEHIND: usize = 4096;
/// How often names are looked up afresh, and the programs are told that somebody is there.
const PERIOD: Duration = Duration::from_secs(1);

/// Tells whoever listens, and costs nothing while nobody does.
#[derive(Clone, Debug)]
pub struct Monitor(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    telemetry: Option<Arc<dyn Telemetry>>,
    host: HostName,
    reader: Reader,
    told: broadcast::Sender<packet_event::PacketEvent>,
    /// Whether there is a task that watches.
    watching: Mutex<bool>,
}

/// There is nothing to listen to.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The datapath has no means for it.
    #[error("monitor: not supported by this datapath yet; accepted: --datapath ebpf")]
    Unsupported,
    /// It should have, but not now.
    #[error("monitor: the datapath is not there yet, try again")]
    Failed(#[source] Error),
}

impl Monitor {
    /// Watches by `watcher`, if the datapath has one.
    pub fn new(telemetry: Option<Arc<dyn Telemetry>>, host: HostName, reader: Reader) -> Monitor {
        let (told, _) = broadcast::channel(BEHIND);
        Monitor(Arc::new(Inner { telemetry, host, reader, told, watching: Mutex::new(false) }))
    }

    /// The connections to services; none of a datapath that serves none. Blocks while it reads.
    pub fn connections(&self) -> Result<Vec<Connection>, Error> {
        self.0.telemetry.as_ref().map_or(Ok(vec![]), |telemetry| telemetry.connections())
    }

    /// What packets have left behind; nothing of a datapath that does not count. Blocks while it reads.
    pub fn counters(&self) -> Result<Counters, Error> {
        self.0.telemetry.as_ref().map_or(Ok(Counters::default()), |telemetry| telemetry.counters())
    }

    /// From now on.
    pub fn listen(&self) -> Result<broadcast::Receiver<packet_event::PacketEvent>, Refused> {
        let telemetry = self.0.telemetry.as_ref().ok_or(Refused::Unsupported)?;
        let mut watching = self.0.watching.lock().unwrap_or_else(PoisonError::into_inner);
        let listener = self.0.told.subscribe();
        if !*watching {
            let events = telemetry.subscribe().map_err(Refused::Failed)?;
            *watching = true;
            tokio::spawn(self.clone().watch(events));
        }
        Ok(listener)
    }

    /// As long as somebody listens.
    async fn watch(self, mut events: Box<dyn PacketEvents>) {
        let mut tick = interval(PERIOD);
        let mut names = Names::default();
        let mut lost = 0;
        loop {
            let result = tokio::select! {
                seen = events.next() => seen.map(|seen| {
                    // Nobody there: the next tick ends it.
                    let _listeners = self.0.told.send(names.line(&self.0.host, &seen));
                }),
                _ = tick.tick() => {
                    names = self.0.reader.with(Names::of);
                    self.renew(&mut *events, &mut lost)
                }
            };
            if let Err(error) = &result {
                tracing::warn!("monitor: {}", one_line(error));
            }
            let mut watching = self.0.watching.lock().unwrap_or_else(PoisonError::into_inner);
            if result.is_err() || self.0.told.receiver_count() == 0 {
                *watching = false;
                return;
            }
        }
    }

    fn renew(&self, events: &mut dyn PacketEvents, lost: &mut u64) -> Result<(), Error> {
        events.renew()?;
        let all = events.lost()?;
        if all > *lost {
            let _listeners = self.0.told.send(self.missed(all - *lost));
            *lost = all;
        }
        Ok(())
    }

    /// The line for packets that are not told of.
    fn missed(&self, lost: u64) -> packet_event::PacketEvent {
        packet_event::PacketEvent {
            time: humantime::format_rfc3339_millis(std::time::SystemTime::now()).to_string(),
            host: self.0.host.to_string(),
            event: EventKind::Lost,
            lost,
            ..packet_event::PacketEvent::default()
        }
    }

    /// What a listener hears next: a line of JSON. `None` when it is over.
    pub async fn line(
        &self,
        listener: &mut broadcast::Receiver<packet_event::PacketEvent>,
    ) -> Option<packet_event::PacketEvent> {
        match listener.recv().await {
            Ok(sight) => Some(sight),
            Err(broadcast::error::RecvError::Lagged(lost)) => Some(self.missed(lost)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// As it goes over the wire.
pub fn encode(sight: &packet_event::PacketEvent) -> Result<Bytes, serde_json::Error> {
    let mut text = serde_json::to_vec(sight)?;
    text.push(b'\n');
    Ok(text.into())
}

/// Who has which address.
#[derive(Debug, Default)]
struct Names {
    networks: HashMap<Tag, NetworkId>,
    endpoints: HashMap<(NetworkId, IpAddr), (EndpointId, Option<GroupKey>)>,
    services: HashMap<IpAddr, Vec<(Option<NetworkId>, ServiceId)>>,
}

impl Names {
    fn of(state: &crate::state::State) -> Names {
        let mut names = Names {
            networks: state.networks().map(|net| (Tag::from(net.encap), net.id.clone())).collect(),
            ..Names::default()
        };
        for endpoint in state.endpoints() {
            let who = || (endpoint.id.clone(), endpoint.group.clone());
            let addresses = [Some(IpAddr::from(endpoint.ip)), endpoint.ip6.map(IpAddr::from)];
            for ip in addresses.into_iter().flatten() {
                names.endpoints.insert((endpoint.network.clone(), ip), who());
            }
        }
        for service in state.services() {
            let known = names.services.entry(service.vip).or_default();
            known.push((service.network.clone(), service.id.clone()));
        }
        names
    }

    fn line(&self, host: &HostName, seen: &PacketEvent) -> packet_event::PacketEvent {
        let network = seen.tag.and_then(|tag| self.networks.get(&tag));
        let network_name = match (network, seen.tag) {
            (Some(network), _) => network.to_string(),
            (None, tag) => tag.map(|tag| tag.to_string()).unwrap_or_default(),
        };
        packet_event::PacketEvent {
            time: humantime::format_rfc3339_millis(seen.at).to_string(),
            host: host.to_string(),
            event: if seen.dropped.is_some() { EventKind::Drop } else { EventKind::Flow },
            reason: seen.dropped.unwrap_or_default().to_owned(),
            network: network_name,
            interface: seen.interface.clone().unwrap_or_default(),
            protocol: protocol(seen),
            source: self.end(network, &seen.source),
            destination: self.end(network, &seen.destination),
            service: self.service(network, seen.destination.ip),
            backend: seen.backend.map(|backend| self.end(network, &backend)),
            rules: seen.rules.iter().map(ToString::to_string).collect(),
            bytes: seen.len,
            lost: 0,
        }
    }

    fn end(&self, network: Option<&NetworkId>, end: &PacketAddress) -> packet_event::FlowEnd {
        let found = network.zip(end.ip).and_then(|(network, ip)| self.endpoints.get(&(network.clone(), ip)));
        packet_event::FlowEnd {
            ip: end.ip,
            port: end.port,
            mac: if end.mac == Mac([0; 6]) { String::new() } else { end.mac.to_string() },
            endpoint: found.map(|(endpoint, _)| endpoint.to_string()).unwrap_or_default(),
            group: found.and_then(|(_, group)| group.as_ref()).map(ToString::to_string).unwrap_or_default(),
        }
    }

    fn service(&self, network: Option<&NetworkId>, ip: Option<IpAddr>) -> String {
        let known = ip.and_then(|ip| self.services.get(&ip)).map(Vec::as_slice).unwrap_or_default();
        let here = known.iter().find(|(scope, _)| scope.is_none() || scope.as_ref() == network);
        here.map(|(_, service)| service.to_string()).unwrap_or_default()
    }
}

fn protocol(seen: &PacketEvent) -> String {
    let known = |names: &[(u16, &str)], number: u16| {
        names.iter().find(|(known, _)| *known == number).map(|(_, name)| (*name).to_owned())
    };
    const ABOVE_IP: [(u16, &str); 5] = [(1, "icmp"), (6, "tcp"), (17, "udp"), (58, "icmpv6"), (132, "sctp")];
    const ABOVE_ETHERNET: [(u16, &str); 5] =
        [(0x0800, "ipv4"), (0x0806, "arp"), (0x8100, "802.1q"), (0x86dd, "ipv6"), (0x88a8, "802.1ad")];
    match (seen.protocol, seen.ethertype) {
        (0, 0) => String::new(),
        (0, kind) => known(&ABOVE_ETHERNET, kind).unwrap_or_else(|| format!("{kind:#06x}")),
        (protocol, _) => known(&ABOVE_IP, protocol.into()).unwrap_or_else(|| protocol.to_string()),
    }
}
