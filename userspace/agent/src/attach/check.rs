use contivk8s::{
    spec::Code,
    wire::{Reply, Request},
};

use super::{
    failure::{Failure, Step},
    link::Netns,
    pod::Pod,
    pods::Pods,
};
use crate::reconcile::Presence;

impl Pods {
    /// Checks that a pod is attached as ADD left it; the reply is that of ADD.
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
        if let Some(why) = parts.links.difference(&attachment.port, &netns, &interface).await.map_err(link)? {
            return Err(Failure::new(Step::Check, why));
        }
        let reply = parts.waiters.wait(&id, Presence::Present);
        parts.attacher.attach(&id, attachment.clone());
        self.wait_for_datapath(reply, Presence::Present)
            .await
            .map_err(|why| Failure::new(Step::Datapath, why))?;
        self.reply(&pod, &endpoint, &interface, &attachment.port).await
    }

    /// Whether an ADD can succeed now.
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
        if let Some(error) = status.error {
            return Err(Failure::new(Step::Status, error).code(Code::LimitedConnectivity));
        }
        if let Some(why) = status.postponed {
            return unavailable(why);
        }
        if !status.in_sync {
            return unavailable("the datapath does not follow the store yet".to_owned());
        }
        if !parts.master.has_leader() {
            return unavailable(
                "the store names no netmaster that leads; is a netmaster running?".to_owned(),
            );
        }
        Ok(Reply::default())
    }
}
