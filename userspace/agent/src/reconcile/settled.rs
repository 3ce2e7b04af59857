use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use contiv_model::name::EndpointId;
use tokio::sync::oneshot;

use super::retries::Retries;
use crate::datapath::{Desired, ObjectId};

/// What one waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The datapath forwards for the endpoint.
    Present,
    /// Nothing of the endpoint is left.
    Absent,
}

/// Tells when the datapath has taken an endpoint of this node in, or let it go.
#[derive(Clone, Debug, Default)]
pub struct Settled(Arc<Mutex<BTreeMap<EndpointId, Vec<Waiter>>>>);

#[derive(Debug)]
struct Waiter {
    wanted: Presence,
    tell: oneshot::Sender<Result<(), String>>,
}

impl Settled {
    /// The answer comes after the next change of the endpoint that makes it so, or fails to. Ask before changing.
    pub fn wait(&self, id: &EndpointId, wanted: Presence) -> oneshot::Receiver<Result<(), String>> {
        let (tell, told) = oneshot::channel();
        let mut waiters = self.lock();
        // Those who gave up waiting.
        waiters.retain(|_, list| {
            list.retain(|waiter| !waiter.tell.is_closed());
            !list.is_empty()
        });
        waiters.entry(id.clone()).or_default().push(Waiter { wanted, tell });
        told
    }

    pub(super) fn tell(&self, ids: &BTreeSet<ObjectId>, desired: &Desired, retries: &Retries) {
        let mut waiters = self.lock();
        if waiters.is_empty() {
            return;
        }
        for id in ids {
            if let ObjectId::Local(endpoint) = id {
                answer(&mut waiters, endpoint, desired, retries);
            }
        }
    }

    pub(super) fn tell_all(&self, desired: &Desired, retries: &Retries) {
        let mut waiters = self.lock();
        let all: Vec<_> = waiters.keys().cloned().collect();
        for endpoint in all {
            answer(&mut waiters, &endpoint, desired, retries);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<EndpointId, Vec<Waiter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn answer(
    waiters: &mut BTreeMap<EndpointId, Vec<Waiter>>,
    endpoint: &EndpointId,
    desired: &Desired,
    retries: &Retries,
) {
    let Some(waiting) = waiters.remove(endpoint) else { return };
    let id = ObjectId::Local(endpoint.clone());
    let planned = if desired.get(&id).is_some() { Presence::Present } else { Presence::Absent };
    let mut rest = vec![];
    for waiter in waiting {
        if waiter.wanted != planned {
            rest.push(waiter);
            continue;
        }
        let result = retries.error(&id).map_or(Ok(()), |error| Err(error.to_owned()));
        // Whoever asked may have given up.
        let _ = waiter.tell.send(result);
    }
    if !rest.is_empty() {
        waiters.insert(endpoint.clone(), rest);
    }
}
