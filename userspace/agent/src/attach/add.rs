use std::time::Instant;

use contiv_model::{
    endpoint::Endpoint,
    key::{Key, policies_of},
    name::{GroupKey, PolicyId},
    network::Network,
};
use contivk8s::{
    spec::Code,
    wire::{Reply, Request},
};
use futures::FutureExt as _;
use ipnet::{Ipv4Net, Ipv6Net};

use super::{
    del::entry_failure,
    failure::{Failure, Step},
    journal::Progress,
    link::{DefaultRoutes, Netns, PodInterface, forget_connections},
    pod::Pod,
    pods::{Pods, STATE_TIMEOUT},
    record::oper,
    undo::{Rollback, RollbackStep},
};
use crate::{
    datapath::{Owner, host_access::endpoint_address},
    error::one_line,
    fail_point::reach,
    reconcile::Presence,
    state::Attachment,
};

impl Pods {
    /// Attaches a pod. Idempotent: for an attached pod the reply is the same.
    pub async fn add(&self, request: &Request) -> Result<Reply, Failure> {
        let pod = Pod::try_from(request)?;
        pod.check_name()?;
        let link = |e| Failure::link(Step::Plug, &e);
        let netns = Netns::open(&pod.netns).map_err(link)?;
        // Otherwise the node would get the pod's address and its default route.
        if netns.is_current().map_err(link)? {
            let path = pod.netns.display();
            let why =
                format!("CNI_NETNS {path}: the node's own network namespace; expected that of a container");
            return Err(Failure::new(Step::Plug, why).code(Code::InvalidEnvironment));
        }
        self.attach(&pod, &netns).await
    }

    /// Attaches a pod, or the node in the form of a pod.
    pub(super) async fn attach(&self, pod: &Pod, netns: &Netns) -> Result<Reply, Failure> {
        self.check_settled(Step::Create)?;
        let id = pod.endpoint_id();
        let _locks = self.lock(pod).await;
        if let Some(other) = self.same_id(pod) {
            let why = format!("endpoint {id} is already {other}, whose names lead to the same id");
            return Err(Failure::new(Step::Create, why));
        }
        let before = self.parts().journal.get(&id).map(|entry| entry.progress);
        // Includes an entry that cannot be read.
        let has_entry = self.parts().journal.contains(&id);
        // An endpoint that a DEL or a rollback has begun to delete is created again, so that a delayed deletion by
        // netmaster does not delete the new endpoint.
        let is_deleting = before == Some(Progress::Deleting);
        if !is_deleting && let Some(reply) = self.existing(pod, netns).await? {
            if before != Some(Progress::Attached) {
                self.complete_record(pod, &reply.port).await?;
            }
            self.write_entry(pod, Progress::Attached)?;
            return Ok(reply);
        }
        self.check_store(Step::Create)?;
        self.check_datapath(Step::Create)?;
        if has_entry {
            // A DEL may have failed to delete the interface. The entry records this until the interface is deleted.
            self.delete_interface(&id).await?;
        }
        self.remember_if_unanswered(pod);
        self.write_entry(pod, Progress::Adding)?;
        reach("entry of the ADD");
        let mut rollback = Rollback::default();
        let failure = match self.create(pod, netns, &mut rollback).await {
            Ok(reply) => match self.write_entry(pod, Progress::Attached) {
                Ok(()) => {
                    reach("entry of the attachment");
                    return Ok(reply);
                }
                Err(failure) => failure,
            },
            Err(failure) => failure,
        };
        let is_unanswered = rollback.is_unanswered();
        let mut failures = self.roll_back(rollback).await;
        // If the ADD may have left something, its entry remains, so that it is deleted later, possibly by another
        // process.
        if failures.is_empty() && !is_unanswered {
            if has_entry {
                // An earlier request may also have left something.
                self.begin_deletion(pod);
            } else {
                failures.extend(self.remove_entry(&id).err().map(|failure| failure.to_string()));
            }
        }
        Err(failure.and_rollback(&failures))
    }

    /// Records what a DEL must delete. The node's own endpoints need no entry, because the store contains them.
    pub(super) fn write_entry(&self, pod: &Pod, progress: Progress) -> Result<(), Failure> {
        match pod.owner {
            Owner::Node => Ok(()),
            Owner::Pod => self.parts().journal.write(pod, progress).map_err(entry_failure),
        }
    }

    /// Ends the connections that an earlier pod with this port has opened through the node's kernel: their packets would
    /// be delivered to the new pod.
    async fn end_connections_of(&self, port: &str) {
        let private = self.parts().reader.with(|state| {
            let subnet = state.private_subnet()?;
            endpoint_address(subnet, port)
        });
        let Some(private) = private else { return };
        let turn = self.0.tracking.clone().lock_owned().await;
        let ended = tokio::task::spawn_blocking(move || {
            // Held until the end even if the request is interrupted.
            let _held = turn;
            forget_connections(private)
        });
        let ended = ended.await;
        match ended.map_err(std::io::Error::other).flatten() {
            Ok(0) => {}
            Ok(count) => tracing::debug!(port, count, "ended the connections of an earlier pod"),
            // A kernel without connection tracking has no connections.
            Err(error) => {
                tracing::warn!(port, "connections of an earlier pod to addresses outside may go on: {error}");
            }
        }
    }

    async fn create(&self, pod: &Pod, netns: &Netns, rollback: &mut Rollback) -> Result<Reply, Failure> {
        let start = Instant::now();
        let log_step = |what| tracing::debug!(endpoint = pod.endpoint, after = ?start.elapsed(), "{what}");
        // The objects that the endpoint needs arrive while netmaster creates it.
        let group = pod.group.as_ref().map(|group| GroupKey::new(group, &pod.tenant));
        let _request = self.parts().attacher.request(&pod.network_id(), group.as_ref());
        let (state, endpoint) = self.create_at_master(pod, rollback).await?;
        log_step("endpoint created at netmaster");
        reach("endpoint at netmaster");
        let network = self.network(&endpoint).await?;
        let interface = self.interface(pod, &endpoint, &network).await?;
        let parts = self.parts();
        let attachment = parts
            .links
            .attach(&endpoint.id, netns, &interface)
            .await
            .map_err(|e| Failure::link(Step::Plug, &e))?;
        let port = attachment.port;
        rollback.push(RollbackStep::Interface(port.clone()));
        log_step("interface created");
        reach("interface");

        self.end_connections_of(&port).await;
        let reply = parts.waiters.wait(&endpoint.id, Presence::Present);
        rollback.push(RollbackStep::Attachment(endpoint.id.clone()));
        parts.attacher.attach(&endpoint.id, Attachment { port: port.clone(), owner: pod.owner });

        let record = oper(&state, pod, &port, &self.parts().node.vtep.to_string());
        let (recorded, settled) = tokio::join!(
            self.record(&endpoint.id, &record).inspect(|_| {
                log_step("record written");
                reach("record");
            }),
            self.wait_for_datapath(reply, Presence::Present).inspect(|_| {
                log_step("datapath set");
                reach("endpoint in the datapath");
            }),
        );
        recorded?;
        settled.map_err(|why| Failure::new(Step::Datapath, why))?;
        let raised = parts.links.raise(&port, netns, &interface).await;
        let routes = raised.map_err(|e| Failure::link(Step::Raise, &e))?;
        log_step("interface up");
        reach("interface up");
        Ok(with_routes(self.reply(pod, &endpoint, &interface, &port).await?, routes))
    }

    /// Waits until the state has everything that the endpoint depends on, as it is now in the store. Each watch of the
    /// store may lag behind netmaster, and a group whose policy has not arrived would look like a group without rules.
    /// Fails if the record of the network is unreadable.
    pub(super) async fn network(&self, endpoint: &Endpoint) -> Result<Network, Failure> {
        let parts = self.parts();
        // Until the state has the endpoint, it does not imply what the node needs.
        let _request = parts.attacher.request(&endpoint.network, endpoint.group.as_ref());
        let caught_up = async {
            let (keys, policies) = self.dependencies(endpoint).await?;
            parts.reader.caught_up(&keys, policies.as_ref()).await;
            parts.reader.has_endpoints_of(&endpoint.network).await;
            if let Some(number) = endpoint.group_number {
                parts.reader.has_policies_of(number, endpoint.group.as_ref()).await;
            }
            let key = Key::Network(endpoint.network.clone());
            let known = parts.reader.wait(|state| match state.network(&endpoint.network) {
                Some(network) => Some(Ok(network.clone())),
                None => state.is_unreadable(&key).then(|| Err(Failure::unreadable(Step::Create, &key))),
            });
            known.await
        };
        tokio::time::timeout(STATE_TIMEOUT, caught_up).await.unwrap_or_else(|_| {
            let id = &endpoint.network;
            let group = endpoint.group.as_ref().map(|group| format!(", group {group} and its policies"));
            let why = format!(
                "network {id} with its endpoints{} have not arrived from the store within {STATE_TIMEOUT:?}",
                group.unwrap_or_default()
            );
            Err(Failure::new(Step::Create, why).temporary())
        })
    }

    /// Returns the records that the endpoint depends on, with their revisions. For an endpoint of a group, also returns
    /// the prefix of the group's policy ids and the revision at which these were listed.
    async fn dependencies(
        &self,
        endpoint: &Endpoint,
    ) -> Result<(Vec<(Key, i64)>, Option<(String, i64)>), Failure> {
        let failed = |e: contiv_store::Error| Failure::new(Step::Create, one_line(&e)).temporary();
        let store = &self.parts().store;
        let own = [Key::Network(endpoint.network.clone()), Key::Endpoint(endpoint.id.clone())];
        let reads = own.into_iter().chain(endpoint.group.clone().map(Key::Group)).map(|key| async {
            let value = store.get(&key.to_string()).await?;
            Ok(value.map(|value| (key, value.mod_revision)))
        });
        let mut keys: Vec<_> =
            futures::future::try_join_all(reads).await.map_err(failed)?.into_iter().flatten().collect();
        let Some(group) = &endpoint.group else { return Ok((keys, None)) };
        let Some(prefix) = PolicyId::prefix_of(group) else { return Ok((keys, None)) };
        let policies = store.list_keys(&policies_of(group)).await.map_err(failed)?;
        let parsed = policies.items.iter().filter_map(|kv| Some((kv.key.parse().ok()?, kv.mod_revision)));
        keys.extend(parsed);
        Ok((keys, Some((prefix, policies.revision))))
    }

    pub(super) async fn interface(
        &self,
        pod: &Pod,
        endpoint: &Endpoint,
        network: &Network,
    ) -> Result<PodInterface, Failure> {
        let mtu = self.mtu(network.encap).await.map_err(|e| Failure::link(Step::Plug, &e))?;
        Ok(PodInterface {
            name: pod.ifname.clone(),
            mac: endpoint.mac,
            ip: (endpoint.ip, network.subnet.prefix_len()),
            ip6: endpoint.ip6.map(|ip| (ip, network.subnet_v6.map_or(128, |net| net.prefix_len()))),
            gateway: network.gateway.filter(|_| pod.owner == Owner::Pod),
            gateway6: endpoint.ip6.and(network.gateway_v6).filter(|_| pod.owner == Owner::Pod),
            mtu,
            owner: pod.owner,
            disable_tx_offload: self.parts().requirements.disable_tx_offload,
        })
    }

    /// Returns the interface of an attached endpoint, with the MTU that its ADD set: later ADDs may use another MTU.
    pub(super) async fn attached_interface(
        &self,
        pod: &Pod,
        endpoint: &Endpoint,
        network: &Network,
        port: &str,
    ) -> Result<PodInterface, Failure> {
        let interface = self.interface(pod, endpoint, network).await?;
        let mtu = self.parts().links.mtu(port).await.map_err(|e| Failure::link(Step::Plug, &e))?;
        Ok(PodInterface { mtu: mtu.unwrap_or(interface.mtu), ..interface })
    }

    /// Returns the reply for an endpoint that is already attached to this pod.
    async fn existing(&self, pod: &Pod, netns: &Netns) -> Result<Option<Reply>, Failure> {
        let id = pod.endpoint_id();
        let parts = self.parts();
        let attachment = parts.reader.with(|state| state.attachment(&id).cloned());
        let Some(attachment) = attachment else { return Ok(None) };
        let endpoint = self.endpoint(&id, Step::Create).await?;
        let is_pair = parts.links.is_pair(&attachment.port, netns, &pod.ifname).await;
        let is_pair = is_pair.map_err(|e| Failure::link(Step::Plug, &e))?;
        let (true, Some(endpoint)) = (is_pair, endpoint) else {
            tracing::warn!(endpoint = %id, port = attachment.port, "replacing an interface that does not belong to the pod");
            self.delete_interface(&id).await?;
            return Ok(None);
        };
        let network = self.network(&endpoint).await?;
        let interface = self.attached_interface(pod, &endpoint, &network, &attachment.port).await?;
        // If the agent was killed during an ADD, the last step may be missing.
        let reply = parts.waiters.wait(&id, Presence::Present);
        parts.attacher.attach(&id, attachment.clone());
        self.wait_for_datapath(reply, Presence::Present)
            .await
            .map_err(|why| Failure::new(Step::Datapath, why))?;
        let raised = parts.links.raise(&attachment.port, netns, &interface).await;
        let routes = raised.map_err(|e| Failure::link(Step::Raise, &e))?;
        let reply = self.reply(pod, &endpoint, &interface, &attachment.port).await?;
        Ok(Some(with_routes(reply, routes)))
    }

    pub(super) async fn reply(
        &self,
        pod: &Pod,
        endpoint: &Endpoint,
        interface: &PodInterface,
        port: &str,
    ) -> Result<Reply, Failure> {
        let bad_length = |e: ipnet::PrefixLenError| Failure::new(Step::Raise, e.to_string());
        let (ip, length) = interface.ip;
        let ip6 = interface.ip6.map(|(ip, length)| Ipv6Net::new(ip, length)).transpose();
        let port_mac = self.parts().links.mac(port).await.map_err(|e| Failure::link(Step::Raise, &e))?;
        Ok(Reply {
            endpoint: pod.endpoint.clone(),
            ip: Some(Ipv4Net::new(ip, length).map_err(bad_length)?),
            ip6: ip6.map_err(bad_length)?,
            gateway: interface.gateway,
            gateway6: interface.gateway6,
            mac: endpoint.mac.to_string(),
            port: port.to_owned(),
            port_mac: port_mac.map(|mac| mac.to_string()).unwrap_or_default(),
            mtu: interface.mtu,
            ..Reply::default()
        })
    }
}

/// Returns the reply of an ADD that has set these default routes through the interface.
fn with_routes(reply: Reply, routes: DefaultRoutes) -> Reply {
    let other_route = reply.gateway.is_some() && !routes.ipv4;
    let other_route6 = reply.gateway6.is_some() && !routes.ipv6;
    Reply { other_route, other_route6, ..reply }
}
