//! The node leaves a network of type `infra` whose tenant has a name with a dot.

use contiv_model::{
    endpoint::{self, Oper},
    key::Key,
    network,
};
use testkit::needs;
use tokio_util::sync::CancellationToken;

use crate::{
    ip,
    world::{HOST, VTEP, World, master::Master, put},
};

const NETWORK: &str = "mgmt.b.c";
const ENDPOINT: &str = "mgmt.b.c-node-under-test";

/// Writes a data network that has replaced the infra network.
async fn put_network(world: &World) {
    let network = network::State {
        id: NETWORK.into(),
        tenant: "b.c".into(),
        network_name: "mgmt".into(),
        pkt_tag: 2,
        subnet_ip: "10.8.0.0".into(),
        gateway: "10.8.0.254".into(),
        ipv6_subnet_ip: String::new(),
        ipv6_subnet_len: 0,
        ..Master::network("vxlan", 10_002)
    };
    put(world.store(), &Key::Network(NETWORK.into()), &network).await;
}

/// A new agent on a node that was on the infra network.
async fn restarted_on_network(world: World) -> World {
    let endpoint = endpoint::State {
        id: ENDPOINT.into(),
        net_id: NETWORK.into(),
        endpoint_id: HOST.into(),
        ip_address: "10.8.0.1".into(),
        mac_address: "02:02:0a:08:00:01".into(),
        homing_host: HOST.into(),
        ..endpoint::State::default()
    };
    let record = Oper {
        net_id: NETWORK.into(),
        cont_uuid: HOST.into(),
        homing_host: HOST.into(),
        intf_name: "mgmt".into(),
        port_name: "vport9".into(),
        vtep_ip: VTEP.into(),
        ..Oper::default()
    };
    put(world.store(), &Key::Endpoint(ENDPOINT.into()), &endpoint).await;
    put(world.store(), &Key::EndpointOper(ENDPOINT.into()), &record).await;
    ip("link add vvport9 type veth peer name mgmt");
    ip(&format!("link set dev vvport9 alias {ENDPOINT}"));
    let world = world.restart().await;
    world.reader().wait(|state| state.endpoint(&ENDPOINT.into()).map(drop)).await;
    world
}

/// Keeps the node on the infra networks while `test` runs, and until the store has no endpoint.
async fn maintain(world: &World, test: impl Future<Output = ()>) {
    let stop = CancellationToken::new();
    let left = async {
        test.await;
        let gone = || world.reader().with(|state| state.endpoint(&ENDPOINT.into()).is_none());
        world.until("the endpoint is deleted", gone).await;
        stop.cancel();
    };
    let (result, ()) = tokio::join!(world.pods.maintain_infra(stop.clone()), left);
    result.unwrap();
}

#[test]
fn node_leaves_an_infra_network_that_a_data_network_has_replaced() {
    needs!(root());
    World::run(async |world| {
        put_network(&world).await;
        let world = restarted_on_network(world).await;
        maintain(&world, async {}).await;
        world.assert_nothing_left().await;
    });
}

#[test]
fn node_leaves_when_it_knows_the_network_that_netmaster_has() {
    needs!(root());
    World::run(async |world| {
        let world = restarted_on_network(world).await;
        let created = async {
            // netmaster has the new network already, and does not find the endpoint by other names.
            let is_refused = || world.pods.warnings().borrow().lines().any(|line| line.contains(NETWORK));
            world.until("the deletion is refused", is_refused).await;
            assert_eq!((world.endpoints().await, world.ports().await), (vec![ENDPOINT.to_owned()], vec![]));
            put_network(&world).await;
        };
        maintain(&world, created).await;
        world.assert_nothing_left().await;
    });
}
