//! Connections to the database and to both bridges.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use openflow_rs::{
    Change, Connection, FlowFilter, FlowStats, PackedFlow, connection, connection::Target, message::Body,
    multipart::UnknownFlow,
};
use serde_json::json;
use tokio::net::UnixStream;

use super::{
    announcer::{Announcer, Sender},
    capacity, foreign, kernel, limit, numbers,
    ovsdb::{self, Client, Database, OPEN_VSWITCH, Operation, set},
    responder::{self, Responder},
    uplink, zones,
};
use crate::{
    datapath::ovs::{
        bridge::{BridgeKind, PerBridge},
        options::{DatapathType, Options},
        pipeline,
        tables::{cookie::Cookie, edit::Tables, ids::ObjectNumbers},
    },
    error::one_line,
};

/// Time limit for ovs-vswitchd to apply a changed configuration.
const RECONFIGURE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Database(#[from] ovsdb::Error),
    #[error(
        "bridge {bridge}: ovs-vswitchd has not created it with datapath type {kind} (is ovs-vswitchd running on this node? \
         Then see its log: type system needs the kernel module openvswitch, --ovs-datapath-type netdev does not)"
    )]
    NotCreated { bridge: &'static str, kind: &'static str, source: Box<connection::Error> },
    #[error(
        "Open vSwitch restores flows (other_config:flow-restore-wait is true); wait for ovs-ctl, which removes the key, or remove it: \
         ovs-vsctl remove Open_vSwitch . other_config flow-restore-wait"
    )]
    RestoresFlows,
    #[error("bridge {bridge} (is ovs-vswitchd running on this node?)")]
    Bridge { bridge: &'static str, source: Box<connection::Error> },
    #[error("bridge {bridge}: temporarily unavailable")]
    Transient { bridge: &'static str, source: Box<connection::Error> },
    #[error("bridge {bridge}")]
    Refused { bridge: &'static str, source: Box<connection::Error> },
}

/// Connections to the Open vSwitch of this node.
pub(crate) struct Session {
    database: Client,
    /// Directory of the management sockets of the bridges.
    directory: PathBuf,
    bridges: PerBridge<Option<Connection>>,
    responders: PerBridge<Option<Responder>>,
    /// Sends announcements through the VLAN bridge.
    announcements: Option<Sender>,
    /// Number of changed rows, flows and groups since the last `take_writes`.
    writes: u64,
}

/// Contents of the switch.
pub(crate) struct Dump {
    /// Flows of agents, and all groups that can be decoded: they have no cookies.
    pub(crate) tables: PerBridge<Tables>,
    /// Numbers of flows of other programs: those with other cookies, and those that cannot be decoded.
    pub(crate) foreign: PerBridge<usize>,
    /// OpenFlow port numbers by port name.
    pub(crate) ports: PerBridge<HashMap<String, u32>>,
}

impl Session {
    /// Connects to the database and the bridges. Creates missing bridges and uplinks.
    pub(crate) async fn open(
        socket: &Path,
        datapath_type: DatapathType,
        uplinks: &[String],
    ) -> Result<Session, Error> {
        let database = Client::connect(socket).await?;
        let mut session = Session::without_bridges(database);
        session.directory = socket.parent().map(PathBuf::from).unwrap_or_default();
        session.ensure_bridges(datapath_type, uplinks).await?;
        Ok(session)
    }

    /// Connects to the database and the bridges that exist. Changes nothing.
    pub(crate) async fn open_existing(socket: &Path) -> Result<Session, Error> {
        let mut session = Session::without_bridges(Client::connect(socket).await?);
        session.directory = socket.parent().map(PathBuf::from).unwrap_or_default();
        for kind in BridgeKind::ALL {
            let path = session.directory.join(format!("{}.mgmt", kind.name()));
            let connection = Connection::connect(&Target::Unix(path)).await;
            let (connection, _) = connection.map_err(|source| bridge_error(kind, source))?;
            *session.bridges.get_mut(kind) = Some(connection);
        }
        Ok(session)
    }

    /// Whether ovs-vswitchd has a bridge of an agent: it listens on the bridge's management socket, also without its database.
    pub(crate) async fn has_bridges(socket: &Path) -> bool {
        let directory = socket.parent().unwrap_or(Path::new(""));
        for kind in BridgeKind::ALL {
            let connected = UnixStream::connect(directory.join(format!("{}.mgmt", kind.name()))).await;
            let is_absent = |error: &io::Error| {
                matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
            };
            // Another error, such as a full backlog, is no proof that nothing listens.
            if !connected.as_ref().is_err_and(is_absent) {
                return true;
            }
        }
        false
    }

    /// Connects to the database, waits until ovs-vswitchd has applied it, and returns it. Changes no bridge.
    pub(crate) async fn probe(socket: &Path) -> Result<Arc<Database>, Error> {
        let mut session = Session::without_bridges(Client::connect(socket).await?);
        session.reconfigure_unchanged().await?;
        Ok(session.database())
    }

    /// Returns a session that has no connection to the bridges.
    pub(crate) fn without_bridges(database: Client) -> Session {
        Session {
            database,
            directory: PathBuf::new(),
            bridges: PerBridge::default(),
            responders: PerBridge::default(),
            announcements: None,
            writes: 0,
        }
    }

    /// Creates or updates bridges and uplinks and connects to the bridges. Writes nothing if they are up to date. Fails while `ovs-ctl`
    /// is still to restore flows, which would replace those of the agent.
    pub(crate) async fn ensure_bridges(
        &mut self,
        datapath_type: DatapathType,
        uplinks: &[String],
    ) -> Result<(), Error> {
        self.database.catch_up().await?;
        let database = self.database.database();
        if database.restores_flows {
            return Err(Error::RestoresFlows);
        }
        for kind in BridgeKind::ALL {
            let operations = bridge_operations(&database, kind, datapath_type);
            // The existing connection belongs to the replaced bridge.
            if !operations.is_empty() {
                self.reconfigure(operations).await?;
                *self.bridges.get_mut(kind) = None;
                *self.responders.get_mut(kind) = None;
                self.announcements = None;
            }
            if self.bridges.get(kind).is_none() {
                self.connect(kind, datapath_type).await?;
            }
        }
        let database = self.database.database();
        self.reconfigure(uplink::operations(&database, uplinks)).await
    }

    /// Adds the port of the node's kernel to a bridge, unless it exists, and returns its number. Without one,
    /// [`kernel::warning`] says why.
    pub(crate) async fn ensure_kernel_port(&mut self, bridge: BridgeKind) -> Result<Option<u32>, Error> {
        let operations = kernel::operations(&self.database(), bridge);
        self.reconfigure(operations).await?;
        Ok(kernel::number(&self.database(), bridge))
    }

    async fn connect(&mut self, kind: BridgeKind, datapath_type: DatapathType) -> Result<(), Error> {
        let path = self.directory.join(format!("{}.mgmt", kind.name()));
        match Connection::connect(&Target::Unix(path)).await {
            Ok((connection, notifications)) => {
                let responder = Responder::start(&connection, notifications).await;
                let responder = responder.map_err(|source| bridge_error(kind, source))?;
                *self.responders.get_mut(kind) = Some(responder);
                *self.bridges.get_mut(kind) = Some(connection);
            }
            Err(source) => return Err(connect_error(&self.database(), kind, datapath_type, source)),
        }
        Ok(())
    }

    /// Returns whether all connections are open.
    pub(crate) fn is_open(&self) -> bool {
        let open = |kind| {
            self.bridges.get(kind).as_ref().is_some_and(|connection: &Connection| !connection.is_closed())
        };
        !self.database.is_closed() && BridgeKind::ALL.into_iter().all(open)
    }

    pub(crate) fn client(&self) -> &Client {
        &self.database
    }

    pub(crate) fn database(&self) -> Arc<Database> {
        self.database.database()
    }

    pub(crate) fn bridge(&self, kind: BridgeKind) -> Option<&Connection> {
        self.bridges.get(kind).as_ref()
    }

    /// Sends the announcements that wait, and those to come, as long as the session lasts.
    pub(crate) fn send_announcements(&mut self, announcer: &Announcer) {
        let bridge = self.bridges.vlan.as_ref().filter(|_| self.announcements.is_none());
        if let Some(bridge) = bridge {
            self.announcements = Some(announcer.start(bridge));
        }
    }

    /// Returns the number of changes since the last call.
    pub(crate) fn take_writes(&mut self) -> u64 {
        std::mem::take(&mut self.writes)
    }

    /// Executes the operations and waits until ovs-vswitchd has applied them. Does nothing without operations.
    pub(crate) async fn reconfigure(&mut self, operations: Vec<Operation>) -> Result<(), Error> {
        if operations.is_empty() {
            return Ok(());
        }
        self.writes += operations.iter().filter(|operation| operation.is_write()).count() as u64;
        Ok(self.database.reconfigure(operations, RECONFIGURE_TIMEOUT).await?)
    }

    /// Sets the zones of connection tracking that the agent uses, with others that it has used before if `keeps` is true, and removes the
    /// connections of earlier owners. Unless the flows of those are gone (`settled`), the next call removes them again. Writes nothing if
    /// the zones are up to date. Returns why the number of their connections has no limit, if ovs-vswitchd refuses it.
    pub(crate) async fn set_zones(
        &mut self,
        options: &Options,
        mut owners: zones::Owners,
        keeps: bool,
        settled: bool,
    ) -> Result<Option<String>, Error> {
        let Options { datapath_type, timeouts, .. } = options;
        let database = self.database();
        let recorded = zones::owners(&database, *datapath_type);
        let mut zones: BTreeSet<u16> = owners.keys().copied().collect();
        let mut released = zones::released(&database, *datapath_type, &zones);
        let mut flushed = zones::changed(&recorded, &owners);
        let mut keep_owner =
            |zone: u16| owners.extend(recorded.get(&zone).map(|owner| (zone, owner.clone())));
        if !settled {
            flushed.iter().copied().for_each(&mut keep_owner);
        }
        if keeps {
            released.iter().copied().for_each(&mut keep_owner);
            zones.extend(released.drain(..));
        }
        flushed.extend(zones::missing(&database, *datapath_type, &zones));
        // First: after a failure they are missing, or have the earlier owner, again.
        self.flush_zones(flushed).await?;
        self.reconfigure(zones::operations(&database, *datapath_type, &zones, &owners, timeouts)).await?;
        match capacity::set(options, &zones, &released).await {
            Ok(changes) => {
                self.writes += changes;
                Ok(None)
            }
            Err(error) => Ok(Some(format!("the connections have no limit: {}", one_line(&error)))),
        }
    }

    /// Keeps the numbers that names do not tell in the database, with others that it has if `keeps` is true. Writes nothing if it is up to
    /// date.
    pub(crate) async fn store_numbers(&mut self, numbers: &ObjectNumbers, keeps: bool) -> Result<(), Error> {
        let operations = numbers::operations(&self.database(), numbers, keeps);
        self.reconfigure(operations).await
    }

    /// Removes the connections of zones that get a network: another network, perhaps of another tenant, may have had the number. The
    /// bridges share the connections.
    async fn flush_zones(&self, zones: Vec<u16>) -> Result<(), Error> {
        if zones.is_empty() {
            return Ok(());
        }
        let flushes = zones.into_iter().map(Body::FlushZone).collect();
        let what = |_: usize| "remove the connections of a zone".to_owned();
        let flushed = self.connection(BridgeKind::Vxlan)?.send_all(flushes, what).await;
        flushed.map_err(|source| bridge_error(BridgeKind::Vxlan, source))
    }

    /// Makes ovs-vswitchd apply the configuration again, so that it retries ports that it could not open.
    pub(crate) async fn reconfigure_unchanged(&mut self) -> Result<(), Error> {
        Ok(self.database.reconfigure(vec![], RECONFIGURE_TIMEOUT).await?)
    }

    fn connection(&self, kind: BridgeKind) -> Result<&Connection, Error> {
        let closed = || {
            let path = PathBuf::from(format!("{}.mgmt", kind.name()));
            bridge_error(
                kind,
                connection::Error::Closed { target: Target::Unix(path), why: "not connected".into() },
            )
        };
        self.bridges.get(kind).as_ref().ok_or_else(closed)
    }

    /// Reads flows, groups and ports of both bridges. Flows of other programs are counted only, so that nothing compares,
    /// decodes or removes them.
    pub(crate) async fn dump(&self) -> Result<Dump, Error> {
        let one = async |kind| {
            let connection = self.connection(kind)?;
            let flows = async {
                let (mut flows, mut foreign, mut used_groups) = (vec![], 0, BTreeSet::new());
                let visit = |stats: FlowStats| {
                    if pipeline::is_learned(&stats.flow) {
                        return;
                    }
                    let flow = PackedFlow::new(&stats.flow);
                    if Cookie(flow.cookie()).is_own() {
                        flows.push(flow);
                    } else {
                        foreign += 1;
                        used_groups.extend(flow.used_groups());
                    }
                };
                let unknown = connection.visit_flows(FlowFilter::default(), visit).await?;
                // Whatever cookies they have: the agent sets no flows that it cannot read.
                used_groups.extend(unknown.iter().flat_map(UnknownFlow::used_groups));
                Ok((flows, foreign + unknown.len(), used_groups))
            };
            let groups = async { connection.all_groups().await };
            let ports = async { connection.ports().await };
            let all = futures::future::try_join3(flows, groups, ports).await;
            let ((flows, foreign, used), groups, ports) = all.map_err(|source| bridge_error(kind, source))?;
            let foreign_groups = foreign::groups(used, &groups);
            // Those that cannot be decoded are left out: if one has the id of a group that the agent needs, that one is missing.
            let tables = Tables::new(flows, groups.known).with_foreign_groups(foreign_groups);
            let ports: HashMap<_, _> = ports.into_iter().map(|port| (port.name, port.port.0)).collect();
            Ok::<_, Error>((tables, foreign, ports))
        };
        let (vlan, vxlan) = futures::future::try_join(one(BridgeKind::Vlan), one(BridgeKind::Vxlan)).await?;
        Ok(Dump {
            tables: PerBridge { vlan: vlan.0, vxlan: vxlan.0 },
            foreign: PerBridge { vlan: vlan.1, vxlan: vxlan.1 },
            ports: PerBridge { vlan: vlan.2, vxlan: vxlan.2 },
        })
    }

    /// Calls `visit` for each flow of a bridge, and returns those that cannot be decoded.
    pub(crate) async fn visit_flows(
        &self,
        kind: BridgeKind,
        visit: impl FnMut(FlowStats),
    ) -> Result<Vec<UnknownFlow>, Error> {
        let visited = self.connection(kind)?.visit_flows(FlowFilter::default(), visit).await;
        visited.map_err(|source| bridge_error(kind, source))
    }

    /// Applies all changes to one bridge atomically.
    pub(crate) async fn apply(&mut self, kind: BridgeKind, changes: Vec<Change>) -> Result<(), Error> {
        if changes.is_empty() {
            return Ok(());
        }
        let count = changes.len() as u64;
        if changes.iter().any(responder::needs_meter) {
            let ensured = responder::ensure_meters(self.connection(kind)?).await;
            ensured.map_err(|source| bridge_error(kind, source))?;
        }
        self.connection(kind)?.apply_bundle(changes).await.map_err(|source| bridge_error(kind, source))?;
        self.writes += count;
        Ok(())
    }

    /// Removes both bridges with their ports and flows, and the zones.
    pub(crate) async fn remove_bridges(&mut self) -> Result<(), Error> {
        let database = self.database.database();
        let ours: Vec<_> = BridgeKind::ALL.iter().filter_map(|kind| database.bridge(kind.name())).collect();
        let ours: Vec<_> = ours.into_iter().map(|(uuid, _)| uuid.into()).collect();
        let mut operations = zones::removal(&database);
        if ours.is_empty() && operations.is_empty() {
            return Ok(());
        }
        operations.push(Operation::unlink(OPEN_VSWITCH, None, "bridges", &ours));
        self.reconfigure(operations).await?;
        // Their ports are removed now.
        self.reconfigure(limit::orphans(&self.database.database())).await
    }
}

fn bridge_error(kind: BridgeKind, source: connection::Error) -> Error {
    let bridge = kind.name();
    match &source {
        connection::Error::Refused { source: error, .. } if error.is_transient() => {
            Error::Transient { bridge, source: Box::new(source) }
        }
        connection::Error::Refused { .. } | connection::Error::Encode { .. } => {
            Error::Refused { bridge, source: Box::new(source) }
        }
        _ => Error::Bridge { bridge, source: Box::new(source) },
    }
}

/// Returns the error of a connection attempt.
fn connect_error(
    database: &Database,
    kind: BridgeKind,
    datapath_type: DatapathType,
    source: connection::Error,
) -> Error {
    // `ofport` of the internal port is no indication: its name exceeds the limit of the kernel.
    let is_created = database.bridge(kind.name()).is_none_or(|(_, bridge)| bridge.created);
    if is_created {
        return bridge_error(kind, source);
    }
    Error::NotCreated { bridge: kind.name(), kind: datapath_type.name(), source: Box::new(source) }
}

/// Returns whether the switch rejected a request. The session remains usable.
pub(crate) fn is_rejection(error: &Error) -> bool {
    matches!(error, Error::Refused { .. } | Error::Database(ovsdb::Error::Refused { .. }))
}

/// Returns the operations that create or update a bridge.
fn bridge_operations(database: &Database, kind: BridgeKind, datapath_type: DatapathType) -> Vec<Operation> {
    let name = kind.name();
    let columns = json!({
        "fail_mode": set(["secure"]),
        "protocols": set(["OpenFlow13"]),
        "datapath_type": datapath_type.name(),
    });
    if let Some((uuid, bridge)) = database.bridge(name) {
        let fits = bridge.fail_mode.as_deref() == Some("secure")
            && bridge.protocols.iter().map(String::as_str).eq(["OpenFlow13"])
            && (bridge.datapath_type == datapath_type.name()
                || bridge.datapath_type.is_empty() && datapath_type == DatapathType::System);
        return if fits { vec![] } else { vec![Operation::update("Bridge", uuid, columns)] };
    }
    let interface = json!({"name": name, "type": "internal"});
    let (insert_interface, interface) =
        Operation::insert("Interface", &format!("{name}Interface"), interface);
    let port = json!({"name": name, "interfaces": set([interface])});
    let (insert_port, port) = Operation::insert("Port", &format!("{name}Port"), port);
    let mut row = columns;
    row["name"] = json!(name);
    row["ports"] = set([port]);
    let (insert_bridge, bridge) = Operation::insert("Bridge", name, row);
    let link = Operation::link(OPEN_VSWITCH, None, "bridges", &[bridge]);
    vec![insert_interface, insert_port, insert_bridge, link]
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use openflow_rs::ErrorMessage;

    use super::*;

    /// The error has the cause, whatever the database says about the bridge.
    #[test]
    fn the_cause_of_a_failed_connection_is_kept() {
        let mut database = Database::default();
        let name = BridgeKind::Vlan.name();
        let mut error = |datapath_id: serde_json::Value| {
            let row = json!({"name": name, "ports": set::<&str>([]), "datapath_id": datapath_id});
            database.update(&json!({
                OPEN_VSWITCH: {"root": {"new": {"bridges": ["set", [["uuid", "b"]]]}}},
                "Bridge": {"b": {"new": row}},
            }));
            let target = Target::Unix("/switch".into());
            let source = connection::Error::Version { target, why: "old".into() };
            connect_error(&database, BridgeKind::Vlan, DatapathType::System, source)
        };
        let (missing, created) = (error(set::<&str>([])), error(json!("0000000000000001")));
        assert!(matches!(missing, Error::NotCreated { .. }), "{missing}");
        assert!(matches!(created, Error::Bridge { .. }), "{created}");
        assert!([missing, created].iter().all(|error| one_line(error).ends_with("no OpenFlow 1.3: old")));
    }

    /// Nothing is wrong with the changes of a bundle that took too long.
    #[test]
    fn a_dropped_bundle_is_no_rejection_of_its_changes() {
        let refused = |kind, code, experimenter| {
            let source = ErrorMessage { kind, code, experimenter, data: vec![] };
            let (target, request) = (Target::Unix("/switch".into()), "add flow".into());
            bridge_error(BridgeKind::Vlan, connection::Error::Refused { target, request, source })
        };
        // Codes of the ONF: OFPBFC_TIMEOUT, OFPBFC_MSG_FAILED.
        assert!(!is_rejection(&refused(0xffff, 2314, Some(0x4f4e_4600))));
        assert!(is_rejection(&refused(0xffff, 2313, Some(0x4f4e_4600))));
        assert!(is_rejection(&refused(4, 9, None)));
    }

    #[tokio::test]
    async fn bridges_are_found_without_the_database() {
        let directory = testkit::scratch_dir("bridges").unwrap();
        let socket = directory.path().join("db.sock");
        assert!(!Session::has_bridges(&socket).await, "no socket");
        let listener = UnixListener::bind(directory.path().join("contivVxlanBridge.mgmt")).unwrap();
        assert!(Session::has_bridges(&socket).await);
        drop(listener);
        assert!(!Session::has_bridges(&socket).await, "a socket that ovs-vswitchd has left");
    }
}
