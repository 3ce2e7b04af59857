//! One node with its pods and its wire, whatever forwards inside.

mod ebpf;
mod fake;
mod ovs;
mod real;

use anyhow::Result;
use netplugin::datapath::{
    Desired, Failed, Observed, Op,
    fake::{Delivery, Origin},
};
use testkit::Netns;

pub(crate) use fake::FakeNode;

pub(crate) type OvsNode = real::Real<ovs::OvsSite>;
pub(crate) type EbpfNode = real::Real<ebpf::EbpfSite>;

pub(crate) trait Harness: Sized {
    /// Why it cannot run here, if so.
    fn missing() -> Option<String>;

    /// A node without pods. Other nodes' tunnel ends at [`crate::topology::VTEPS`] are on its wire.
    fn start() -> Result<Self>;

    /// A pod whose interface's host end has this name.
    fn plug(&mut self, port: &str) -> Result<()>;

    fn observe(&mut self, desired: &Desired) -> Result<Observed>;

    fn apply(&mut self, ops: &[Op]) -> Result<Vec<Failed>>;

    fn writes(&self) -> u64;

    /// The agent dies and another one starts.
    fn restart(&mut self) -> Result<()>;

    fn emit(&mut self, from: &Origin, frame: &[u8]) -> Result<()>;

    /// What came out at the pods and on the wire since the last call.
    fn arrivals(&mut self) -> Result<Vec<Delivery>>;

    /// Something changes behind the agent's back.
    fn damage(&mut self, damage: Damage) -> Result<()>;
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
