//! Interface to a node under test with its pods and its wire, for any datapath.

mod ebpf;
mod fake;
mod ovs;
mod real;

use anyhow::Result;
use netplugin::datapath::{
    Desired, FailedOp, Observed, Op,
    fake::{Delivery, Origin},
};
use testkit::Netns;

pub(crate) use fake::FakeNode;

pub(crate) type OvsNode = real::Real<ovs::OvsSite>;
pub(crate) type EbpfNode = real::Real<ebpf::EbpfSite>;

pub(crate) trait Harness: Sized {
    /// Known differences of this datapath from the oracle.
    const DIFFERENCES: &'static [Difference] = &[];

    /// Whether this is the oracle, which has no fragments, no end of connections, and no translated ICMP errors.
    const IS_ORACLE: bool = false;

    /// Whether copies of frames that arrive together leave several ports in any order.
    const REORDERS: bool = false;

    /// Whether the datapath joins fragments before it forwards them: they leave with the last one.
    fn joins_fragments() -> bool {
        false
    }

    /// Attacks that the datapath does not stop yet: parts of their names, and reasons.
    const OPEN_ATTACKS: &'static [(&'static str, &'static str)] = &[];

    /// Attacks whose control the datapath does not pass: parts of their names, and reasons.
    fn open_controls() -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Reason why the datapath cannot run on this machine.
    fn missing() -> Option<String>;

    /// Creates a node without pods. The VTEPs of other nodes, [`crate::node::topology::VTEPS`], are on its wire.
    fn start() -> Result<Self>;

    /// Creates a pod whose host interface has this name.
    fn plug(&mut self, port: &str) -> Result<()>;

    /// Whether what belongs to no object stays.
    fn retain_orphans(&mut self, retain: bool);

    fn observe(&mut self, desired: &Desired) -> Result<Observed>;

    fn apply(&mut self, ops: &[Op]) -> Result<Vec<FailedOp>>;

    fn writes(&self) -> u64;

    /// Replaces the agent's datapath by a new instance.
    fn restart(&mut self) -> Result<()>;

    /// Removes everything that this and earlier instances created.
    fn cleanup(&mut self) -> Result<()>;

    fn emit(&mut self, from: &Origin, frame: &[u8]) -> Result<()>;

    /// Returns the frames that arrived at pods and on the wire since the last call.
    fn arrivals(&mut self) -> Result<Vec<Delivery>>;

    /// Waits until the node has forwarded the frames that it has taken. Markers follow.
    fn forward(&self) -> Result<()> {
        Ok(())
    }

    /// Waits until addresses learned from frames are in effect.
    fn settle(&self) -> Result<()>;

    /// Removes all connections that the datapath knows.
    fn forget(&self) -> Result<()>;

    /// Makes all connections as old as if their last packets had come a second earlier: what is looked up once in a second is looked up
    /// for the next ones.
    fn pass_second(&self) -> Result<()> {
        Ok(())
    }

    /// Changes the state of the datapath without the agent.
    fn damage(&mut self, damage: Damage) -> Result<()>;
}

/// Differences from the oracle that pods or the wire can observe. Scenarios state the exact result for each difference, so
/// that they fail when it is fixed and its entry can be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    /// VLAN networks use MAC learning. A frame to an installed pod whose address is not learned yet is flooded, also to the
    /// uplink. A frame to an address that moved goes to the old port until the entry expires.
    LearnsOnVlan,
    /// Requests of other nodes are not answered but flooded to all pods of the network, of which one replies.
    LetsPodsAnswerOutside,
    /// A frame from a tunnel to an endpoint on a third node is flooded to local pods instead of dropped.
    FloodsStrayUnicast,
    /// The agent answers expired packets and refused clients: later than copies leave, and only so often.
    AnswersByAgent,
    /// Protocols other than TCP, UDP and ICMP have no connections: each packet is evaluated by its own header.
    TracksNoOtherProtocols,
    /// The backend of a client's connection is remembered although rules deny the connection: after a change of the rules it
    /// goes there, also if the backend terminates.
    RemembersDeniedConnections,
    /// An ICMP error from an unknown address of the network is dropped, also if that is the other end of the connection.
    DropsErrorsOfStrangers,
    /// Replies and ICMP errors to an unknown address are not flooded to pods.
    FloodsNoReplies,
    /// When an endpoint on another node has got another group, the first packet of each of its connections is dropped, or begins a
    /// new one, as if the address belonged to another endpoint. When a pod has, the first packet to it may be dropped.
    EndsConnectionsOfRegrouped,
    /// A SYN to a service that is sent again before the first reply goes to a current backend.
    ResolvesUnrepliedAgain,
    /// When the record of an endpoint is removed, its connections go on as they were evaluated.
    KeepsConnectionsOfRemoved,
    /// A connection of an address without a record goes on as it was evaluated when the endpoint at its Ethernet address gets another
    /// group.
    KeepsConnectionsOfStrangers,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Damage {
    /// Forwarding entries of endpoints are lost.
    Forwarding,
    /// The port of the pod is detached from the datapath.
    Port(&'static str),
    /// An item of the datapath that belongs to no object is added.
    ForeignItem,
}

/// A node whose pods run programs.
pub(crate) trait Programs: Harness {
    fn pod(&self, port: &str) -> Result<&Netns>;

    /// Namespace of the other nodes.
    fn wire(&self) -> &Netns;

    /// Configures addresses and routes of the pod as the agent does.
    fn give_addresses(&self, port: &str, last: u8) -> Result<()>;
}
