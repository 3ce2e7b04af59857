//! Datapath on Open vSwitch, programmed over OVSDB and OpenFlow 1.3.
//!
//! The node has two bridges, `contivVlanBridge` and `contivVxlanBridge`. From low to high:
//!
//! * `bridge`, `options`, `error`, `hash`: names of the bridges, configuration, errors, a stable hash.
//! * `pipeline`: flows and groups of each object. No I/O.
//! * `tables`: contents of the tables of one bridge, their changes, and the index of installed objects. No I/O.
//! * `desired`: translation of objects to table contents, and comparison with the switch. No I/O.
//! * `switch`: connections to ovsdb-server and ovs-vswitchd.
//! * `observe`, `apply`: the two operations of the datapath.
//! * `connections`: what the switch tracks, for a datapath that replaces this one.
//! * `telemetry`: counters of rules and services.
//! * `trace`: traces of packets.

mod apply;
mod bridge;
mod connections;
mod desired;
mod error;
mod hash;
mod observe;
mod options;
mod pipeline;
mod switch;
mod tables;
mod telemetry;
mod trace;

pub use self::options::{DEFAULT_SOCKET, DatapathType, Options};

use std::sync::{Arc, OnceLock};

use contiv_abi::DropReason;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use self::{
    bridge::BridgeKind,
    desired::model::SwitchModel,
    error::{NotObserved, ovs_error},
    switch::{
        announcer::Announcer,
        drift, hold,
        limit::Bandwidth,
        node_address, ovsdb,
        pod_filter::{self, PodFilter},
        ports,
        session::Session,
    },
    telemetry::FlowCounters,
};
use super::{
    Datapath, Desired, Error, FailedOp, Group, Object, Observed, Op, PortRequirements, TrackedConnection,
    skb,
    telemetry::{Stats, Telemetry},
    trace::{Findings, Probe},
};
use crate::error::one_line;

/// Datapath on the Open vSwitch of this node.
pub struct Ovs {
    options: Options,
    /// `None` before the first `observe` and after an error.
    session: Option<Session>,
    model: SwitchModel,
    /// Fingerprint of the bridge configuration after the last call; see [`drift`].
    fingerprint: u64,
    /// The configuration of the bridges changed before or during an `apply`.
    drifted: bool,
    writes: u64,
    /// Configuration that was not in effect at the last observation.
    warnings: Vec<String>,
    counters: FlowCounters,
    /// Connections of the datapath that this one replaces, until they are imported with the next garbage collection.
    inherited: Vec<TrackedConnection>,
    /// Another datapath forwards frames: no frame may enter the bridges.
    stands_by: bool,
    /// Flows, groups and ports without an object are retained.
    retains_orphans: bool,
    /// Announces endpoints and services. Pending announcements outlive the session.
    announcer: Announcer,
    /// The filter of pods' interfaces, or the reason why it is not loaded.
    filter: OnceLock<Result<PodFilter, String>>,
}

impl Ovs {
    /// Creates a datapath. The first `observe` connects to the switch.
    pub fn new(options: Options) -> Ovs {
        Ovs {
            options,
            session: None,
            model: SwitchModel::default(),
            fingerprint: 0,
            drifted: false,
            writes: 0,
            warnings: vec![],
            counters: FlowCounters::default(),
            inherited: vec![],
            stands_by: false,
            retains_orphans: false,
            announcer: Announcer::default(),
            filter: OnceLock::new(),
        }
    }

    /// Loads the filter of pods' interfaces at the first call.
    fn filter(&self) -> &Result<PodFilter, String> {
        self.filter.get_or_init(|| PodFilter::load(self.options.datapath_type))
    }

    /// Attaches the filter to the interfaces of all endpoints: a switch that restarts removes it.
    fn attach_filter(&mut self, database: &ovsdb::Database) {
        self.filter();
        let Some(Ok(filter)) = self.filter.get_mut() else { return };
        for name in ports::of_endpoints(database) {
            if let Err(error) = filter.attach(name) {
                self.warnings.push(one_line(&error));
            }
        }
    }

    /// Returns the bridges that an earlier agent created in this node's switch; `None` if no switch responds.
    pub async fn left_behind(&self) -> Option<Vec<&'static str>> {
        let client = ovsdb::Client::connect(&self.options.socket).await.ok()?;
        let database = client.database();
        let names = BridgeKind::ALL.iter().map(|bridge| bridge.name());
        Some(names.filter(|name| database.bridge(name).is_some()).collect())
    }

    /// Reports whether removing the bridges frees this UDP port: they have VXLAN tunnels on it, and other bridges of the
    /// switch have none. Returns false if no switch responds.
    pub async fn frees_tunnel_port(&self, port: u16) -> bool {
        let client = ovsdb::Client::connect(&self.options.socket).await;
        client.is_ok_and(|client| ports::frees_tunnel_port(&client.database(), port))
    }

    /// Reports whether ovs-vswitchd has a bridge that an earlier agent created. It keeps its bridges while the database
    /// is not running.
    pub async fn has_bridges(&self) -> bool {
        Session::has_bridges(&self.options.socket).await
    }

    /// Returns the connections of the endpoints and services in `desired` that the switch tracks. Changes nothing.
    ///
    /// # Errors
    ///
    /// The switch does not respond, or has no bridges.
    pub async fn connections(&self, desired: &Desired) -> Result<Vec<TrackedConnection>, Error> {
        connections::read(&self.options, desired).await
    }

    /// Returns the host interfaces of endpoints that are ports of the bridges.
    ///
    /// # Errors
    ///
    /// The switch does not respond.
    pub async fn host_ends(&self) -> Result<Vec<String>, Error> {
        let client = ovsdb::Client::connect(&self.options.socket).await;
        let client = client.map_err(|error| ovs_error("read the ports of the bridges", error))?;
        Ok(ports::of_endpoints(&client.database()).map(str::to_owned).collect())
    }

    /// Drops all frames that enter the bridges, while another datapath takes over.
    ///
    /// # Errors
    ///
    /// The switch does not respond, or has no bridges.
    pub async fn stop(&mut self) -> Result<(), Error> {
        let session = Session::open_existing(&self.options.socket).await;
        let mut session = session.map_err(|error| ovs_error("close the bridges for frames", error))?;
        let stopped = hold::hold(&mut session).await;
        self.writes += session.take_writes();
        stopped?;
        if self.options.datapath_type == DatapathType::Netdev && !pod_filter::is_behind_others() {
            // The filter would drop the frames before the programs of the other datapath process them.
            detach_filter(&session.database())?;
        }
        Ok(())
    }

    /// Reports whether no frame passes the bridges: they are closed, have no flows, or do not exist.
    ///
    /// # Errors
    ///
    /// The switch does not respond.
    pub async fn is_closed(&self) -> Result<bool, Error> {
        if self.left_behind().await.is_some_and(|bridges| bridges.is_empty()) {
            return Ok(true);
        }
        let failed = |error| ovs_error("read the flows of the bridges", error);
        let session = Session::open_existing(&self.options.socket).await.map_err(failed)?;
        hold::is_held(&session).await.map_err(failed)
    }

    /// Lets frames enter closed bridges again, after [`stop`](Self::stop) or an interrupted takeover.
    ///
    /// # Errors
    ///
    /// The switch does not respond, or has no bridges.
    pub async fn resume(&mut self) -> Result<(), Error> {
        let session = Session::open_existing(&self.options.socket).await;
        let mut session = session.map_err(|error| ovs_error("open the bridges for frames", error))?;
        self.attach_filter(&session.database());
        let opened = hold::release(&mut session).await;
        self.writes += session.take_writes();
        opened
    }

    fn bridge_json(&self, bridge: BridgeKind) -> Value {
        let database = self.session.as_ref().map(Session::database);
        let names = database.iter().flat_map(|database| ports::present(database));
        let ports: serde_json::Map<_, _> = names
            .filter(|(on, _)| *on == bridge)
            .map(|(_, name)| {
                let number = database.as_ref().and_then(|d| ports::find(d, name)?.interface.number());
                let owner = self.model.index.port_owner(name).map(ToString::to_string);
                (name.to_owned(), json!({"ofport": number, "owner": owner}))
            })
            .collect();
        let tables = self.model.tables.get(bridge);
        json!({"flows": tables.len(), "groups": tables.groups().len(), "ports": ports})
    }
}

/// Detaches the filter from the interfaces of all endpoints.
fn detach_filter(database: &ovsdb::Database) -> Result<(), Error> {
    ports::of_endpoints(database).try_for_each(pod_filter::detach)
}

impl Datapath for Ovs {
    /// The first `observe` writes the bridges to the database before it waits for ovs-vswitchd, and adds the uplinks to them.
    async fn prepare(&mut self) -> Result<(), Error> {
        let database = Session::probe(&self.options.socket).await;
        let database = database.map_err(|error| ovs_error("connect to the switch", error))?;
        let checked = node_address::check(&database, &self.options).await;
        checked.map_err(|error| ovs_error("add the VLAN uplinks to the bridge", error))
    }

    fn stand_by(&mut self) {
        self.stands_by = true;
    }

    /// Reports whether this object can be installed in standby. The other datapath owns the tunnel port and the
    /// interfaces to the node's kernel. A VLAN network that the node routes is installed without its kernel port: as a
    /// bridged network, it would send frames to the uplinks, and its connections would have other zones.
    fn can_stand_by(&self, object: &Object) -> bool {
        let by_tunnel = matches!(object, Object::Remote(remote) if remote.vtep().is_some());
        let by_host_access = desired::needed_kernel_port(object) == Some(BridgeKind::Vxlan);
        !matches!(object, Object::Peer(_)) && !by_tunnel && !by_host_access
    }

    /// Reports whether the takeover completes this object: flows of a VLAN network that the node routes, and of its
    /// endpoints on other nodes, contain the number of the kernel port.
    fn is_completed_by_takeover(&self, object: &Object) -> bool {
        let has_port = matches!(object, Object::Remote(_)) || desired::needed_kernel_port(object).is_some();
        has_port || !self.can_stand_by(object)
    }

    async fn take_over(&mut self, connections: Vec<TrackedConnection>) -> Result<(), Error> {
        self.stands_by = false;
        let Some(mut session) = self.session.take() else {
            return Err(ovs_error("take over the connections of the other datapath", NotObserved));
        };
        let datapath_type = self.options.datapath_type;
        let result = apply::take_over(&mut session, &self.model, datapath_type, connections).await;
        self.writes += session.take_writes();
        result?;
        self.session = Some(session);
        Ok(())
    }

    fn inherit(&mut self, connections: Vec<TrackedConnection>) {
        (self.stands_by, self.inherited) = (false, connections);
    }

    fn retain_orphans(&mut self, retain: bool) {
        self.retains_orphans = retain;
    }

    fn retain_groups(&mut self, retain: bool) {
        self.model.base.retains_groups = retain;
    }

    async fn observe(&mut self, desired: &Desired) -> Result<Observed, Error> {
        let session = self.session.take().filter(Session::is_open);
        let mut session = match session {
            Some(session) => session,
            None => {
                let options = &self.options;
                let opened = Session::open(&options.socket, options.datapath_type, &options.uplinks);
                opened.await.map_err(|error| ovs_error("connect to the switch", error))?
            }
        };
        let modes = (self.retains_orphans, self.stands_by, !self.inherited.is_empty());
        let numbers = &self.model.numbers;
        let result = observe::observe(&mut session, &self.options, desired, numbers, modes).await;
        self.writes += session.take_writes();
        let observation = result?;
        self.model = observation.model;
        (self.fingerprint, self.drifted) = (observation.fingerprint, false);
        self.warnings = observation.warnings;
        self.attach_filter(&session.database());
        let bridges = BridgeKind::ALL.into_iter().filter_map(|kind| session.bridge(kind).cloned());
        self.counters.follow(bridges.collect(), &self.model);
        apply::announce::release(&self.announcer, &session.database(), &self.model.index);
        session.send_announcements(&self.announcer);
        self.session = Some(session);
        Ok(observation.observed)
    }

    async fn apply(&mut self, ops: &[Op]) -> Result<Vec<FailedOp>, Error> {
        let Some(mut session) = self.session.take() else {
            return Err(ovs_error("apply changes", NotObserved));
        };
        if self.stands_by {
            hold::hold(&mut session).await?;
        }
        let before = session.database();
        let own = apply::requests::ports_of_ops(&before, &self.model.index, ops, &self.options.uplinks);
        // An error drops the session, because the state of the switch is then unknown.
        self.filter();
        let Ovs { options, model, inherited, announcer, filter, .. } = self;
        let filter = filter.get_mut().and_then(|loaded| loaded.as_mut().ok());
        let result = apply::apply(&mut session, options, model, ops, inherited, announcer, filter).await;
        self.writes += session.take_writes();
        let applied = result?;
        self.counters.update(&self.model, &applied.counted);
        let after = session.database();
        // Changes by other processes before and during the call are drift. Changes of the ports of the ops are not.
        self.drifted |= drift::fingerprint(&before) != self.fingerprint;
        self.drifted |= drift::fingerprint_without(&before, &own) != drift::fingerprint_without(&after, &own);
        self.fingerprint = drift::fingerprint(&after);
        self.session = Some(session);
        Ok(applied.failures)
    }

    async fn resync_needed(&mut self) {
        let Some(session) = &self.session else { return std::future::pending().await };
        if !std::mem::take(&mut self.drifted) {
            drift::wait(session, self.fingerprint).await;
        }
        // Reports the loss once; the next `observe` reconnects.
        self.session = None;
    }

    fn writes(&self) -> u64 {
        self.writes
    }

    fn stats(&self) -> Stats {
        let filter = self.filter().as_ref().ok();
        let drops = filter.and_then(|filter| match filter.drops() {
            Ok(drops) => Some((DropReason::Malformed.as_str(), drops)),
            Err(error) => {
                tracing::warn!("read the number of dropped frames: {}", one_line(&*error));
                None
            }
        });
        Stats {
            drops: drops.into_iter().collect(),
            announcements: self.announcer.announced().services.counts(),
            endpoint_announcements: self.announcer.announced().endpoints.counts(),
            ..Stats::default()
        }
    }

    fn warnings(&self) -> Vec<String> {
        let is_half = |group: &&Group| Bandwidth::limits(group.rate);
        let half = self.model.index.groups().filter(is_half);
        let half = half.filter(|_| self.options.datapath_type == DatapathType::Netdev).map(|group| {
            format!(
                "group {}: bandwidth: what its pods send is not limited with --ovs-datapath-type netdev; use system, or \
                 eBPF nodes",
                group.identity
            )
        });
        let filter = self.filter().as_ref().err().map(|cause| match self.options.datapath_type {
            DatapathType::System => skb::offload_warning(cause),
            DatapathType::Netdev => {
                format!(
                    "frames of pods: the network stack of the node gets them, too, past all rules: {cause}"
                )
            }
        });
        self.warnings.iter().cloned().chain(half).chain(filter).collect()
    }

    fn telemetry(&self) -> Option<Arc<dyn Telemetry>> {
        Some(Arc::new(self.counters.clone()))
    }

    fn port_requirements(&self) -> PortRequirements {
        let is_checked = self.options.datapath_type == DatapathType::System && self.filter().is_ok();
        PortRequirements { disable_tx_offload: !is_checked }
    }

    fn inspect(&self) -> Value {
        let bridges = BridgeKind::ALL.map(|bridge| (bridge.name().to_owned(), self.bridge_json(bridge)));
        json!({
            "datapath": "ovs",
            "datapathType": self.options.datapath_type.name(),
            "connected": self.session.as_ref().is_some_and(Session::is_open),
            "objects": self.model.index.len(),
            "writes": self.writes,
            "uplinks": self.options.uplinks,
            "bridges": serde_json::Map::from_iter(bridges),
        })
    }

    fn trace(&self, probe: Probe) -> BoxFuture<'static, Result<Findings, Error>> {
        let request = trace::prepare(&self.options, &self.model, probe);
        Box::pin(async move { request?.run().await })
    }

    async fn cleanup(&mut self) -> Result<(), Error> {
        self.session = None;
        self.model = SwitchModel::default();
        let database = ovsdb::Client::connect(&self.options.socket).await;
        let database = database.map_err(|error| ovs_error("remove the bridges", error))?;
        detach_filter(&database.database())?;
        let mut session = Session::without_bridges(database);
        let removed = session.remove_bridges().await;
        self.writes += session.take_writes();
        removed.map_err(|error| ovs_error("remove the bridges", error))
    }
}
