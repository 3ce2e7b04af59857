//! Open vSwitch, programmed over OVSDB and OpenFlow 1.3.
//!
//! Two bridges, as Contiv always had them: `contivVlanBridge` and `contivVxlanBridge`. [`pipeline`] says
//! what their tables do, [`desired`] turns objects into tables, [`switch::session`] speaks with the switch.

mod apply;
mod desired;
mod observe;
mod pipeline;
mod switch;
mod tables;

use std::{net::IpAddr, path::PathBuf};

use self::{
    desired::State,
    switch::{ovsdb, session::Session},
};
use super::{Datapath, Desired, Error, FailedOp, Kind, Observed, Op, PortRequirements};

/// Where Debian and most others have the database's socket.
pub const DEFAULT_SOCKET: &str = "/var/run/openvswitch/db.sock";

/// How the switch forwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DatapathType {
    /// By the kernel's module `openvswitch`.
    #[default]
    System,
    /// In ovs-vswitchd itself.
    Netdev,
}

impl DatapathType {
    fn name(self) -> &'static str {
        match self {
            DatapathType::System => "system",
            DatapathType::Netdev => "netdev",
        }
    }

    fn solicitations(self) -> pipeline::Solicitations {
        match self {
            DatapathType::System => pipeline::Solicitations::Forwarded,
            DatapathType::Netdev => pipeline::Solicitations::Answered,
        }
    }
}

/// What the datapath needs to know of its node.
#[derive(Clone, Debug)]
pub struct Options {
    /// The database's socket; the bridges' are beside it.
    pub socket: PathBuf,
    pub datapath_type: DatapathType,
    /// Interfaces that carry the VLAN networks: one, or several as a bond.
    pub uplinks: Vec<String>,
    /// The address that tunnels start from; the route to the other end decides if there is none.
    pub vtep: Option<IpAddr>,
}

/// The Open vSwitch of this node.
pub struct Ovs {
    options: Options,
    session: Option<Session>,
    state: State,
    /// The configuration that the last call left, to notice what others change.
    layout: u64,
    writes: u64,
}

fn failed(
    operation: impl Into<String>,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::new(Kind::Ovs, operation, source)
}

#[derive(Debug, thiserror::Error)]
#[error("observe comes before apply")]
struct NotObserved;

impl Ovs {
    /// Nothing is connected before the first `observe`.
    pub fn new(options: Options) -> Ovs {
        Ovs { options, session: None, state: State::default(), layout: 0, writes: 0 }
    }

    /// The bridges that an agent has left in this node's switch; none where no switch answers.
    pub async fn left_behind(&self) -> Vec<&'static str> {
        let Ok(client) = ovsdb::Client::connect(&self.options.socket).await else { return vec![] };
        let database = client.database();
        let there = pipeline::Side::BOTH.iter().map(|side| side.bridge());
        there.filter(|bridge| database.bridge(bridge).is_some()).collect()
    }
}

impl Datapath for Ovs {
    async fn observe(&mut self, desired: &Desired) -> Result<Observed, Error> {
        let session = self.session.take().filter(Session::is_open);
        let mut session = match session {
            Some(session) => session,
            None => {
                let options = &self.options;
                let opened = Session::open(&options.socket, options.datapath_type, &options.uplinks).await;
                opened.map_err(|error| failed("connect to the switch", error))?
            }
        };
        let observed = self.observe_on(&mut session, desired).await;
        self.writes += session.take_writes();
        let observed = observed?;
        self.session = Some(session);
        Ok(observed)
    }

    async fn apply(&mut self, ops: &[Op]) -> Result<Vec<FailedOp>, Error> {
        let Some(mut session) = self.session.take() else { return Err(failed("apply changes", NotObserved)) };
        // An error leaves no session: what the switch holds is not known any more.
        let result = self.apply_on(&mut session, ops).await;
        self.writes += session.take_writes();
        let failures = result?;
        self.layout = observe::layout(&session.database());
        self.session = Some(session);
        Ok(failures)
    }

    async fn resync_needed(&mut self) {
        let Some(session) = &self.session else { return std::future::pending().await };
        observe::until_disturbed(session, self.layout).await;
        // Told once; the next observation connects again.
        self.session = None;
    }

    fn writes(&self) -> u64 {
        self.writes
    }

    fn port_requirements(&self) -> PortRequirements {
        PortRequirements { disable_tx_offload: self.options.datapath_type == DatapathType::Netdev }
    }

    fn inspect(&self) -> serde_json::Value {
        observe::inspect(self)
    }

    async fn cleanup(&mut self) -> Result<(), Error> {
        self.session = None;
        self.state = State::default();
        let database = ovsdb::Client::connect(&self.options.socket).await;
        let database = database.map_err(|error| failed("remove the bridges", error))?;
        let mut session = Session::over(database);
        let removed = session.remove().await;
        self.writes += session.take_writes();
        removed.map_err(|error| failed("remove the bridges", error))
    }
}
