//! Keys of the store. Each key can be formatted and parsed.

use std::{fmt, str::FromStr};

use crate::name::{EndpointId, GroupKey, HostName, NetworkId, PolicyId, RuleId, ServiceId};

/// Prefix of every key.
pub const ROOT: &str = "/contiv.io/";
/// Prefix of the API's objects.
pub const MODELDB: &str = "/contiv.io/obj/modeldb/";
/// Prefix of the registrations of [`crate::registry`].
pub const SERVICE: &str = "/contiv.io/service/";
/// Prefix of the global settings.
pub const SETTINGS: &str = "/contiv.io/master/config/";
/// Prefixes that every agent watches as a whole. Of [`ENDPOINTS`] it watches those of the networks that its node needs, of
/// [`POLICIES`] those of the groups with endpoints on its node.
pub const AGENT_PREFIXES: [&str; 8] =
    [SETTINGS, NETWORKS, GROUPS, SERVICES, PROVIDERS, "/contiv.io/service/netplugin.vtep/", NODE_VTEPS, BGPS];
/// Lock of the leading netmaster; its value is the leader's `ip:port`.
pub const LEADER: &str = "/contiv.io/lock/netmaster/leader";

/// A type of API object, by its name in paths and keys (INVENTORY 1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is the object that its name says")]
pub enum ObjectType {
    AciGw,
    AppProfile,
    Bgp,
    EndpointGroup,
    ExtContractsGroup,
    Global,
    Netprofile,
    Network,
    Policy,
    Rule,
    ServiceLb,
    Tenant,
    Volume,
    VolumeProfile,
}

impl ObjectType {
    /// All types, ordered by name.
    pub const ALL: [ObjectType; 14] = [
        ObjectType::AciGw,
        ObjectType::AppProfile,
        ObjectType::Bgp,
        ObjectType::EndpointGroup,
        ObjectType::ExtContractsGroup,
        ObjectType::Global,
        ObjectType::Netprofile,
        ObjectType::Network,
        ObjectType::Policy,
        ObjectType::Rule,
        ObjectType::ServiceLb,
        ObjectType::Tenant,
        ObjectType::Volume,
        ObjectType::VolumeProfile,
    ];

    /// The name in paths and keys.
    pub const fn as_str(self) -> &'static str {
        match self {
            ObjectType::AciGw => "aciGw",
            ObjectType::AppProfile => "appProfile",
            ObjectType::Bgp => "Bgp",
            ObjectType::EndpointGroup => "endpointGroup",
            ObjectType::ExtContractsGroup => "extContractsGroup",
            ObjectType::Global => "global",
            ObjectType::Netprofile => "netprofile",
            ObjectType::Network => "network",
            ObjectType::Policy => "policy",
            ObjectType::Rule => "rule",
            ObjectType::ServiceLb => "serviceLB",
            ObjectType::Tenant => "tenant",
            ObjectType::Volume => "volume",
            ObjectType::VolumeProfile => "volumeProfile",
        }
    }
}

/// A key of the store (INVENTORY section 3). `Display` formats it, `FromStr` parses it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// `/contiv.io/obj/modeldb/<type>/<key>`.
    Object(ObjectType, String),
    /// `/contiv.io/master/config/global`.
    MasterConfig,
    /// `/contiv.io/master/config/cluster`: identity of the cluster. Not a key of the original.
    ClusterIdentity,
    /// `/contiv.io/state/global/global`.
    GlobalState,
    /// `/contiv.io/oper/global/global`.
    GlobalOper,
    /// `/contiv.io/state/auto-vlan/global`.
    VlanPool,
    /// `/contiv.io/oper/auto-vlan/global`.
    VlanPoolOper,
    /// `/contiv.io/state/auto-vxlan/global`.
    VxlanPool,
    /// `/contiv.io/oper/auto-vxlan/global`.
    VxlanPoolOper,
    /// `/contiv.io/state/nets/<id>`.
    Network(NetworkId),
    /// `/contiv.io/state/eps/<id>`.
    Endpoint(EndpointId),
    /// `/contiv.io/oper/eps/<id>`.
    EndpointOper(EndpointId),
    /// `/contiv.io/state/endpointGroups/<key>`.
    Group(GroupKey),
    /// `/contiv.io/state/ipam/nets/<id>`: changes of a large network's record since the record was
    /// last written as a whole. Not a key of the original; deleted when the changes are written to
    /// the record.
    NetworkJournal(NetworkId),
    /// `/contiv.io/state/ipam/endpointGroups/<key>`: as [`Key::NetworkJournal`], for a group's
    /// address pool.
    GroupJournal(GroupKey),
    /// `/contiv.io/state/ipam/chunks/nets/<id>/<chunk>`: a part of a large network's allocations, with
    /// changes since the record was last written as a whole. The journal names the valid ones. Not a
    /// key of the original; deleted like the journal.
    NetworkChunk {
        /// Network.
        network: NetworkId,
        /// Name of the chunk.
        chunk: String,
    },
    /// `/contiv.io/state/ipam/chunks/endpointGroups/<key>/<chunk>`: as [`Key::NetworkChunk`], for a
    /// group's address pool.
    GroupChunk {
        /// Group.
        group: GroupKey,
        /// Name of the chunk.
        chunk: String,
    },
    /// `/contiv.io/state/group-ids/global`: number of the next group. Not a key of the original.
    GroupIds,
    /// `/contiv.io/state/policy/<id>`.
    Policy(PolicyId),
    /// `/contiv.io/state/policyRule/<id>`.
    PolicyRule(RuleId),
    /// `/contiv.io/state/serviceLB/<id>`.
    ServiceLb(ServiceId),
    /// `/contiv.io/state/provider/<id>`.
    Providers(ServiceId),
    /// `/contiv.io/state/bgp/<host>`.
    Bgp(HostName),
    /// `/contiv.io/service/<name>/<ip>:<port>`.
    Service {
        /// Name of the service.
        name: String,
        /// `<ip>:<port>`.
        address: String,
    },
    /// `/contiv.io/state/aci-pending/<tenant>:<profile>`: the ACI gateway may not have the
    /// application profile as the store has it. Not a key of the original.
    AciPending(String),
    /// `/contiv.io/oper/node/<host>`: status that a node's agent reports. Not a key of the
    /// original.
    NodeStatus(HostName),
    /// `/contiv.io/oper/vtep/<host>`: VTEP of a node, which stays when its agent is gone. Not a key
    /// of the original.
    NodeVtep(HostName),
    /// `/contiv.io/oper/bgp/<host>`: BGP session of a node, as its agent reports it. Not a key of the
    /// original.
    BgpOper(HostName),
    /// `/contiv.io/oper/accepted-store/<host>`: an operator accepts this store for the node. Not a key
    /// of the original.
    AcceptedStore(HostName),
    /// `/contiv.io/state/node-datapath/<host>`: the datapath that an operator has chosen for a node.
    /// Not a key of the original.
    NodeDatapath(HostName),
    /// `/contiv.io/state/gone-nodes/<host>`: time since which a node's registrations are missing.
    /// Not a key of the original.
    GoneNode(HostName),
    /// `/contiv.io/lock/netmaster/leader`.
    Leader,
}

/// A key that contiv does not use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown key {0:?}")]
pub struct UnknownKey(pub String);

/// Prefix of [`Key::Network`].
pub const NETWORKS: &str = "/contiv.io/state/nets/";
/// Prefix of [`Key::Endpoint`].
pub const ENDPOINTS: &str = "/contiv.io/state/eps/";
/// Prefix of [`Key::EndpointOper`].
pub const ENDPOINTS_OPER: &str = "/contiv.io/oper/eps/";
/// Prefixes of the keys that end in one name.
const GROUPS: &str = "/contiv.io/state/endpointGroups/";
const NODES: &str = "/contiv.io/oper/node/";
/// Prefix of [`Key::NodeVtep`].
pub const NODE_VTEPS: &str = "/contiv.io/oper/vtep/";
const ACCEPTED_STORES: &str = "/contiv.io/oper/accepted-store/";
const NODE_DATAPATHS: &str = "/contiv.io/state/node-datapath/";
const GONE_NODES: &str = "/contiv.io/state/gone-nodes/";
const ACI_PENDING: &str = "/contiv.io/state/aci-pending/";
/// Prefix of [`Key::Policy`].
pub const POLICIES: &str = "/contiv.io/state/policy/";
/// Prefix of [`Key::PolicyRule`].
pub const POLICY_RULES: &str = "/contiv.io/state/policyRule/";
const SERVICES: &str = "/contiv.io/state/serviceLB/";
const PROVIDERS: &str = "/contiv.io/state/provider/";
/// Prefix of [`Key::Bgp`].
pub const BGPS: &str = "/contiv.io/state/bgp/";
/// Prefix of [`Key::BgpOper`].
pub const BGPS_OPER: &str = "/contiv.io/oper/bgp/";
const NETWORK_JOURNALS: &str = "/contiv.io/state/ipam/nets/";
const GROUP_JOURNALS: &str = "/contiv.io/state/ipam/endpointGroups/";
const NETWORK_CHUNKS: &str = "/contiv.io/state/ipam/chunks/nets/";
const GROUP_CHUNKS: &str = "/contiv.io/state/ipam/chunks/endpointGroups/";

/// Prefix of the endpoints of a network with an id of the form `<network id>-<endpoint>`. Endpoints of another network are
/// below it, too, if that network's id continues this one's with a dash: `a.b` and `a.b-c`. Endpoints that were created without
/// a container, as the nodes of the original on infra networks, have ids of the form `<host>-native-intf` and are not below it.
pub fn endpoints_of(network: &NetworkId) -> String {
    format!("{ENDPOINTS}{network}-")
}

/// Prefix of the policies that are attached to a group; of all policies if the key of the group does not have netmaster's form.
pub fn policies_of(group: &GroupKey) -> String {
    format!("{POLICIES}{}", PolicyId::prefix_of(group).unwrap_or_default())
}

/// Keys without a variable part.
const SINGLES: [(&str, Key); 10] = [
    ("/contiv.io/master/config/global", Key::MasterConfig),
    ("/contiv.io/master/config/cluster", Key::ClusterIdentity),
    ("/contiv.io/state/global/global", Key::GlobalState),
    ("/contiv.io/oper/global/global", Key::GlobalOper),
    ("/contiv.io/state/auto-vlan/global", Key::VlanPool),
    ("/contiv.io/oper/auto-vlan/global", Key::VlanPoolOper),
    ("/contiv.io/state/auto-vxlan/global", Key::VxlanPool),
    ("/contiv.io/oper/auto-vxlan/global", Key::VxlanPoolOper),
    ("/contiv.io/state/group-ids/global", Key::GroupIds),
    (LEADER, Key::Leader),
];

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Object(kind, key) => write!(f, "{MODELDB}{}/{key}", kind.as_str()),
            Key::Network(id) => write!(f, "{NETWORKS}{id}"),
            Key::Endpoint(id) => write!(f, "{ENDPOINTS}{id}"),
            Key::EndpointOper(id) => write!(f, "{ENDPOINTS_OPER}{id}"),
            Key::Group(key) => write!(f, "{GROUPS}{key}"),
            Key::NetworkJournal(id) => write!(f, "{NETWORK_JOURNALS}{id}"),
            Key::GroupJournal(key) => write!(f, "{GROUP_JOURNALS}{key}"),
            Key::NetworkChunk { network, chunk } => write!(f, "{NETWORK_CHUNKS}{network}/{chunk}"),
            Key::GroupChunk { group, chunk } => write!(f, "{GROUP_CHUNKS}{group}/{chunk}"),
            Key::Policy(id) => write!(f, "{POLICIES}{id}"),
            Key::PolicyRule(id) => write!(f, "{POLICY_RULES}{id}"),
            Key::ServiceLb(id) => write!(f, "{SERVICES}{id}"),
            Key::Providers(id) => write!(f, "{PROVIDERS}{id}"),
            Key::Bgp(host) => write!(f, "{BGPS}{host}"),
            Key::Service { name, address } => write!(f, "{SERVICE}{name}/{address}"),
            Key::AciPending(key) => write!(f, "{ACI_PENDING}{key}"),
            Key::NodeStatus(host) => write!(f, "{NODES}{host}"),
            Key::NodeVtep(host) => write!(f, "{NODE_VTEPS}{host}"),
            Key::BgpOper(host) => write!(f, "{BGPS_OPER}{host}"),
            Key::AcceptedStore(host) => write!(f, "{ACCEPTED_STORES}{host}"),
            Key::NodeDatapath(host) => write!(f, "{NODE_DATAPATHS}{host}"),
            Key::GoneNode(host) => write!(f, "{GONE_NODES}{host}"),
            single => match SINGLES.iter().find(|(_, key)| key == single) {
                Some((path, _)) => f.write_str(path),
                None => Err(fmt::Error),
            },
        }
    }
}

impl FromStr for Key {
    type Err = UnknownKey;

    fn from_str(path: &str) -> Result<Self, UnknownKey> {
        if let Some((_, key)) = SINGLES.iter().find(|(single, _)| *single == path) {
            return Ok(key.clone());
        }
        let last = |prefix| path.strip_prefix(prefix).filter(|rest: &&str| !rest.is_empty());
        if let Some(id) = last(NETWORKS) {
            return Ok(Key::Network(id.into()));
        }
        if let Some(id) = last(ENDPOINTS) {
            return Ok(Key::Endpoint(id.into()));
        }
        if let Some(id) = last(ENDPOINTS_OPER) {
            return Ok(Key::EndpointOper(id.into()));
        }
        if let Some(key) = last(GROUPS) {
            return Ok(Key::Group(key.into()));
        }
        if let Some(id) = last(NETWORK_JOURNALS) {
            return Ok(Key::NetworkJournal(id.into()));
        }
        if let Some(key) = last(GROUP_JOURNALS) {
            return Ok(Key::GroupJournal(key.into()));
        }
        let chunk =
            |prefix| last(prefix)?.rsplit_once('/').filter(|(id, chunk)| !id.is_empty() && !chunk.is_empty());
        if let Some((id, chunk)) = chunk(NETWORK_CHUNKS) {
            return Ok(Key::NetworkChunk { network: id.into(), chunk: chunk.to_owned() });
        }
        if let Some((key, chunk)) = chunk(GROUP_CHUNKS) {
            return Ok(Key::GroupChunk { group: key.into(), chunk: chunk.to_owned() });
        }
        if let Some(id) = last(POLICIES) {
            return Ok(Key::Policy(id.into()));
        }
        if let Some(id) = last(POLICY_RULES) {
            return Ok(Key::PolicyRule(id.into()));
        }
        if let Some(id) = last(SERVICES) {
            return Ok(Key::ServiceLb(id.into()));
        }
        if let Some(id) = last(PROVIDERS) {
            return Ok(Key::Providers(id.into()));
        }
        if let Some(host) = last(BGPS) {
            return Ok(Key::Bgp(host.into()));
        }
        if let Some(key) = last(ACI_PENDING) {
            return Ok(Key::AciPending(key.to_owned()));
        }
        if let Some(host) = last(NODES) {
            return Ok(Key::NodeStatus(host.into()));
        }
        if let Some(host) = last(NODE_VTEPS) {
            return Ok(Key::NodeVtep(host.into()));
        }
        if let Some(host) = last(BGPS_OPER) {
            return Ok(Key::BgpOper(host.into()));
        }
        if let Some(host) = last(ACCEPTED_STORES) {
            return Ok(Key::AcceptedStore(host.into()));
        }
        if let Some(host) = last(NODE_DATAPATHS) {
            return Ok(Key::NodeDatapath(host.into()));
        }
        if let Some(host) = last(GONE_NODES) {
            return Ok(Key::GoneNode(host.into()));
        }
        let unknown = || UnknownKey(path.to_owned());
        let split = |prefix| last(prefix)?.split_once('/').filter(|(_, rest)| !rest.is_empty());
        if let Some((kind, key)) = split(MODELDB) {
            let kind = ObjectType::ALL.into_iter().find(|t| t.as_str() == kind).ok_or_else(unknown)?;
            return Ok(Key::Object(kind, key.to_owned()));
        }
        if let Some((name, address)) = split(SERVICE) {
            return Ok(Key::Service { name: name.to_owned(), address: address.to_owned() });
        }
        Err(unknown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read_back() {
        for path in [
            "/contiv.io/lock/netmaster/leader",
            "/contiv.io/master/config/global",
            "/contiv.io/obj/modeldb/endpointGroup/default:web",
            "/contiv.io/obj/modeldb/rule/default:p1:10",
            "/contiv.io/oper/auto-vlan/global",
            "/contiv.io/oper/auto-vxlan/global",
            "/contiv.io/oper/eps/en.default-c1",
            "/contiv.io/oper/global/global",
            "/contiv.io/oper/node/node1",
            "/contiv.io/oper/vtep/node1",
            "/contiv.io/state/ipam/chunks/nets/n1.default/17",
            "/contiv.io/state/ipam/chunks/endpointGroups/web:default/v6-1f",
            "/contiv.io/service/netmaster.rpc/192.168.77.1:9001",
            "/contiv.io/state/auto-vlan/global",
            "/contiv.io/state/auto-vxlan/global",
            "/contiv.io/state/bgp/node1",
            "/contiv.io/oper/bgp/node1",
            "/contiv.io/state/endpointGroups/gp:default",
            "/contiv.io/state/eps/h1-native-intf",
            "/contiv.io/state/global/global",
            "/contiv.io/state/gone-nodes/node1",
            "/contiv.io/state/aci-pending/t:app",
            "/contiv.io/state/group-ids/global",
            "/contiv.io/state/ipam/endpointGroups/gp:default",
            "/contiv.io/state/ipam/nets/n1.a.b",
            "/contiv.io/state/nets/n1.a.b",
            "/contiv.io/state/policy/default:web:default:p1",
            "/contiv.io/state/policyRule/default:web:default:p1:default:p1:10:inRx",
            "/contiv.io/state/provider/web:default",
            "/contiv.io/state/serviceLB/web:default",
        ] {
            assert_eq!(path.parse::<Key>().unwrap().to_string(), path);
        }
    }

    #[test]
    fn every_type_of_object_has_its_own_name() {
        for kind in ObjectType::ALL {
            let key = Key::Object(kind, "default:x".into());
            assert_eq!(key.to_string().parse::<Key>().unwrap(), key);
        }
    }

    #[test]
    fn unknown_keys_are_refused() {
        for path in [
            "",
            "/",
            "/contiv.io/",
            "/contiv.io/state/nets/",
            "/contiv.io/obj/modeldb/cat/x",
            "/contiv.io/service/a",
            "/contiv.io/state/ipam/chunks/nets/n1.default",
            "/contiv.io/state/ipam/chunks/nets/n1.default/",
        ] {
            assert_eq!(path.parse::<Key>(), Err(UnknownKey(path.to_owned())));
        }
    }
}
