//! A node that is configured with one scene after the other.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Debug,
    path::Path,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context as _, Result, ensure};
use aya::{
    Pod as Plain,
    maps::{HashMap as KernelMap, Map, MapData},
};
use contiv_abi::{
    DropReason,
    maps::{FROM_POD, FROM_QUEUE, FROM_UPLINK},
};
use contiv_model::group::Rate;
use netplugin::datapath::{Desired, Group, Local, Network, Object, Op};
use testkit::Netns;

use super::scene::{LOCALS, NETWORK, REMOTES, Scene, Stage, VLAN, VNI, WIRED, WIRED_NETWORK};
use crate::{
    flow_table,
    node::{Endpoint, Node, Pod, network, vlan, vtep, vxlan},
    policy::number,
    run::{Code, Outcome, Target},
};

pub(super) struct Rig {
    /// Program and ingress interface of each source.
    targets: HashMap<From, Target>,
    /// Counters after the last packet.
    drops: Mutex<BTreeMap<DropReason, u64>>,
    pods: Vec<Pod>,
    wired: Vec<Pod>,
    node: Node,
    network: Network,
    wired_network: Network,
    /// The other end of the uplink.
    _outside: Netns,
    /// A change has failed, so the state of the node is unknown.
    suspect: bool,
}

/// Source of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum From {
    /// An endpoint of the first network.
    Pod(u8),
    /// The queue of an endpoint of the first network.
    Queue(u8),
    /// An endpoint of the second network.
    Wired(u8),
    /// The queue of an endpoint of the second network.
    WiredQueue(u8),
    Wire,
}

impl From {
    fn waiting(self) -> From {
        match self {
            From::Pod(endpoint) => From::Queue(endpoint),
            From::Wired(endpoint) => From::WiredQueue(endpoint),
            other => other,
        }
    }
}

impl Rig {
    pub(super) fn new() -> Result<Rig> {
        let (mut node, outside) = Node::on_wire("equal")?;
        let (network, wired_network) = (network(NETWORK, vxlan(VNI)), network(WIRED_NETWORK, vlan(VLAN)));
        node.want_network(&network).want_network(&wired_network).want_peer(2);
        let pods: Vec<Pod> =
            LOCALS.map(|endpoint| node.pod(&network, Endpoint(endpoint))).collect::<Result<_>>()?;
        let wired: Vec<Pod> =
            WIRED.map(|endpoint| node.pod(&wired_network, Endpoint(endpoint))).collect::<Result<_>>()?;
        // The queue must exist from the start.
        let rate = Some(Rate { bits_per_second: 1_048_000, burst_bytes: 125_000 });
        let first = Local { identity: Some(number(1)), ..pods[0].local.clone() };
        node.want(Object::Group(Group { rate, ..Group::new(number(1), []) }));
        node.want(Object::Local(first));
        node.converge()?;
        let mut targets = HashMap::from([(From::Wire, Target::new(&node, FROM_UPLINK, "trunk")?)]);
        let ways = [(&pods, From::Pod as fn(u8) -> From), (&wired, From::Wired)];
        for (pod, from) in
            ways.iter().flat_map(|(pods, way)| pods.iter().map(|pod| (pod, way(pod.endpoint.0))))
        {
            let waited = Target::new(&node, FROM_QUEUE, "contivq1")?.marked(node.ifindex(&pod.local.port)?);
            targets.insert(from.waiting(), waited);
            targets.insert(from, Target::new(&node, FROM_POD, &pod.local.port)?);
        }
        let drops = Mutex::new(node.drops()?);
        let (suspect, _outside) = (false, outside);
        Ok(Rig { targets, drops, pods, wired, node, network, wired_network, _outside, suspect })
    }

    /// Configures the node with a stage of the scene. Before the first stage, removes the state of earlier packets.
    pub(super) fn stage(&mut self, scene: &Scene, stage: Stage) -> Result<()> {
        let wanted = self.desired(scene, stage);
        if std::mem::take(&mut self.suspect) {
            self.node.desired = wanted;
            self.node.restart();
            self.node.converge()?;
            return self.forget(stage);
        }
        let have = &self.node.desired;
        let gone = have.iter().filter(|(id, _)| wanted.get(id).is_none());
        let ops = wanted
            .iter()
            .filter(|(id, object)| have.get(id) != Some(object))
            .map(|(_, object)| Op::Set(object.clone()))
            .chain(gone.map(|(id, _)| Op::Delete(id.clone())).collect::<Vec<_>>().into_iter().rev())
            .collect::<Vec<_>>();
        self.suspect = true;
        let failed = self.node.apply(&ops)?;
        ensure!(failed.is_empty(), "{failed:?}");
        self.node.desired = wanted;
        self.suspect = false;
        self.forget(stage)
    }

    fn forget(&self, stage: Stage) -> Result<()> {
        if stage == Stage::Before {
            flow_table::expire(&self.node)?;
        }
        Ok(())
    }

    fn desired(&self, scene: &Scene, stage: Stage) -> Desired {
        let local = |pod: &Pod| Local { identity: scene.group_of(pod.endpoint.0), ..pod.local.clone() };
        let remote = |endpoint| {
            let remote = Endpoint(endpoint).remote(&self.network, Some(vtep(2)));
            netplugin::datapath::Remote { identity: scene.group_of(endpoint), ..remote }
        };
        let wired = |pod: &Pod| Local { identity: scene.wired_group(pod.endpoint.0), ..pod.local.clone() };
        let far = |endpoint| {
            let remote = Endpoint(endpoint).remote(&self.wired_network, None);
            netplugin::datapath::Remote { identity: scene.group_of(endpoint), ..remote }
        };
        let peer = netplugin::datapath::Peer::new(vtep(2), 4789);
        let networks = [&self.network, &self.wired_network].map(|network| Object::Network(network.clone()));
        networks
            .into_iter()
            .chain([Object::Peer(peer)])
            .chain(REMOTES.map(|endpoint| Object::Remote(far(endpoint))))
            .chain(self.wired.iter().map(|pod| Object::Local(wired(pod))))
            .chain(scene.groups(stage))
            .chain(REMOTES.map(|endpoint| Object::Remote(remote(endpoint))))
            .chain(scene.services())
            .chain(self.pods.iter().map(|pod| Object::Local(local(pod))))
            .collect()
    }

    /// Runs the program of the source on a frame, and the program behind the queue if the frame `waits`. Call it
    /// within [`within`](Rig::within).
    pub(super) fn run(&self, from: From, frame: &[u8], waits: bool) -> Result<Outcome> {
        let outcome = self.give(from, frame)?;
        if !waits {
            return Ok(outcome);
        }
        let unchanged = (outcome.code, &outcome.bytes[..], &outcome.dropped[..]);
        ensure!(unchanged == (Code::Redirect, frame, &[][..]), "it should wait, and became {outcome:?}");
        self.give(from.waiting(), frame)
    }

    fn give(&self, from: From, frame: &[u8]) -> Result<Outcome> {
        let target = self.targets.get(&from).context("an endpoint that is not here")?;
        let (code, bytes) = target.give(frame)?;
        let counts = self.node.drops()?;
        let mut last = self.drops.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *last, counts.clone());
        let new = |(reason, count): (DropReason, u64)| {
            let new = count - before.get(&reason).copied().unwrap_or(0);
            std::iter::repeat_n(reason, new as usize)
        };
        Ok(Outcome { code, bytes, dropped: counts.into_iter().flat_map(new).collect() })
    }

    /// Runs the function in the node's network namespace.
    pub(super) fn within<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.node.ns.run(work)
    }

    /// Asserts that after all changes the desired state is in sync, without orphans.
    pub(super) fn settle(mut self) -> Result<()> {
        self.node.restart();
        let observed = self.node.observe()?;
        let missing: Vec<_> = self
            .node
            .desired
            .iter()
            .filter(|(id, _)| !observed.in_sync.contains(id))
            .map(|(id, _)| id)
            .collect();
        ensure!(missing.is_empty(), "not in place any more: {missing:?}");
        ensure!(observed.orphans == 0, "{} orphans", observed.orphans);
        Ok(())
    }
}

/// Empties a map that the programs fill.
pub(super) fn forget<K: Plain + Debug, V: Plain>(pin: &Path) -> Result<()> {
    let data = MapData::from_pin(pin).with_context(|| format!("open {}", pin.display()))?;
    let mut map: KernelMap<_, K, V> = Map::from_map_data(data)?.try_into()?;
    let keys: Vec<K> = map.keys().collect::<Result<_, _>>()?;
    for key in keys {
        map.remove(&key)?;
    }
    Ok(())
}
