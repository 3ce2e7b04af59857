//! A node that is given one scene after the other.

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
    DropReason, Flow, FlowKey, TimedFlow,
    maps::{FLOWS, FROM_POD, NEW_FLOWS},
};
use netplugin::datapath::{Desired, Local, Network, Object, Op};

use super::scene::{LOCALS, NETWORK, REMOTES, Scene, Stage, VNI};
use crate::{
    node::{Node, Pod, Who, network, vtep, vxlan},
    run::{Outcome, Target},
};

pub(super) struct Rig {
    /// By endpoint, what it sends to.
    targets: HashMap<u8, Target>,
    /// The counters as they were after the last packet.
    drops: Mutex<BTreeMap<DropReason, u64>>,
    pods: Vec<Pod>,
    node: Node,
    network: Network,
    /// What the node has is not known: a change has failed.
    suspect: bool,
}

impl Rig {
    pub(super) fn new() -> Result<Rig> {
        let mut node = Node::new("equal")?;
        let network = network(NETWORK, vxlan(VNI));
        node.want_network(&network).want_peer(2);
        let pods: Vec<Pod> = LOCALS.map(|who| node.pod(&network, Who(who))).collect::<Result<_>>()?;
        node.converge()?;
        let targets = pods.iter().map(|pod| Ok((pod.who.0, Target::new(&node, FROM_POD, &pod.local.port)?)));
        let targets = targets.collect::<Result<_>>()?;
        let drops = Mutex::new(node.drops()?);
        Ok(Rig { targets, drops, pods, node, network, suspect: false })
    }

    /// Makes the node what the scene says of the stage. Before the first, what is remembered of packets is forgotten.
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
            let maps = self.node.datapath.maps_directory();
            forget::<FlowKey, TimedFlow>(&maps.join(FLOWS))?;
            forget::<FlowKey, Flow>(&maps.join(NEW_FLOWS))?;
        }
        Ok(())
    }

    fn desired(&self, scene: &Scene, stage: Stage) -> Desired {
        let local = |pod: &Pod| Local { group: scene.group_of(pod.who.0), ..pod.local.clone() };
        let remote = |who| {
            let remote = Who(who).remote(&self.network, Some(vtep(2)));
            netplugin::datapath::Remote { group: scene.group_of(who), ..remote }
        };
        let peer = netplugin::datapath::Peer { vtep: vtep(2).into(), port: 4789 };
        [Object::Peer(peer), Object::Network(self.network.clone())]
            .into_iter()
            .chain(scene.groups(stage))
            .chain(REMOTES.map(|who| Object::Remote(remote(who))))
            .chain(scene.services())
            .chain(self.pods.iter().map(|pod| Object::Local(local(pod))))
            .collect()
    }

    /// Gives a frame to the program as if an endpoint had sent it. Only [`within`](Rig::within).
    pub(super) fn run(&self, from: u8, frame: &[u8]) -> Result<Outcome> {
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

    /// In the node's namespace, where the interfaces are.
    pub(super) fn within<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.node.ns.run(work)
    }

    /// After so many changes, everything is as desired and nothing else is there.
    pub(super) fn settle(mut self) -> Result<()> {
        self.node.restart();
        let observed = self.node.observe()?;
        let missing: Vec<_> = self
            .node
            .desired
            .iter()
            .filter(|(id, _)| !observed.same.contains(id))
            .map(|(id, _)| id)
            .collect();
        ensure!(missing.is_empty(), "not in place any more: {missing:?}");
        ensure!(observed.strays == 0, "{} strays", observed.strays);
        Ok(())
    }
}

/// Empties a map that the programs fill.
fn forget<K: Plain + Debug, V: Plain>(pin: &Path) -> Result<()> {
    let data = MapData::from_pin(pin).with_context(|| format!("open {}", pin.display()))?;
    let mut map: KernelMap<_, K, V> = Map::from_map_data(data)?.try_into()?;
    let keys: Vec<K> = map.keys().collect::<Result<_, _>>()?;
    for key in keys {
        map.remove(&key)?;
    }
    Ok(())
}
