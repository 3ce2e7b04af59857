use std::{
    sync::{MutexGuard, PoisonError},
    time::Instant,
};

use contivk8s::{
    spec::Code,
    wire::{ListedInterface, Reply, Request},
};
use tokio_util::sync::CancellationToken;

use super::{
    conditions::Conditions,
    failure::{Failure, Step},
    link::{ExpectedLink, Netns, PodInterface},
    pod::Pod,
    pods::{DATAPATH_TIMEOUT, Pods},
};
use crate::{master::REQUEST_TIMEOUT, reconcile::Presence};

impl Pods {
    /// Checks that a pod is attached as ADD left it. The reply equals that of ADD.
    pub async fn check(&self, request: &Request) -> Result<Reply, Failure> {
        let pod = Pod::try_from(request)?;
        let netns = Netns::open(&pod.netns).map_err(|e| Failure::link(Step::Check, &e))?;
        self.check_settled(Step::Check)?;
        let id = pod.endpoint_id();
        let _locks = self.lock(&pod).await;
        let parts = self.parts();
        let Some(attachment) = parts.reader.with(|state| state.attachment(&id).cloned()) else {
            return Err(Failure::new(Step::Check, format!("{id} has no interface")));
        };
        let Some(endpoint) = self.endpoint(&id, Step::Check).await? else {
            return Err(Failure::new(Step::Check, format!("{id} is not in the store")));
        };
        let link = |e| Failure::link(Step::Check, &e);
        if !parts.links.is_pair(&attachment.port, &netns, &pod.ifname).await.map_err(link)? {
            let why =
                format!("interface {} of the pod is not the other end of {}", pod.ifname, attachment.port);
            return Err(Failure::new(Step::Check, why));
        }
        let network = self.network(&endpoint).await?;
        let interface = self.attached_interface(&pod, &endpoint, &network, &attachment.port).await?;
        let expected = with_routes(&interface, request.default_routes);
        let expected_link = expected_link(&interface, request.listed_interface.as_ref());
        let difference = parts.links.difference(&attachment.port, &netns, &expected, expected_link);
        if let Some(why) = difference.await.map_err(link)? {
            return Err(Failure::new(Step::Check, why));
        }
        let reply = parts.waiters.wait(&id, Presence::Present);
        parts.attacher.attach(&id, attachment.clone());
        self.wait_for_datapath(reply, Presence::Present)
            .await
            .map_err(|why| Failure::new(Step::Datapath, why))?;
        self.reply(&pod, &endpoint, &interface, &attachment.port).await
    }

    /// Tracks the conditions of an ADD until `stop` is cancelled.
    pub async fn follow_conditions(&self, stop: CancellationToken) -> anyhow::Result<()> {
        let (mut status, mut leader) = (self.parts().status.clone(), self.parts().master.leader());
        loop {
            let in_sync = status.borrow_and_update().in_sync;
            let has_leader = leader.borrow_and_update().is_some();
            {
                let (mut conditions, now) = (self.conditions(), Instant::now());
                conditions.in_sync.update(in_sync, now);
                conditions.leader.update(has_leader, now);
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                Ok(()) = status.changed() => {}
                Ok(()) = leader.changed() => {}
            }
        }
    }

    fn conditions(&self) -> MutexGuard<'_, Conditions> {
        self.0.conditions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks whether an ADD can succeed. An ADD that starts now may wait for a condition that is briefly lost.
    pub fn status(&self) -> Result<Reply, Failure> {
        let unavailable = |why: String| Err(Failure::new(Step::Status, why).code(Code::Unavailable));
        let parts = self.parts();
        if let Some(regression) = &*parts.regression.borrow() {
            return unavailable(regression.to_string());
        }
        if let Some(why) = self.unsettled() {
            return unavailable(why);
        }
        let status = parts.status.borrow().clone();
        if let Some(why) = status.postponed {
            return unavailable(why);
        }
        let (Conditions { in_sync, leader }, now) = (*self.conditions(), Instant::now());
        if !status.in_sync && in_sync.is_missing_for(DATAPATH_TIMEOUT, now) {
            return match status.error {
                Some(error) => Err(Failure::new(Step::Status, error).code(Code::LimitedConnectivity)),
                None => unavailable("the datapath does not follow the store yet".to_owned()),
            };
        }
        if !parts.master.has_leader() && leader.is_missing_for(REQUEST_TIMEOUT, now) {
            return unavailable(
                "the store names no netmaster that leads; is a netmaster running?".to_owned(),
            );
        }
        Ok(Reply::default())
    }
}

/// Returns the interface with only those default routes that the result of ADD contains, if it is known: another
/// interface of the pod may have had the route, and a later plugin may have removed it.
fn with_routes(interface: &PodInterface, routes: Option<[bool; 2]>) -> PodInterface {
    let [ipv4, ipv6] = routes.unwrap_or([true; 2]);
    PodInterface {
        gateway: interface.gateway.filter(|_| ipv4),
        gateway6: interface.gateway6.filter(|_| ipv6),
        ..interface.clone()
    }
}

/// Returns the link as the result of ADD lists it, if it is known: a later plugin may have changed its MTU or Ethernet
/// address. Results before version 1.1.0 list no MTU. In this case the MTU of the host end applies, which drops longer
/// frames.
fn expected_link(made: &PodInterface, listed: Option<&ListedInterface>) -> ExpectedLink {
    match listed {
        Some(ListedInterface { mac, mtu }) => {
            let largest_mtu = if *mtu > 0 { *mtu } else { made.mtu };
            ExpectedLink { mac: mac.parse().ok(), largest_mtu }
        }
        None => ExpectedLink::from(made),
    }
}
