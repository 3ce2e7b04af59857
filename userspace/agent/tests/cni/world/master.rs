use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
};

use axum::{Router, body::Bytes, extract::State, http::StatusCode, routing::post};
use contiv_model::{
    endpoint, group,
    key::{Key, ObjectType},
    mac::Mac,
    name::EndpointId,
    network,
};
use contiv_store::{Store, Txn};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore, watch};

use super::{HOST, put};

/// Number of the only group.
pub(crate) const GROUP: i64 = 5;

/// Networks, each with its tenant. Endpoints are created on the first one and deleted on all.
const NETWORKS: [(&str, &str); 2] = [("n", "t"), ("mgmt", "b.c")];

/// Scripted netmaster that creates endpoints on the network `n` of the tenant `t`.
pub(crate) struct Master {
    shared: Arc<Shared>,
    address: String,
    leader: watch::Sender<Option<String>>,
}

struct Shared {
    store: Store,
    network: network::State,
    last: AtomicU8,
    created: AtomicUsize,
    deleted: AtomicUsize,
    /// Number of requests for an endpoint after which others are refused.
    accepted: AtomicUsize,
    garbled: AtomicBool,
    /// Whether the next endpoint that is deleted is created again.
    restores: AtomicBool,
    /// Requests to delete endpoints that are carried out later; none while they are carried out at once.
    postponed: Mutex<Option<Vec<Bytes>>>,
    received: Notify,
    deletions: Notify,
    /// Each request needs a permit.
    gate: Semaphore,
}

impl Master {
    pub(crate) async fn start(store: Store) -> Master {
        Master::start_on(store, "vxlan", 10_001).await
    }

    /// As [`Master::start`], with the encapsulation of the network and its tag on the wire.
    pub(crate) async fn start_on(store: Store, encap: &str, tag: i64) -> Master {
        Master::start_at(store, Master::network(encap, tag), "127.0.0.1").await
    }

    /// The network `n` of the tenant `t`.
    pub(crate) fn network(encap: &str, tag: i64) -> network::State {
        network::State {
            id: "n.t".into(),
            tenant: "t".into(),
            network_name: "n".into(),
            nw_type: "data".into(),
            pkt_tag_type: encap.into(),
            pkt_tag: 1,
            ext_pkt_tag: tag,
            subnet_ip: "10.9.0.0".into(),
            subnet_len: 24,
            gateway: "10.9.0.254".into(),
            ipv6_subnet_ip: "2001:db8:9::".into(),
            ipv6_subnet_len: 64,
            ..network::State::default()
        }
    }

    /// As [`Master::start`], with this network, at this IP address.
    pub(crate) async fn start_at(store: Store, network: network::State, ip: &str) -> Master {
        put(&store, &Key::Network("n.t".into()), &network).await;
        put(&store, &Key::ClusterIdentity, &json!({ "id": "c0ffee" })).await;
        put(&store, &Key::Object(ObjectType::Network, "t:n".into()), &json!({ "key": "t:n" })).await;
        let shared = Arc::new(Shared {
            store,
            network,
            last: AtomicU8::new(0),
            created: AtomicUsize::new(0),
            deleted: AtomicUsize::new(0),
            accepted: AtomicUsize::new(usize::MAX),
            garbled: AtomicBool::new(false),
            restores: AtomicBool::new(false),
            postponed: Mutex::default(),
            received: Notify::new(),
            deletions: Notify::new(),
            gate: Semaphore::new(1000),
        });
        let router = Router::new()
            .route("/plugin/createEndpoint", post(create))
            .route("/plugin/deleteEndpoint", post(delete))
            .with_state(shared.clone());
        let listener = tokio::net::TcpListener::bind((ip, 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let leader = watch::Sender::new(Some(address.clone()));
        Master { shared, address, leader }
    }

    /// Creates the group `g` with a policy that denies everything.
    pub(crate) async fn create_group(&self) {
        let id = "t:g:t:p:t:p:1:inRx";
        let rule = json!({ "RuleId": id, "Priority": 1, "DstEndpointGroup": GROUP, "Action": "deny" });
        let api = json!({ "key": "t:p:1", "tenantName": "t", "policyName": "p", "ruleId": "1", "priority": 1,
                          "direction": "in", "action": "deny" });
        let policy = json!({
            "id": "t:g:t:p", "EpgPolicyKey": "t:g:t:p", "EndpointGroupID": GROUP,
            "RuleMaps": { "t:p:1": { "Rule": api, "OfnetRules": { id: rule } } },
        });
        let group = group::State {
            id: "g:t".into(),
            group_name: "g".into(),
            tenant_name: "t".into(),
            network_name: "n".into(),
            endpoint_group_id: GROUP,
            ..group::State::default()
        };
        put(&self.shared.store, &Key::Policy("t:g:t:p".into()), &policy).await;
        put(&self.shared.store, &Key::Group("g:t".into()), &group).await;
    }

    /// Deletes endpoints in one transaction, as garbage collection of a node does.
    pub(crate) async fn delete_endpoints(&self, ids: &[&str]) {
        let delete = |txn: Txn, id: &&str| txn.delete(Key::Endpoint((*id).into()).to_string());
        let change = self.shared.with_network(ids.iter().fold(Txn::new(), delete));
        let _committed = self.shared.store.commit(change).await.unwrap();
    }

    pub(crate) fn leader(&self) -> watch::Receiver<Option<String>> {
        self.leader.subscribe()
    }

    /// The value of the lock key.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn resign(&self) {
        self.leader.send_replace(None);
    }

    pub(crate) fn lead(&self) {
        self.leader.send_replace(Some(self.address.clone()));
    }

    /// Requests do not go on before [`Master::release`].
    pub(crate) fn hold(&self) {
        self.shared.gate.forget_permits(1000);
    }

    pub(crate) fn release(&self) {
        self.shared.gate.add_permits(1000);
    }

    /// Endpoints are created, but the answers cannot be decoded before [`Master::answer`].
    pub(crate) fn garble(&self) {
        self.shared.garbled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn answer(&self) {
        self.shared.garbled.store(false, Ordering::Relaxed);
    }

    /// Requests for an endpoint are refused after this number of them.
    pub(crate) fn refuse_after(&self, accepted: usize) {
        self.shared.accepted.store(accepted, Ordering::Relaxed);
    }

    /// The next endpoint that is deleted is created again at once as it was, as by a request that had waited somewhere.
    pub(crate) fn restore_next(&self) {
        self.shared.restores.store(true, Ordering::Relaxed);
    }

    /// Endpoints are deleted by [`Master::delete_postponed`], and the requests are refused.
    pub(crate) fn postpone_deletions(&self) {
        *self.shared.postponed.lock().unwrap() = Some(vec![]);
    }

    /// Carries out the requests that were postponed, and returns what they would have been answered. Later ones are carried out at
    /// once.
    pub(crate) async fn delete_postponed(&self) -> Vec<StatusCode> {
        let postponed = self.shared.postponed.lock().unwrap().take().unwrap_or_default();
        let mut answers = vec![];
        for body in postponed {
            answers.push(delete_now(&self.shared, &body).await.0);
        }
        answers
    }

    /// Waits until a request has arrived.
    pub(crate) async fn request_received(&self) {
        self.shared.received.notified().await;
        self.shared.received.notify_one();
    }

    /// Waits until a request to delete an endpoint has arrived.
    pub(crate) async fn deletion_received(&self) {
        self.shared.deletions.notified().await;
    }

    /// Number of requests for a new endpoint.
    pub(crate) fn created(&self) -> usize {
        self.shared.created.load(Ordering::Relaxed)
    }

    /// Number of requests to delete an endpoint.
    pub(crate) fn deleted(&self) -> usize {
        self.shared.deleted.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// Every change of an endpoint changes the network that counts it.
    fn with_network(&self, change: Txn) -> Txn {
        change.put(Key::Network("n.t".into()).to_string(), serde_json::to_vec(&self.network).unwrap())
    }

    /// Keeps the request to delete an endpoint, if these are postponed.
    fn postpone(&self, body: &Bytes) -> bool {
        let mut postponed = self.postponed.lock().unwrap();
        let Some(postponed) = postponed.as_mut() else { return false };
        postponed.push(body.clone());
        true
    }
}

type Answer = (StatusCode, String);

fn not_found() -> Answer {
    (StatusCode::INTERNAL_SERVER_ERROR, "key not found\n".to_owned())
}

async fn admit(shared: &Shared) {
    shared.received.notify_one();
    drop(shared.gate.acquire().await.unwrap());
}

/// Id of the request's endpoint; `None` if its network is not one of these.
fn id(request: &Value, networks: &[(&str, &str)]) -> Option<EndpointId> {
    let [network, tenant, endpoint] =
        ["NetworkName", "TenantName", "EndpointID"].map(|name| word(request, name));
    networks.contains(&(network, tenant)).then(|| format!("{network}.{tenant}-{endpoint}").into())
}

fn network_id(request: &Value) -> String {
    format!("{}.{}", word(request, "NetworkName"), word(request, "TenantName"))
}

fn word<'a>(request: &'a Value, name: &str) -> &'a str {
    request[name].as_str().unwrap()
}

async fn create(State(shared): State<Arc<Shared>>, body: Bytes) -> Answer {
    let earlier = shared.created.fetch_add(1, Ordering::Relaxed);
    admit(&shared).await;
    if earlier >= shared.accepted.load(Ordering::Relaxed) {
        return (StatusCode::INTERNAL_SERVER_ERROR, "no address left\n".to_owned());
    }
    let request: Value = serde_json::from_slice(&body).unwrap();
    let host = request["ConfigEP"]["Host"].as_str().unwrap();
    assert!(host.starts_with(HOST), "{host}");
    let Some(id) = id(&request, &NETWORKS[..1]) else { return not_found() };
    let key = Key::Endpoint(id.clone()).to_string();
    if let Some(existing) = shared.store.get(&key).await.unwrap() {
        let state: Value = serde_json::from_slice(&existing.value).unwrap();
        if state["homingHost"] == host {
            let _committed = shared.store.commit(Txn::new().put(key, existing.value)).await.unwrap();
        }
        return (StatusCode::OK, json!({ "EndpointConfig": state }).to_string());
    }
    let group = request["ServiceName"].as_str().unwrap();
    let octet = shared.last.fetch_add(1, Ordering::Relaxed) + 1;
    let ip = [10, 9, 0, octet].into();
    let state = endpoint::State {
        id: id.to_string(),
        net_id: "n.t".into(),
        endpoint_id: request["EndpointID"].as_str().unwrap().into(),
        ip_address: std::net::Ipv4Addr::to_string(&ip),
        ipv6_address: format!("2001:db8:9::{octet:x}"),
        mac_address: Mac::of_endpoint(ip).to_string(),
        homing_host: host.into(),
        endpoint_group_id: if group.is_empty() { 0 } else { GROUP },
        endpoint_group_key: if group.is_empty() { String::new() } else { format!("{group}:t") },
        service_name: group.to_owned(),
        ..endpoint::State::default()
    };
    let state_body = serde_json::to_vec(&state).unwrap();
    let change = Txn::new().put(key, state_body);
    let _committed = shared.store.commit(shared.with_network(change)).await.unwrap();
    if shared.garbled.load(Ordering::Relaxed) {
        return (StatusCode::OK, r#"{"EndpointConfig":"#.to_owned());
    }
    (StatusCode::OK, json!({ "EndpointConfig": state }).to_string())
}

async fn delete(State(shared): State<Arc<Shared>>, body: Bytes) -> Answer {
    shared.deleted.fetch_add(1, Ordering::Relaxed);
    shared.deletions.notify_one();
    admit(&shared).await;
    if shared.postpone(&body) {
        return (StatusCode::INTERNAL_SERVER_ERROR, "postponed\n".to_owned());
    }
    delete_now(&shared, &body).await
}

async fn delete_now(shared: &Shared, body: &Bytes) -> Answer {
    let request: Value = serde_json::from_slice(body).unwrap();
    let Some(id) = id(&request, &NETWORKS) else { return not_found() };
    let key = Key::Endpoint(id).to_string();
    let Some(existing) = shared.store.get(&key).await.unwrap() else { return not_found() };
    if request["ModRevision"] != existing.mod_revision {
        return (StatusCode::PRECONDITION_FAILED, "another revision\n".to_owned());
    }
    let mut change = Txn::new().delete(&*key);
    // As in `Shared::with_network`.
    let network = Key::Network(network_id(&request).into()).to_string();
    if let Some(record) = shared.store.get(&network).await.unwrap() {
        change = change.put(network, record.value);
    }
    let _committed = shared.store.commit(change).await.unwrap();
    if shared.restores.swap(false, Ordering::Relaxed) {
        let again = shared.with_network(Txn::new().put(key, existing.value));
        let _committed = shared.store.commit(again).await.unwrap();
    }
    (StatusCode::OK, json!({ "EndpointConfig": {} }).to_string())
}
