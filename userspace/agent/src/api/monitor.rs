//! `/monitor`: dropped packets and new flows, with the names of networks, endpoints, groups and services.

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
    packet_event::{EventKind, FlowEnd, PacketEvent as NamedEvent},
};
use tokio::{sync::broadcast, time::interval};

use crate::{
    datapath::{
        Error,
        telemetry::{Connection, Counters, PacketAddress, PacketEvent, PacketEvents, Tag, Telemetry},
    },
    error::one_line,
    state::{Reader, State},
};

/// Events buffered for a slow subscriber; older ones are lost.
const BUFFER: usize = 4096;
/// Interval between updates of the names and renewals of the subscription.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Distributes packet events to subscribers. Without subscribers the datapath reports no events.
#[derive(Clone, Debug)]
pub struct Monitor(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    telemetry: Option<Arc<dyn Telemetry>>,
    host: HostName,
    reader: Reader,
    /// Channel of the task that reads events, while it runs. If the task fails, the subscribers' streams end.
    running: Mutex<Option<broadcast::Sender<NamedEvent>>>,
}

/// Packet events are not available.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    /// The datapath does not provide packet events.
    #[error("monitor: not supported by this datapath yet; accepted: --datapath ebpf")]
    Unsupported,
    /// The subscription failed; it may succeed later.
    #[error("monitor: the datapath is not ready; retry")]
    Failed(#[source] Error),
}

impl Monitor {
    /// Uses the datapath's telemetry, if it provides any.
    pub fn new(telemetry: Option<Arc<dyn Telemetry>>, host: HostName, reader: Reader) -> Monitor {
        Monitor(Arc::new(Inner { telemetry, host, reader, running: Mutex::default() }))
    }

    /// Name of this node.
    pub fn host(&self) -> &HostName {
        &self.0.host
    }

    /// Tracked connections to services; empty without telemetry. Blocks while it reads the flow tables.
    pub fn connections(&self) -> Result<Vec<Connection>, Error> {
        self.0.telemetry.as_ref().map_or(Ok(vec![]), |telemetry| telemetry.connections())
    }

    /// Packet counters; empty without telemetry. Blocks while it reads.
    pub fn counters(&self) -> Result<Counters, Error> {
        self.0.telemetry.as_ref().map_or(Ok(Counters::default()), |telemetry| telemetry.counters())
    }

    /// Subscribes to events from this time on.
    pub fn subscribe(&self) -> Result<broadcast::Receiver<NamedEvent>, MonitorError> {
        let telemetry = self.0.telemetry.as_ref().ok_or(MonitorError::Unsupported)?;
        let mut running = self.0.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(subscribers) = &*running {
            return Ok(subscribers.subscribe());
        }
        let events = telemetry.subscribe().map_err(|error| match error.is_unsupported() {
            true => MonitorError::Unsupported,
            false => MonitorError::Failed(error),
        })?;
        let (subscribers, receiver) = broadcast::channel(BUFFER);
        *running = Some(subscribers.clone());
        tokio::spawn(self.clone().distribute(events, subscribers));
        Ok(receiver)
    }

    /// Reads and distributes events while there are subscribers.
    async fn distribute(self, mut events: Box<dyn PacketEvents>, subscribers: broadcast::Sender<NamedEvent>) {
        let mut tick = interval(REFRESH_INTERVAL);
        // An event may be available before the first tick.
        let mut names = self.0.reader.with(Names::from_state);
        let mut lost = 0;
        loop {
            let result = tokio::select! {
                event = events.next() => event.map(|event| {
                    // Without subscribers, the next tick ends the task.
                    let _receivers = subscribers.send(names.annotate(&self.0.host, &event));
                }),
                _ = tick.tick() => {
                    names = self.0.reader.with(Names::from_state);
                    self.renew(&mut *events, &mut lost).map(|event| {
                        if let Some(event) = event {
                            let _receivers = subscribers.send(event);
                        }
                    })
                }
            };
            if let Err(error) = &result {
                tracing::warn!("monitor: {}", one_line(error));
            }
            let mut running = self.0.running.lock().unwrap_or_else(PoisonError::into_inner);
            if result.is_err() || subscribers.receiver_count() == 0 {
                *running = None;
                return;
            }
        }
    }

    /// Renews the subscription; returns an event if some were lost.
    fn renew(&self, events: &mut dyn PacketEvents, lost: &mut u64) -> Result<Option<NamedEvent>, Error> {
        events.renew()?;
        let all = events.lost()?;
        let more = all.saturating_sub(*lost);
        *lost = all;
        Ok((more > 0).then(|| self.lost_event(more)))
    }

    /// An event that reports lost events.
    fn lost_event(&self, lost: u64) -> NamedEvent {
        NamedEvent {
            time: humantime::format_rfc3339_millis(std::time::SystemTime::now()).to_string(),
            host: self.0.host.to_string(),
            event: EventKind::Lost,
            lost,
            ..NamedEvent::default()
        }
    }

    /// The next event of a subscription; `None` after the last one.
    pub async fn next(&self, receiver: &mut broadcast::Receiver<NamedEvent>) -> Option<NamedEvent> {
        match receiver.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(lost)) => Some(self.lost_event(lost)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// Encodes an event as a line of JSON.
pub(super) fn encode(event: &NamedEvent) -> Result<Bytes, serde_json::Error> {
    let mut text = serde_json::to_vec(event)?;
    text.push(b'\n');
    Ok(text.into())
}

/// Names by tag and address.
#[derive(Debug, Default)]
struct Names {
    networks: HashMap<Tag, NetworkId>,
    endpoints: HashMap<(NetworkId, IpAddr), (EndpointId, Option<GroupKey>)>,
    services: HashMap<IpAddr, Vec<(Option<NetworkId>, ServiceId)>>,
}

impl Names {
    fn from_state(state: &State) -> Names {
        let mut names = Names {
            networks: state.networks().map(|net| (Tag::from(net.encap), net.id.clone())).collect(),
            ..Names::default()
        };
        for endpoint in state.endpoints() {
            let name = || (endpoint.id.clone(), endpoint.group.clone());
            let addresses = [Some(IpAddr::from(endpoint.ip)), endpoint.ip6.map(IpAddr::from)];
            for ip in addresses.into_iter().flatten() {
                names.endpoints.insert((endpoint.network.clone(), ip), name());
            }
        }
        for service in state.services() {
            let known = names.services.entry(service.vip).or_default();
            known.push((service.network.clone(), service.id.clone()));
        }
        names
    }

    fn annotate(&self, host: &HostName, event: &PacketEvent) -> NamedEvent {
        let network = event.tag.and_then(|tag| self.networks.get(&tag));
        let network_name = match (network, event.tag) {
            (Some(network), _) => network.to_string(),
            (None, tag) => tag.map(|tag| tag.to_string()).unwrap_or_default(),
        };
        NamedEvent {
            time: humantime::format_rfc3339_millis(event.at).to_string(),
            host: host.to_string(),
            event: if event.dropped.is_some() { EventKind::Drop } else { EventKind::Flow },
            reason: event.dropped.unwrap_or_default().to_owned(),
            network: network_name,
            interface: event.interface.clone().unwrap_or_default(),
            protocol: protocol(event),
            source: self.address(network, &event.source),
            destination: self.address(network, &event.destination),
            service: self.service(network, event.destination.ip),
            backend: event.backend.map(|backend| self.address(network, &backend)),
            rules: event.rules.iter().map(ToString::to_string).collect(),
            bytes: event.len,
            lost: 0,
        }
    }

    fn address(&self, network: Option<&NetworkId>, address: &PacketAddress) -> FlowEnd {
        let found =
            network.zip(address.ip).and_then(|(network, ip)| self.endpoints.get(&(network.clone(), ip)));
        FlowEnd {
            ip: address.ip,
            port: address.port,
            mac: if address.mac == Mac([0; 6]) { String::new() } else { address.mac.to_string() },
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

fn protocol(event: &PacketEvent) -> String {
    let known = |names: &[(u16, &str)], number: u16| {
        names.iter().find(|(known, _)| *known == number).map(|(_, name)| (*name).to_owned())
    };
    const IP_PROTOCOLS: [(u16, &str); 5] =
        [(1, "icmp"), (6, "tcp"), (17, "udp"), (58, "icmpv6"), (132, "sctp")];
    const ETHERTYPES: [(u16, &str); 5] =
        [(0x0800, "ipv4"), (0x0806, "arp"), (0x8100, "802.1q"), (0x86dd, "ipv6"), (0x88a8, "802.1ad")];
    match (event.protocol, event.ethertype) {
        (0, 0) => String::new(),
        (0, kind) => known(&ETHERTYPES, kind).unwrap_or_else(|| format!("{kind:#06x}")),
        (protocol, _) => known(&IP_PROTOCOLS, protocol.into()).unwrap_or_else(|| protocol.to_string()),
    }
}

#[cfg(test)]
mod tests;
