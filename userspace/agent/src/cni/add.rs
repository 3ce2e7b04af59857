use std::time::Instant;

use contiv_model::{
    endpoint::{Endpoint, Oper, State},
    key::Key,
    name::EndpointId,
    network::Network,
};
use contiv_store::Txn;
use contivk8s::wire::{Reply, Request};
use futures::FutureExt as _;
use ipnet::{Ipv4Net, Ipv6Net};

use super::{
    Failure, Pod, Pods, STATE_PATIENCE, Step,
    undo::{Made, Part},
};
use crate::{
    datapath::Owner,
    error::one_line,
    link::{Netns, PodInterface},
    master::NewEndpoint,
    reconcile::Presence,
    state::Attachment,
};

/// The record's name of the interface: the original's pair was `vport3` in the pod and `vvport3` on the node.
const RECORDED_PREFIX: &str = "v";

impl Pods {
    /// Attaches a pod. Asked again for what is there, it answers the same.
    pub async fn add(&self, request: &Request) -> Result<Reply, Failure> {
        let pod = Pod::try_from(request)?;
        let netns = Netns::open(&pod.netns).map_err(|e| Failure::link(Step::Plug, &e))?;
        self.plug(&pod, &netns).await
    }

    /// The same, of whatever is in the shape of a pod.
    pub(super) async fn plug(&self, pod: &Pod, netns: &Netns) -> Result<Reply, Failure> {
        let _turn = self.0.turns.take(&pod.endpoint).await;
        if let Some(reply) = self.already(pod, netns).await? {
            return Ok(reply);
        }
        let mut made = Made::default();
        match self.make(pod, netns, &mut made).await {
            Ok(reply) => Ok(reply),
            Err(failure) => Err(failure.and(&self.undo(made).await)),
        }
    }

    async fn make(&self, pod: &Pod, netns: &Netns, made: &mut Made) -> Result<Reply, Failure> {
        let start = Instant::now();
        let step = |what| tracing::debug!(endpoint = pod.endpoint, after = ?start.elapsed(), "{what}");
        let (state, endpoint) = self.create_at_master(pod, made).await?;
        step("the master made it");
        let network = self.network(&endpoint).await?;
        let interface = self.interface(pod, &endpoint, &network).await?;
        let parts = self.parts();
        let attachment = parts
            .links
            .attach(&endpoint.id, netns, &interface)
            .await
            .map_err(|e| Failure::link(Step::Plug, &e))?;
        let port = attachment.port;
        made.push(Part::Interface(port.clone()));
        step("it has an interface");

        let told = parts.settled.wait(&endpoint.id, Presence::Present);
        made.push(Part::Attachment(endpoint.id.clone()));
        parts.attacher.attach(&endpoint.id, Attachment { port: port.clone(), owner: pod.owner });

        let record = oper(&state, pod, &port, &self.parts().node.vtep.to_string());
        made.push(Part::Record(endpoint.id.clone()));
        let (recorded, settled) = tokio::join!(
            self.record(&endpoint.id, &record).inspect(|_| step("it is recorded")),
            self.settle(told, Presence::Present).inspect(|_| step("the datapath forwards for it")),
        );
        recorded?;
        settled.map_err(|why| Failure::new(Step::Datapath, why))?;
        parts.links.raise(&port, netns, &interface).await.map_err(|e| Failure::link(Step::Raise, &e))?;
        step("its interface is up");
        self.reply(pod, &endpoint, &interface, &port).await
    }

    async fn create_at_master(&self, pod: &Pod, made: &mut Made) -> Result<(State, Endpoint), Failure> {
        let parts = self.parts();
        let new = NewEndpoint {
            tenant: pod.tenant.to_string(),
            network: pod.network.to_string(),
            group: pod.group.as_ref().map(ToString::to_string).unwrap_or_default(),
            endpoint: pod.endpoint.clone(),
            common_name: pod.common_name.clone(),
            host: parts.node.host.to_string(),
        };
        let state =
            parts.master.create_endpoint(&new).await.map_err(|e| Failure::master(Step::Create, &e))?;
        let endpoint = Endpoint::try_from(&state).map_err(|e| Failure::new(Step::Create, e.to_string()))?;
        if endpoint.host != parts.node.host {
            let why = format!("endpoint {} is on node {} already", endpoint.id, endpoint.host);
            return Err(Failure::new(Step::Create, why));
        }
        made.push(Part::Endpoint(pod.clone()));
        Ok((state, endpoint))
    }

    /// The state may be a little behind the master.
    async fn network(&self, endpoint: &Endpoint) -> Result<Network, Failure> {
        let id = &endpoint.network;
        let told = self.parts().reader.wait(|state| state.network(id).cloned());
        tokio::time::timeout(STATE_PATIENCE, told).await.map_err(|_| {
            let why = format!("the store has not told of network {id} within {STATE_PATIENCE:?}");
            Failure::new(Step::Create, why).passing()
        })
    }

    async fn interface(
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
            disable_tx_offload: self.parts().needs.disable_tx_offload,
        })
    }

    /// The answer to an ADD that was carried out before.
    async fn already(&self, pod: &Pod, netns: &Netns) -> Result<Option<Reply>, Failure> {
        let id = pod.endpoint_id();
        let parts = self.parts();
        let known =
            parts.reader.with(|state| Some((state.attachment(&id)?.clone(), state.endpoint(&id).cloned())));
        let Some((attachment, endpoint)) = known else { return Ok(None) };
        let is_pair = parts.links.is_pair(&attachment.port, netns, &pod.ifname).await;
        let is_pair = is_pair.map_err(|e| Failure::link(Step::Plug, &e))?;
        let (true, Some(endpoint)) = (is_pair, endpoint) else {
            tracing::warn!(endpoint = %id, port = attachment.port, "replacing an interface that its pod has lost");
            self.unplug(&id).await?;
            return Ok(None);
        };
        let network = self.network(&endpoint).await?;
        let interface = self.interface(pod, &endpoint, &network).await?;
        // An agent that died in the middle may have left the last step to be done.
        let told = parts.settled.wait(&id, Presence::Present);
        parts.attacher.attach(&id, attachment.clone());
        self.settle(told, Presence::Present).await.map_err(|why| Failure::new(Step::Datapath, why))?;
        parts
            .links
            .raise(&attachment.port, netns, &interface)
            .await
            .map_err(|e| Failure::link(Step::Raise, &e))?;
        self.reply(pod, &endpoint, &interface, &attachment.port).await.map(Some)
    }

    async fn reply(
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

    async fn record(&self, id: &EndpointId, oper: &Oper) -> Result<(), Failure> {
        let body = serde_json::to_vec(oper).map_err(|e| Failure::new(Step::Record, e.to_string()))?;
        let txn = Txn::new().put(Key::EndpointOper(id.clone()).to_string(), body);
        // Without guards there is no conflict.
        let written = self.parts().store.commit(txn).await;
        written.map(drop).map_err(|e| Failure::new(Step::Record, one_line(&e)).passing())
    }
}

fn oper(state: &State, pod: &Pod, port: &str, vtep: &str) -> Oper {
    Oper {
        id: state.id.clone(),
        net_id: state.net_id.clone(),
        endpoint_id: state.endpoint_id.clone(),
        service_name: state.service_name.clone(),
        cont_uuid: pod.endpoint.clone(),
        ip_address: state.ip_address.clone(),
        ipv6_address: state.ipv6_address.clone(),
        mac_address: state.mac_address.clone(),
        homing_host: state.homing_host.clone(),
        intf_name: pod.ifname.clone(),
        port_name: port.strip_prefix(RECORDED_PREFIX).unwrap_or(port).to_owned(),
        vtep_ip: vtep.to_owned(),
    }
}
