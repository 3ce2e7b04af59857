use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use contiv_model::name::EndpointId;
use tokio::sync::oneshot;

use super::retries::Retries;
use crate::datapath::{Desired, ObjectId};

/// Condition to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The datapath forwards the endpoint's packets.
    Present,
    /// The datapath has no state of the endpoint.
    Absent,
}

/// Notifies when the datapath has set or deleted a local endpoint.
#[derive(Clone, Debug, Default)]
pub struct Waiters(Arc<Mutex<BTreeMap<EndpointId, Vec<Waiter>>>>);

#[derive(Debug)]
struct Waiter {
    wanted: Presence,
    reply: oneshot::Sender<Result<(), String>>,
}

impl Waiters {
    /// Registers a waiter. The reply arrives after the next change of the endpoint that reaches `wanted` or fails to.
    /// Must be called before the change.
    pub fn wait(&self, id: &EndpointId, wanted: Presence) -> oneshot::Receiver<Result<(), String>> {
        let (reply, answer) = oneshot::channel();
        let mut waiters = self.lock();
        // Drop the waiters that timed out.
        waiters.retain(|_, list| {
            list.retain(|waiter| !waiter.reply.is_closed());
            !list.is_empty()
        });
        waiters.entry(id.clone()).or_default().push(Waiter { wanted, reply });
        answer
    }

    /// Notifies the waiters of the endpoints among `ids`. While orphans remain because of `garbage`, an endpoint may
    /// still be one of them, so it is not reported as absent.
    pub(super) fn notify(
        &self,
        ids: &BTreeSet<ObjectId>,
        desired: &Desired,
        retries: &Retries,
        garbage: Option<&str>,
    ) {
        let mut waiters = self.lock();
        if waiters.is_empty() {
            return;
        }
        for id in ids {
            if let ObjectId::Local(endpoint) = id {
                answer(&mut waiters, endpoint, desired, |id, wanted| failure(retries, garbage, id, wanted));
            }
        }
    }

    /// Like [`notify`](Self::notify), for all endpoints.
    pub(super) fn notify_all(&self, desired: &Desired, retries: &Retries, garbage: Option<&str>) {
        let mut waiters = self.lock();
        let all: Vec<_> = waiters.keys().cloned().collect();
        for endpoint in all {
            answer(&mut waiters, &endpoint, desired, |id, wanted| failure(retries, garbage, id, wanted));
        }
    }

    /// Notifies the waiters of all endpoints while the datapath is not changed because of `why`: no endpoint is set. The
    /// entries of a deleted endpoint forward nothing without its interface, and are removed with the other retained
    /// entries.
    pub(super) fn refuse(&self, desired: &Desired, why: &str) {
        let mut waiters = self.lock();
        let all: Vec<_> = waiters.keys().cloned().collect();
        for endpoint in all {
            answer(&mut waiters, &endpoint, desired, |_, wanted| {
                (wanted == Presence::Present).then_some(why)
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<EndpointId, Vec<Waiter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the reason why an endpoint is not in the wanted state after a change.
fn failure<'a>(
    retries: &'a Retries,
    garbage: Option<&'a str>,
    id: &ObjectId,
    wanted: Presence,
) -> Option<&'a str> {
    retries.error(id).or_else(|| garbage.filter(|_| wanted == Presence::Absent))
}

fn answer<'a>(
    waiters: &mut BTreeMap<EndpointId, Vec<Waiter>>,
    endpoint: &EndpointId,
    desired: &Desired,
    failure: impl Fn(&ObjectId, Presence) -> Option<&'a str>,
) {
    let Some(waiting) = waiters.remove(endpoint) else { return };
    let id = ObjectId::Local(endpoint.clone());
    let planned = if desired.get(&id).is_some() { Presence::Present } else { Presence::Absent };
    let mut remaining = vec![];
    for waiter in waiting {
        if waiter.wanted != planned {
            remaining.push(waiter);
            continue;
        }
        let result = failure(&id, waiter.wanted).map_or(Ok(()), |error| Err(error.to_owned()));
        // The receiver may have timed out.
        let _ = waiter.reply.send(result);
    }
    if !remaining.is_empty() {
        waiters.insert(endpoint.clone(), remaining);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_is_not_absent_while_orphans_remain() {
        let (waiters, id) = (Waiters::default(), EndpointId::from("e1"));
        let ids: BTreeSet<ObjectId> = [ObjectId::Local(id.clone())].into();
        let (desired, retries) = (Desired::default(), Retries::default());
        let mut reply = waiters.wait(&id, Presence::Absent);
        waiters.notify(&ids, &desired, &retries, Some("orphans"));
        assert_eq!(reply.try_recv().unwrap(), Err("orphans".to_owned()));
        let mut reply = waiters.wait(&id, Presence::Absent);
        waiters.notify_all(&desired, &retries, Some("orphans"));
        assert_eq!(reply.try_recv().unwrap(), Err("orphans".to_owned()));
        let mut reply = waiters.wait(&id, Presence::Absent);
        waiters.notify_all(&desired, &retries, None);
        assert_eq!(reply.try_recv().unwrap(), Ok(()));
    }
}
