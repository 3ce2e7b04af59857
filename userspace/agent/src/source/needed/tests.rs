mod policies;

use contiv_model::{endpoint, key::Key, network};
use contiv_store::{Config, MAX_TXN_OPS, Txn, embedded};
use tempfile::TempDir;
use tokio::time::timeout;

use super::*;
use crate::{
    source::{Sources, prefixes},
    state::{self, Attacher, Attachment, State, Writer},
};

const HOST: &str = "h";
const TIMEOUT: Duration = Duration::from_secs(20);

/// An agent's state, and the store that it reads.
struct Scene {
    store: Store,
    sources: Sources,
    writer: Writer,
    attacher: Attacher,
    reader: Reader,
    _server: embedded::Server,
    _directory: TempDir,
}

impl Scene {
    /// Networks `n0.t` to `n2.t`, each with an endpoint `e1` on another node.
    async fn new() -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let server = embedded::Server::open(directory.path(), ([127, 0, 0, 1], 0).into()).await.unwrap();
        let store = Store::connect(&Config::new([server.endpoint()])).await.unwrap();
        let (writer, attacher, reader, _) = state::new(prefixes());
        let sources = Sources::new(&store, HOST.into(), reader.clone());
        let scene =
            Scene { store, sources, writer, attacher, reader, _server: server, _directory: directory };
        for number in 0..3 {
            let network = network::State {
                id: format!("n{number}.t"),
                tenant: "t".into(),
                network_name: format!("n{number}"),
                nw_type: "data".into(),
                pkt_tag_type: "vxlan".into(),
                pkt_tag: number + 1,
                ext_pkt_tag: number + 1000,
                subnet_ip: format!("10.1.{number}.0"),
                subnet_len: 24,
                ..network::State::default()
            };
            let key = Key::Network(network.id.as_str().into());
            scene.put(&key, serde_json::to_vec(&network).unwrap()).await;
            scene.put_endpoint(&format!("n{number}.t"), "e1", "other").await;
        }
        scene
    }

    async fn put(&self, key: &Key, body: Vec<u8>) {
        self.commit(Txn::new().put(key.to_string(), body)).await;
    }

    async fn delete(&self, key: &Key) {
        self.commit(Txn::new().delete(key.to_string())).await;
    }

    async fn commit(&self, txn: Txn) {
        // A transaction without guards cannot conflict.
        self.store.commit(txn).await.map(drop).unwrap();
    }

    async fn put_endpoint(&self, network: &str, name: &str, host: &str) {
        let (key, body) = endpoint(network, name, host);
        self.put(&key, body).await;
    }

    /// Applies the store until the state is as expected.
    async fn until(&mut self, expected: impl Fn(&State) -> bool) {
        let follow = async {
            while !self.reader.with(&expected) {
                self.sources.next().await.unwrap().apply(&mut self.writer);
            }
        };
        let result = timeout(TIMEOUT, follow).await;
        let endpoints = self.endpoints();
        assert!(result.is_ok(), "timeout, with {endpoints:?}");
    }

    /// Applies the store until every source has delivered a snapshot.
    async fn synced(&mut self) {
        while !self.reader.awaited().is_empty() {
            let batch = timeout(TIMEOUT, self.sources.next()).await.unwrap();
            batch.unwrap().apply(&mut self.writer);
        }
    }

    /// Opens new watches for the same state, as after a regression of the store.
    fn watch_again(&mut self) {
        self.sources = Sources::new(&self.store, HOST.into(), self.reader.clone());
    }

    fn endpoints(&self) -> Vec<String> {
        self.reader.with(|state| state.endpoints().map(|endpoint| endpoint.id.to_string()).collect())
    }
}

fn endpoint(network: &str, name: &str, host: &str) -> (Key, Vec<u8>) {
    let endpoint = endpoint::State {
        id: format!("{network}-{name}"),
        net_id: network.to_owned(),
        endpoint_id: name.to_owned(),
        ip_address: "10.1.0.5".into(),
        mac_address: "02:02:0a:01:00:05".into(),
        homing_host: host.to_owned(),
        ..endpoint::State::default()
    };
    (Key::Endpoint(endpoint.id.as_str().into()), serde_json::to_vec(&endpoint).unwrap())
}

fn has(id: &str) -> impl Fn(&State) -> bool {
    move |state| state.endpoint(&id.into()).is_some()
}

#[tokio::test]
async fn a_node_without_endpoints_needs_none() {
    let mut scene = Scene::new().await;
    scene.synced().await;
    assert_eq!(scene.endpoints(), [""; 0]);
}

#[tokio::test]
async fn a_node_with_three_of_a_thousand_networks_has_their_endpoints() {
    const NETWORKS: usize = 1000;
    const ON_EACH: usize = 10;
    let mut scene = Scene::new().await;
    let on_others = |network: usize| (0..ON_EACH).map(move |name| (network, name, "other"));
    let here = [7, 500, 999];
    let own = here.map(|network| (network, ON_EACH, HOST));
    let all: Vec<_> = (0..NETWORKS).flat_map(on_others).chain(own).collect();
    for part in all.chunks(MAX_TXN_OPS) {
        let puts = part.iter().map(|(network, name, host)| {
            let (key, body) = endpoint(&format!("net{network}.t"), &format!("e{name}"), host);
            (key.to_string(), body)
        });
        scene.commit(puts.fold(Txn::new(), |txn, (key, body)| txn.put(key, body))).await;
    }
    scene.synced().await;
    let sources = scene.reader.sources(ENDPOINTS);
    let keys: Vec<usize> = sources.iter().map(|source| scene.reader.known(source)).collect();
    println!("{keys:?} of {} endpoints", all.len() + 3);
    assert_eq!(keys, [ON_EACH + 1; 3]);
    assert_eq!(scene.endpoints().len(), keys.iter().sum::<usize>());
}

/// A store that was emptied and accepted is restored while the pods run.
#[tokio::test]
async fn the_network_of_an_interface_is_needed_without_its_endpoint() {
    let mut scene = Scene::new().await;
    scene.attacher.attach(&"n1.t-e-2".into(), Attachment::of_pod("vvport1"));
    scene.synced().await;
    assert_eq!(scene.endpoints(), ["n1.t-e1"]);
    scene.put_endpoint("n1.t", "e-2", HOST).await;
    scene.until(has("n1.t-e-2")).await;
    scene.attacher.detach(&"n1.t-e-2".into());
    // The endpoint remains, as after a reboot.
    scene.put_endpoint("n1.t", "e3", "other").await;
    scene.until(has("n1.t-e3")).await;
}

#[tokio::test]
async fn an_interface_comes_before_the_record_of_its_network() {
    let mut scene = Scene::new().await;
    let network = Key::Network("n1.t".into());
    let record = scene.store.get(&network.to_string()).await.unwrap().unwrap().value;
    scene.delete(&network).await;
    scene.attacher.attach(&"n1.t-e2".into(), Attachment::of_pod("vvport1"));
    scene.synced().await;
    assert_eq!(scene.endpoints(), [""; 0]);
    scene.put(&network, record.to_vec()).await;
    scene.until(has("n1.t-e1")).await;
}

/// This includes a network whose own record is unreadable: the datapath may have its endpoints.
#[tokio::test]
async fn unreadable_endpoints_of_needed_networks_are_known() {
    let mut scene = Scene::new().await;
    scene.attacher.attach(&"n1.t-e2".into(), Attachment::of_pod("vvport1"));
    scene.attacher.attach(&"n2.t-e2".into(), Attachment::of_pod("vvport2"));
    scene.put(&Key::Network("n2.t".into()), b"{".to_vec()).await;
    // Invalid JSON, and no network.
    for (id, body) in [("n1.t-e2", "{"), ("n1.t-e3", r#"{"id":"n1.t-e3"}"#), ("n2.t-e2", "{")] {
        scene.put(&Key::Endpoint(id.into()), body.into()).await;
    }
    scene.synced().await;
    assert_eq!(scene.endpoints(), ["n1.t-e1", "n2.t-e1"]);
    let unreadable: Vec<String> =
        scene.reader.with(|state| state.unreadable().map(ToString::to_string).collect());
    let expected = ["nets/n2.t", "eps/n1.t-e2", "eps/n1.t-e3", "eps/n2.t-e2"];
    assert_eq!(unreadable, expected.map(|key| format!("/contiv.io/state/{key}")));
    // The last valid version is kept, even if the next one contains no network.
    scene.put(&Key::Endpoint("n1.t-e1".into()), b"{}".to_vec()).await;
    scene.put_endpoint("n1.t", "e4", "other").await;
    scene.until(has("n1.t-e4")).await;
    assert_eq!(scene.endpoints(), ["n1.t-e1", "n1.t-e4", "n2.t-e1"]);
}

#[tokio::test]
async fn endpoints_of_earlier_watches_are_not_mistaken_for_current_ones() {
    let mut scene = Scene::new().await;
    scene.put_endpoint("n0.t", "e2", HOST).await;
    let request = scene.attacher.request(&"n1.t".into(), None);
    scene.synced().await;
    assert_eq!(scene.endpoints(), ["n0.t-e1", "n0.t-e2", "n1.t-e1"]);
    drop(request);
    scene.watch_again();
    // This happens before the time limit for unneeded networks.
    let since = Instant::now();
    scene.until(|state| !has("n1.t-e1")(state)).await;
    assert!(since.elapsed() < UNNEEDED_TIMEOUT, "{:?}", since.elapsed());
    assert!(!scene.reader.sources(ENDPOINTS).contains(&Source::Endpoints("n1.t".into())));
    // Needed parts have not been removed meanwhile, and are watched.
    assert_eq!(scene.endpoints(), ["n0.t-e1", "n0.t-e2"]);
    scene.put_endpoint("n0.t", "e3", "other").await;
    scene.put_endpoint("n1.t", "e3", "other").await;
    scene.until(has("n0.t-e3")).await;
    let _request = scene.attacher.request(&"n1.t".into(), None);
    scene.until(has("n1.t-e3")).await;
}

/// Watches of networks are not ordered: the endpoint's new network may come first.
#[tokio::test]
async fn an_endpoint_whose_id_moves_to_another_network_is_not_lost() {
    let mut scene = Scene::new().await;
    let _requests = ["n0.t", "n0.t-b"].map(|network| scene.attacher.request(&network.into(), None));
    scene.put_endpoint("n0.t", "b-c", "other").await;
    scene.synced().await;
    for network in ["n0.t-b", "n0.t"].into_iter().cycle().take(20) {
        // Both endpoints have the key n0.t-b-c.
        let name = "n0.t-b-c".strip_prefix(network).unwrap().trim_start_matches('-');
        scene.delete(&Key::Endpoint("n0.t-b-c".into())).await;
        scene.put_endpoint(network, name, "other").await;
        let moved = |state: &State| {
            state.endpoint(&"n0.t-b-c".into()).is_some_and(|endpoint| endpoint.network.as_str() == network)
        };
        scene.until(moved).await;
    }
    let last = scene.endpoints();
    scene.put_endpoint("n0.t", "last", "other").await;
    scene.put_endpoint("n0.t-b", "last", "other").await;
    scene.until(|state| has("n0.t-last")(state) && has("n0.t-b-last")(state)).await;
    assert!(last.iter().all(|id| has(id)(&scene.reader.with(Clone::clone))), "{last:?}");
}

#[tokio::test]
async fn a_node_that_needs_many_networks_watches_all_endpoints() {
    let mut scene = Scene::new().await;
    scene.put_endpoint("n0.t", "e2", HOST).await;
    scene.synced().await;
    assert_eq!(scene.reader.sources(ENDPOINTS), [Source::Endpoints("n0.t".into())].into());
    let request = |number| scene.attacher.request(&format!("m{number}.t").as_str().into(), None);
    let requests: Vec<_> = (0..MAX_NETWORKS).map(request).collect();
    let all = ["n0.t-e1", "n0.t-e2", "n1.t-e1", "n2.t-e1"];
    // The network's watch ends when the watch of all networks replaces it.
    let is_replaced = |scene: &Scene| scene.reader.sources(ENDPOINTS) == [ENDPOINTS.into()].into();
    while !is_replaced(&scene) {
        assert_eq!(scene.endpoints()[..2], all[..2]);
        let batch = timeout(TIMEOUT, scene.sources.next()).await.unwrap();
        batch.unwrap().apply(&mut scene.writer);
    }
    assert_eq!(scene.endpoints(), all);
    // The same with new watches, although the node needs only one network.
    drop(requests);
    for round in 0..2 {
        scene.put_endpoint("n0.t", &format!("new{round}"), "other").await;
        scene.until(has(&format!("n0.t-new{round}"))).await;
        scene.delete(&Key::Endpoint(format!("n0.t-new{round}").as_str().into())).await;
        let gone = format!("n0.t-new{round}");
        scene.until(|state| !has(&gone)(state)).await;
        assert_eq!(scene.endpoints(), all);
        assert!(is_replaced(&scene));
        scene.watch_again();
    }
}
