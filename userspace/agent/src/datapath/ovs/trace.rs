//! Traces with the command `ofproto/trace` of ovs-vswitchd, which changes no flows, counters or connections.
//!
//! * [`account`]: parser of the command's output.
//! * [`findings`]: stages of the output.

mod account;
mod findings;

use std::{collections::HashMap, net::IpAddr, path::PathBuf};

use contiv_model::{
    policy::{ICMP, ICMPV6, TCP, UDP},
    tag::Encap,
    trace::{Egress, Header},
};

use self::account::Account;
use super::{
    bridge::BridgeKind,
    desired::model::SwitchModel,
    error::ovs_error,
    options::Options,
    pipeline::{TRANSLATION_TABLES, bridge_and_tag},
    switch::{kernel, unixctl},
    tables::index::vrf_of,
};
use crate::datapath::{
    Error, Group, Object, ObjectId,
    trace::{Findings, Ingress, Probe},
};

const COMMAND: &str = "ofproto/trace";
/// Number of connection tracking lookups to continue, more than the pipeline has.
const CONNECTION_LOOKUPS: usize = 8;

/// A prepared trace, which no longer needs the datapath.
pub(super) struct Request {
    probe: Probe,
    socket: PathBuf,
    bridge: BridgeKind,
    /// OpenFlow port number of the ingress.
    in_port: u32,
    /// Ports of the bridge by number and by name.
    ports: HashMap<String, Egress>,
    groups: Vec<Group>,
    /// Addresses of this node's endpoints in the VRF of the packet.
    here: Vec<IpAddr>,
}

#[derive(Debug, thiserror::Error)]
enum NoPort {
    #[error("endpoint {0} has no port yet; retry")]
    Endpoint(String),
    #[error("VTEP {0} is not a node of the cluster; use the VTEP of another node")]
    Vtep(IpAddr),
    #[error("the node has no VLAN uplink; set --vlan-uplinks")]
    Uplink,
}

/// `ofproto/trace` stops at a group that selects a bucket by the datapath's hash.
#[derive(Debug, thiserror::Error)]
#[error(
    "the switch selects the backend by a hash that ofproto/trace does not know; use the address and port of a backend"
)]
struct HashedBackend;

/// Collects the inputs of a trace.
pub(super) fn prepare(options: &Options, model: &SwitchModel, probe: Probe) -> Result<Request, Error> {
    let index = &model.index;
    let in_port = match &probe.ingress {
        Ingress::Pod { endpoint, .. } => {
            let installed = index.get(&ObjectId::Local(endpoint.clone()));
            let port = installed.and_then(|installed| installed.port.as_ref()).map(|port| port.number);
            port.ok_or_else(|| NoPort::Endpoint(endpoint.to_string()))
        }
        Ingress::Tunnel { vtep, .. } => index.peers().get(vtep).copied().ok_or(NoPort::Vtep(*vtep)),
        Ingress::Uplink(_) => model.base.uplinks.first().copied().ok_or(NoPort::Uplink),
    };
    let in_port = in_port.map_err(|error| ovs_error("trace", error))?;
    let (bridge, _) = bridge_and_tag(probe.encap);
    let vrf =
        index.get(&ObjectId::Network(probe.network.clone())).and_then(|network| vrf_of(&network.object));
    let (mut ports, mut here) = (HashMap::new(), vec![]);
    for installed in index.ids().filter_map(|id| index.get(id)) {
        let egress = match (&installed.object, probe.encap) {
            (Object::Local(local), _) => {
                if Some(&local.vrf) == vrf {
                    here.extend(local.addresses.iter());
                }
                Egress::Endpoint { endpoint: local.id.to_string(), port: local.port.clone() }
            }
            (Object::Peer(peer), Encap::Vxlan { vni, .. }) => Egress::Tunnel { vtep: peer.vtep, vni },
            _ => continue,
        };
        let is_on_bridge = match &installed.object {
            Object::Local(local) => bridge_and_tag(local.encap).0 == bridge,
            _ => bridge == BridgeKind::Vxlan,
        };
        if let Some(port) = installed.port.as_ref().filter(|_| is_on_bridge) {
            ports.insert(port.number.to_string(), egress.clone());
            ports.insert(port.name.clone(), egress);
        }
    }
    if let Encap::Vlan(vlan) = probe.encap {
        let names = options.uplinks.iter().cloned();
        let numbers = model.base.uplinks.iter().map(u32::to_string);
        ports.extend(names.chain(numbers).map(|port| (port, Egress::Uplink { vlan })));
    }
    if let Some(number) = model.base.kernel.get(bridge) {
        let names = [kernel::name(bridge).to_owned(), number.to_string()];
        ports.extend(names.map(|port| (port, Egress::Interface(kernel::name(bridge).to_owned()))));
    }
    let groups = index.groups().cloned().collect();
    let socket = options.socket.clone();
    Ok(Request { probe, socket, bridge, in_port, ports, groups, here })
}

impl Request {
    /// Runs the trace in ovs-vswitchd.
    pub(super) async fn run(self) -> Result<Findings, Error> {
        let sent = &self.probe.header;
        let account = self.ask(sent).await?;
        // Rules are evaluated for the connection to the backend, which is known only now.
        let account = match self.backend(&account) {
            Some((destination, destination_port)) => {
                self.ask(&Header { destination, destination_port, ..sent.clone() }).await?
            }
            None => account,
        };
        Ok(self.findings(&account))
    }

    /// Returns the address and port to which a packet to a service is translated; `None` for other packets. Packets that
    /// the switch answers and returns to their sender also end with other addresses.
    fn backend(&self, account: &Account) -> Option<(IpAddr, u16)> {
        let mut visits = account.passes.iter().flat_map(|pass| &pass.visits);
        let is_translated = |visit: &account::Visit| TRANSLATION_TABLES.contains(&visit.table);
        if !visits.any(|visit| visit.flow.is_some() && is_translated(visit)) {
            return None;
        }
        let (sent, end) = (&self.probe.header, self.header(account.passes.last()?));
        let backend = (end.destination, end.destination_port);
        (backend != (sent.destination, sent.destination_port)).then_some(backend)
    }

    /// Traces the packet as part of a connection with these addresses.
    async fn ask(&self, connection: &Header) -> Result<Account, Error> {
        let mut words = vec![self.bridge.name().to_owned(), self.flow(connection)];
        // For NORMAL, the output names the ports only in the datapath's actions.
        words.extend((self.bridge == BridgeKind::Vlan).then(|| "--names".to_owned()));
        words.extend((0..CONNECTION_LOOKUPS).flat_map(|_| ["--ct-next".to_owned(), "trk,new".to_owned()]));
        let text = unixctl::run(&self.socket, COMMAND, &words).await;
        let text = text.map_err(|error| ovs_error("trace", error))?;
        let account = Account::parse(&text);
        if account.passes.last().is_some_and(account::Pass::is_selected_by_hash) {
            return Err(ovs_error("trace", HashedBackend));
        }
        Ok(account)
    }

    /// Returns the packet in flow syntax.
    fn flow(&self, opened: &Header) -> String {
        let Probe { header, ingress, .. } = &self.probe;
        let mut fields = vec![format!("in_port={}", self.in_port)];
        match ingress {
            Ingress::Pod { .. } => {}
            Ingress::Tunnel { vtep, vni } => {
                let field = if vtep.is_ipv4() { "tun_src" } else { "tun_ipv6_src" };
                fields.extend([format!("{field}={vtep}"), format!("tun_id={vni}")]);
            }
            Ingress::Uplink(vlan) => fields.push(format!("dl_vlan={vlan},dl_vlan_pcp=0")),
        }
        fields.push(format!("dl_src={},dl_dst={}", header.source_mac, header.destination_mac));
        fields.push("ct_state=trk|new".to_owned());
        fields.extend(network_layer(header));
        fields.extend(connection(opened));
        fields.join(",")
    }
}

fn network_layer(header: &Header) -> Vec<String> {
    let Header { source, destination, protocol, .. } = header;
    let v4 = source.is_ipv4();
    let keyword = match (*protocol, v4) {
        (TCP, true) => "tcp".to_owned(),
        (TCP, false) => "tcp6".to_owned(),
        (UDP, true) => "udp".to_owned(),
        (UDP, false) => "udp6".to_owned(),
        (ICMP, true) => "icmp".to_owned(),
        (ICMPV6, false) => "icmp6".to_owned(),
        (other, true) => format!("ip,nw_proto={other}"),
        (other, false) => format!("ipv6,nw_proto={other}"),
    };
    let (from, to) = if v4 { ("nw_src", "nw_dst") } else { ("ipv6_src", "ipv6_dst") };
    let mut fields = vec![keyword, format!("{from}={source},{to}={destination}")];
    fields.push(format!("nw_ttl=64,nw_tos={}", u16::from(header.dscp) << 2));
    match (*protocol, v4) {
        (TCP | UDP, _) => {
            fields.push(format!("tp_src={},tp_dst={}", header.source_port, header.destination_port));
        }
        (ICMP, true) => fields.push("icmp_type=8,icmp_code=0".to_owned()),
        (ICMPV6, false) => fields.push("icmp_type=128,icmp_code=0".to_owned()),
        _ => {}
    }
    if *protocol == TCP {
        fields.push(format!("tcp_flags={}", header.tcp_flags.bits()));
    }
    fields
}

/// Returns the addresses with which the connection was opened. Rules are evaluated with them. Connection tracking sets
/// them, but `ofproto/trace` only simulates connection tracking and keeps the packet's values.
fn connection(header: &Header) -> Vec<String> {
    let Header { source, destination, protocol, .. } = header;
    let (from, to) =
        if source.is_ipv4() { ("ct_nw_src", "ct_nw_dst") } else { ("ct_ipv6_src", "ct_ipv6_dst") };
    let mut fields = vec![format!("{from}={source},{to}={destination},ct_nw_proto={protocol}")];
    if [TCP, UDP].contains(protocol) {
        fields.push(format!("ct_tp_src={},ct_tp_dst={}", header.source_port, header.destination_port));
    }
    fields
}
