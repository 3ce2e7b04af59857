//! One node with its pods and its wire, whatever forwards inside.

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
    /// Where this datapath is known to do otherwise than the oracle.
    const DIFFERENCES: &'static [Difference] = &[];

    /// Why it cannot run here, if so.
    fn missing() -> Option<String>;

    /// A node without pods. Other nodes' tunnel ends at [`crate::topology::VTEPS`] are on its wire.
    fn start() -> Result<Self>;

    /// A pod whose interface's host end has this name.
    fn plug(&mut self, port: &str) -> Result<()>;

    fn observe(&mut self, desired: &Desired) -> Result<Observed>;

    fn apply(&mut self, ops: &[Op]) -> Result<Vec<FailedOp>>;

    fn writes(&self) -> u64;

    /// The agent dies and another one starts.
    fn restart(&mut self) -> Result<()>;

    /// The agent removes all that it and its predecessors made.
    fn cleanup(&mut self) -> Result<()>;

    fn emit(&mut self, from: &Origin, frame: &[u8]) -> Result<()>;

    /// What came out at the pods and on the wire since the last call.
    fn arrivals(&mut self) -> Result<Vec<Delivery>>;

    /// Returns when what was learned from frames is in force.
    fn settle(&self) -> Result<()>;

    /// Something changes behind the agent's back.
    fn damage(&mut self, damage: Damage) -> Result<()>;
}

/// What pods or the wire can see of which datapath is in use. A scenario that meets one says exactly what comes instead,
/// so it fails when the difference is mended, and the entry can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    /// On a VLAN it learns where addresses are from the frames that it sees. A frame for a pod that it was told of but
    /// has not heard yet is flooded, to the uplink too; one for an address that moved away goes the old way until the
    /// bridge forgets.
    LearnsOnVlan,
    /// On a VXLAN, a pod that asks for its own address (an announcement, a probe, duplicate detection) is heard by nobody,
    /// where the oracle carries that to the network as any other broadcast.
    HidesAnnouncementsOnVxlan,
    /// What other nodes ask is not answered but flooded to all pods of the network, of which one answers.
    LetsPodsAnswerOutside,
    /// A frame from a tunnel for an endpoint on a third node is flooded to the pods here, not dropped.
    FloodsStrayUnicast,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Damage {
    /// Where endpoints are is forgotten.
    Forwarding,
    /// The pod's port is not the datapath's any more.
    Port(&'static str),
    /// Something is there that nobody wanted.
    Litter,
}

/// A node on which programs can talk.
pub(crate) trait Programs: Harness {
    fn pod(&self, port: &str) -> Result<&Netns>;

    /// Where the other nodes are.
    fn wire(&self) -> &Netns;

    /// Makes the pod a host with addresses, as the agent's plumbing does it.
    fn give_addresses(&self, port: &str, last: u8) -> Result<()>;
}
