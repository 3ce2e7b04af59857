//! The agent has the endpoints of the networks that its node needs, and those only.

use std::collections::BTreeMap;

use contiv_model::{endpoint, key::Key, network, node};
use contiv_store::Store;
use netplugin::datapath::ObjectId;
use testkit::{Netns, needs};

use crate::world::{HOST, World, put};

/// Networks with endpoints on other nodes.
const NETWORKS: u8 = 50;
/// Networks with an endpoint on the node as well.
const OWN: [u8; 3] = [0, 7, 49];
const ENDPOINTS: u8 = 4;
const OTHER: &str = "other";

async fn put_network(store: &Store, number: u8) {
    let id = format!("net{number}.t");
    let state = network::State {
        id: id.clone(),
        tenant: "t".into(),
        network_name: format!("net{number}"),
        nw_type: "data".into(),
        pkt_tag_type: "vxlan".into(),
        pkt_tag: i64::from(number) + 100,
        ext_pkt_tag: i64::from(number) + 20_000,
        subnet_ip: format!("10.{number}.0.0"),
        subnet_len: 24,
        ..network::State::default()
    };
    put(store, &Key::Network(id.as_str().into()), &state).await;
}

async fn put_endpoint(store: &Store, network: &str, octets: (u8, u8), host: &str) {
    let (second, last) = octets;
    let state = endpoint::State {
        id: format!("{network}.t-e{last}"),
        net_id: format!("{network}.t"),
        endpoint_id: format!("e{last}"),
        ip_address: format!("10.{second}.0.{last}"),
        mac_address: format!("02:02:0a:{second:02x}:00:{last:02x}"),
        homing_host: host.into(),
        ..endpoint::State::default()
    };
    put(store, &Key::Endpoint(state.id.as_str().into()), &state).await;
}

/// Number of endpoints of each network that the agent has.
fn endpoints(world: &World) -> BTreeMap<String, usize> {
    world.reader().with(|state| {
        let mut counts = BTreeMap::new();
        for endpoint in state.endpoints() {
            *counts.entry(endpoint.network.to_string()).or_default() += 1;
        }
        counts
    })
}

fn own(count: usize) -> BTreeMap<String, usize> {
    OWN.into_iter().map(|number| (format!("net{number}.t"), count)).collect()
}

/// A cluster whose other node has endpoints on all networks, and a new agent that has read it.
async fn cluster(world: World) -> World {
    let vtep = node::Vtep { host: OTHER.into(), vtep_ip: "192.168.0.2".into(), vxlan_port: 4789 };
    put(world.store(), &Key::NodeVtep(OTHER.into()), &vtep).await;
    for number in 0..NETWORKS {
        put_network(world.store(), number).await;
        for last in 1..=ENDPOINTS {
            put_endpoint(world.store(), &format!("net{number}"), (number, last), OTHER).await;
        }
    }
    for number in OWN {
        put_endpoint(world.store(), &format!("net{number}"), (number, 9), HOST).await;
    }
    let world = world.restart().await;
    world.reader().synced().await;
    world
}

#[test]
fn agent_has_the_endpoints_of_three_of_fifty_networks() {
    needs!(root());
    World::run(async |world| {
        let world = cluster(world).await;
        let whole = usize::from(ENDPOINTS) + 1;
        assert_eq!(endpoints(&world), own(whole));
        // Later changes arrive for these networks only. The last change is one that arrives.
        put_endpoint(world.store(), "net1", (1, 10), OTHER).await;
        put_endpoint(world.store(), "net7", (7, 10), OTHER).await;
        let arrived = "net7.t-e10".into();
        world.until("a new peer arrives", || world.reader().with(|s| s.endpoint(&arrived).is_some())).await;
        assert_eq!(endpoints(&world).get("net1.t"), None);
    });
}

#[test]
fn network_comes_with_its_first_pod_and_goes_with_the_last() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        let world = cluster(world).await;
        // The peers are older than the pod.
        for last in 100..110 {
            put_endpoint(world.store(), "n", (9, last), OTHER).await;
        }
        let peer = "n.t-e100".into();
        assert!(world.reader().with(|state| state.endpoint(&peer).is_none()));
        world.add("c1", pod.path()).await.unwrap();
        // The ADD has returned with all of them.
        assert_eq!(endpoints(&world).get("n.t"), Some(&11));
        let objects = world.switch.objects();
        assert!((100..110).all(|last| {
            objects.get(&ObjectId::Remote(format!("n.t-e{last}").as_str().into())).is_some()
        }));
        world.del("c1", Some(pod.path())).await.unwrap();
        world.until("the network is forgotten", || !endpoints(&world).contains_key("n.t")).await;
        assert_eq!(endpoints(&world), own(usize::from(ENDPOINTS) + 1));
        // Again, with what changed meanwhile.
        put_endpoint(world.store(), "n", (9, 110), OTHER).await;
        world.add("c1", pod.path()).await.unwrap();
        assert_eq!(endpoints(&world).get("n.t"), Some(&12));
    });
}

#[test]
fn network_whose_id_begins_with_that_of_another_is_not_mixed_up() {
    needs!(root());
    World::run(async |world| {
        // Endpoints of n.t-b are below the prefix of the endpoints of n.t.
        put_endpoint(world.store(), "n", (9, 1), HOST).await;
        let other = endpoint::State {
            id: "n.t-b-e1".into(),
            net_id: "n.t-b".into(),
            endpoint_id: "e1".into(),
            ip_address: "10.8.0.1".into(),
            mac_address: "02:02:0a:08:00:01".into(),
            homing_host: OTHER.into(),
            ..endpoint::State::default()
        };
        put(world.store(), &Key::Endpoint("n.t-b-e1".into()), &other).await;
        // An endpoint of n.t with an id of the original for nodes.
        let node = endpoint::State {
            id: "other-native-intf".into(),
            net_id: "n.t".into(),
            ip_address: "10.9.0.2".into(),
            mac_address: "02:02:0a:09:00:02".into(),
            homing_host: OTHER.into(),
            ..endpoint::State::default()
        };
        put(world.store(), &Key::Endpoint("other-native-intf".into()), &node).await;
        let world = world.restart().await;
        world.reader().synced().await;
        assert_eq!(endpoints(&world), BTreeMap::from([("n.t".to_owned(), 2)]));
    });
}
