//! The node itself on networks of the type `infra`: an interface of its own, named as the network, in place of a pod's.

use std::collections::{BTreeMap, BTreeSet};

use contiv_model::{
    name::{EndpointId, NetworkId},
    network::Kind,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Failure, Pod, Pods, Step};
use crate::{backoff::Backoff, datapath::Owner, link::Netns, state::State};

/// The kernel's longest name of an interface.
const LONGEST_NAME: usize = libc::IFNAMSIZ - 1;

/// Why the node is not as it should be on some of its infra networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Troubles(BTreeMap<NetworkId, String>);

impl Troubles {
    /// For people: one for each network.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(network, why)| format!("network {network}, the node's own interface: {why}"))
    }
}

/// What is to be done so that the node is on its infra networks and on no others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Todo {
    plug: BTreeSet<NetworkId>,
    unplug: BTreeSet<NetworkId>,
}

impl Todo {
    fn is_empty(&self) -> bool {
        self.plug.is_empty() && self.unplug.is_empty()
    }
}

impl Pods {
    /// Keeps the node on every infra network until told to stop.
    pub async fn keep_node(&self, stop: CancellationToken) -> anyhow::Result<()> {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = self.parts().reader.synced() => {}
        }
        let mut backoff = Backoff::default();
        loop {
            let todo = self.parts().reader.wait(|state| {
                let todo = self.todo(state);
                let told = !self.0.troubles.borrow().0.is_empty();
                (told || !todo.is_empty()).then_some(todo)
            });
            let todo = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                todo = todo => todo,
            };
            // To its end, as a request: half an interface is of no use to anyone.
            if self.carry_out(&todo).await {
                backoff.reset();
            }
            // What was done shows in the state a little later; what failed is tried again.
            let other = self.parts().reader.wait(|state| (self.todo(state) != todo).then_some(()));
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(backoff.pause()) => {}
                () = other => {}
            }
        }
    }

    /// What stands between the node and its infra networks.
    pub fn troubles(&self) -> watch::Receiver<Troubles> {
        self.0.troubles.subscribe()
    }

    fn native_id(&self, network: &NetworkId) -> EndpointId {
        EndpointId::new(network, self.parts().node.host.as_str())
    }

    fn todo(&self, state: &State) -> Todo {
        let host = &self.parts().node.host;
        let missing = |id: &EndpointId| state.attachment(id).is_none() || state.endpoint(id).is_none();
        let kind = |id: &NetworkId| state.network(id).map(|network| network.kind);
        let plug = state.infra_networks().map(|network| &network.id);
        let mut todo = Todo {
            plug: plug.filter(|id| missing(&self.native_id(id))).cloned().collect(),
            unplug: BTreeSet::new(),
        };
        for id in state.on_host(host).filter(|id| id.as_str().ends_with(host.as_str())) {
            let Some(network) = state.endpoint(id).map(|endpoint| &endpoint.network) else { continue };
            let is_held = state.attachment(id).is_some_and(|at| at.owner == Owner::Node);
            // A data network has pods, whatever they are called.
            let is_left = match kind(network) {
                None => true,
                Some(Kind::Data) => is_held,
                Some(Kind::Infra) => false,
            };
            if is_left && *id == self.native_id(network) {
                todo.unplug.insert(network.clone());
            }
        }
        todo
    }

    /// Tells of each failure once, as long as it stays the same; true when there was none.
    async fn carry_out(&self, todo: &Todo) -> bool {
        let mut all_done = true;
        for network in &todo.unplug {
            all_done &= self.note(network, "the node has left the network", self.leave(network).await);
        }
        for network in &todo.plug {
            all_done &= self.note(network, "the node is on the network", self.join(network).await);
        }
        // Networks that went in trouble have none.
        self.0.troubles.send_if_modified(|Troubles(known)| {
            let before = known.len();
            known.retain(|network, _| todo.plug.contains(network) || todo.unplug.contains(network));
            known.len() != before
        });
        all_done
    }

    fn note(&self, network: &NetworkId, done: &str, result: Result<(), Failure>) -> bool {
        let trouble = result.err().map(|failure| failure.to_string());
        let is_news = self.0.troubles.send_if_modified(|Troubles(known)| {
            let before = match &trouble {
                Some(why) => known.insert(network.clone(), why.clone()),
                None => known.remove(network),
            };
            before != trouble
        });
        match &trouble {
            None => tracing::info!(%network, "{done}"),
            Some(why) if is_news => tracing::warn!(%network, "the node's own interface: {why}"),
            Some(_) => {}
        }
        trouble.is_none()
    }

    async fn join(&self, network: &NetworkId) -> Result<(), Failure> {
        let Some(pod) = self.node_on(network) else { return Ok(()) };
        let name = &pod.ifname;
        let refuse = |why: String| Err(Failure::new(Step::Plug, why));
        if name.len() > LONGEST_NAME {
            return refuse(format!(
                "{name:?} is too long for the name of an interface (an infra network's has {LONGEST_NAME} characters at most)"
            ));
        }
        let attached = self.parts().reader.with(|state| state.attachment(&pod.endpoint_id()).is_some());
        let is_there = self.parts().links.is_there(name).await.map_err(|e| Failure::link(Step::Plug, &e))?;
        if is_there && !attached {
            return refuse(format!(
                "the node has an interface {name} already (rename it, or give the network another name)"
            ));
        }
        let netns = Netns::current().map_err(|e| Failure::link(Step::Plug, &e))?;
        self.plug(&pod, &netns).await.map(drop)
    }

    /// All that is there is tried.
    async fn leave(&self, network: &NetworkId) -> Result<(), Failure> {
        let host = self.parts().node.host.as_str();
        let id = self.native_id(network);
        let _turn = self.0.turns.take(host).await;
        let unplugged = self.unplug(&id).await;
        // Where the tenant's name begins is known to the network alone; the master puts both together again.
        let (name, tenant) = network.as_str().rsplit_once('.').unwrap_or((network.as_str(), ""));
        let deleted = self.parts().master.delete_endpoint(tenant, name, host).await;
        let deleted = deleted.map(drop).map_err(|e| Failure::master(Step::Delete, &e));
        unplugged.and(deleted).and(self.forget_oper(&id).await)
    }

    /// The node in the shape of a pod; none when the network has gone meanwhile.
    fn node_on(&self, network: &NetworkId) -> Option<Pod> {
        let network = self.parts().reader.with(|state| state.network(network).cloned())?;
        let host = self.parts().node.host.to_string();
        Some(Pod {
            tenant: network.tenant,
            ifname: network.name.to_string(),
            network: network.name,
            group: None,
            common_name: host.clone(),
            endpoint: host,
            netns: "".into(),
            owner: Owner::Node,
        })
    }
}
