use contiv_model::{key::Key, name::EndpointId};
use contiv_store::Txn;
use contivk8s::wire::{Reply, Request};

use super::{Failure, Pod, Pods, Step, undo::unplug};
use crate::{error::one_line, reconcile::Presence};

impl Pods {
    /// Lets a pod go. Whatever is gone already is no failure; all that is there is tried.
    pub async fn del(&self, request: &Request) -> Result<Reply, Failure> {
        let pod = Pod::try_from(request)?;
        let _turn = self.0.turns.take(&pod.endpoint).await;
        let mut first = None;
        let mut rest = vec![];
        let mut note = |result: Result<(), Failure>| {
            if let Err(failure) = result {
                match &first {
                    None => first = Some(failure),
                    Some(_) => rest.push(failure.to_string()),
                }
            }
        };
        for pod in self.meant(&pod) {
            let id = pod.endpoint_id();
            note(self.unplug(&id).await);
            note(self.delete_at_master(&pod).await.map(drop));
            note(self.forget_oper(&id).await);
        }
        match first {
            None => Ok(Reply { endpoint: pod.endpoint, ..Reply::default() }),
            // The runtime should ask again until nothing is left.
            Some(failure) => Err(failure.and(&rest).passing()),
        }
    }

    /// The endpoints of this container and interface: the one that the labels name and, since labels and
    /// configuration may have changed after the ADD, those on other networks.
    fn meant(&self, pod: &Pod) -> Vec<Pod> {
        let others = self.parts().reader.with(|state| {
            let same = |id: &EndpointId| {
                let endpoint = state.endpoint(id)?;
                if EndpointId::new(&endpoint.network, &pod.endpoint) != *id {
                    return None;
                }
                let network = state.network(&endpoint.network)?;
                Some(Pod { tenant: network.tenant.clone(), network: network.name.clone(), ..pod.clone() })
            };
            state.on_host(&self.parts().node.host).filter_map(same).collect::<Vec<_>>()
        });
        let named = pod.endpoint_id();
        let others = others.into_iter().filter(|other| other.endpoint_id() != named);
        std::iter::once(pod.clone()).chain(others).collect()
    }

    /// Takes the endpoint out of the datapath, then removes its interface.
    pub(super) async fn unplug(&self, id: &EndpointId) -> Result<(), Failure> {
        let port = self.parts().reader.with(|state| state.attachment(id).map(|at| at.port.clone()));
        let Some(port) = port else { return Ok(()) };
        let detached = self.detach(id).await;
        // In any case: an interface that is gone carries nothing.
        let removed = self.parts().links.detach(&port).await.map_err(unplug);
        match (detached, removed) {
            (Ok(()), Ok(_)) => Ok(()),
            (Err(failure), Ok(_)) | (Ok(()), Err(failure)) => Err(failure),
            (Err(failure), Err(more)) => Err(failure.and(&[more.to_string()])),
        }
    }

    pub(super) async fn detach(&self, id: &EndpointId) -> Result<(), Failure> {
        let parts = self.parts();
        let told = parts.settled.wait(id, Presence::Absent);
        parts.attacher.detach(id);
        self.settle(told, Presence::Absent).await.map_err(|why| Failure::new(Step::Datapath, why))
    }

    /// True when it was there.
    pub(super) async fn delete_at_master(&self, pod: &Pod) -> Result<bool, Failure> {
        let deleted =
            self.parts().master.delete_endpoint(pod.tenant.as_str(), pod.network.as_str(), &pod.endpoint);
        deleted.await.map_err(|e| Failure::master(Step::Delete, &e))
    }

    pub(super) async fn forget_oper(&self, id: &EndpointId) -> Result<(), Failure> {
        let txn = Txn::new().delete(Key::EndpointOper(id.clone()).to_string());
        // Without guards there is no conflict, and deleting what is not there is no error.
        let deleted = self.parts().store.commit(txn).await;
        deleted.map(drop).map_err(|e| Failure::new(Step::Record, one_line(&e)).passing())
    }
}
