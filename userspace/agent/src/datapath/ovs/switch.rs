//! Access to the Open vSwitch of this node.
//!
//! * [`announcer`]: announcements of endpoints and services on VLAN networks.
//! * [`ovsdb`]: client of the configuration database.
//! * [`limit`]: bandwidth limits of ports.
//! * [`kernel`]: port towards the node's kernel.
//! * [`pod_filter`]: filter of pods' interfaces.
//! * [`node_address`]: addresses and default routes of the node on VLAN uplinks.
//! * [`ports`]: Port and Interface rows of endpoints and tunnels.
//! * [`responder`]: answers to packets that flows send to the agent.
//! * [`uplink`]: ports of the VLAN uplinks.
//! * [`session`]: connections to the database and to both bridges.
//! * [`drift`]: detection of changes by other processes.
//! * [`foreign`]: groups of other programs.
//! * [`hold`]: the flow that lets no frame enter the bridges.
//! * [`unixctl`]: commands of ovs-vswitchd.
//! * [`tunnel`]: next-hop resolution of tunnels in the userspace datapath.
//! * [`zones`]: timeouts of connections.
//! * [`capacity`]: numbers of connections.
//! * [`numbers`]: numbers of services and VRFs in the database.

pub(crate) mod announcer;
pub(crate) mod capacity;
pub(crate) mod drift;
mod foreign;
pub(crate) mod hold;
pub(crate) mod kernel;
pub(crate) mod limit;
pub(crate) mod node_address;
pub(crate) mod numbers;
pub(crate) mod ovsdb;
pub(crate) mod pod_filter;
pub(crate) mod ports;
pub(crate) mod responder;
pub(crate) mod session;
pub(crate) mod tunnel;
pub(crate) mod unixctl;
pub(crate) mod uplink;
pub(crate) mod zones;
