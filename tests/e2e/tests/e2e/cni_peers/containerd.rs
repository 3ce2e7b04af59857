//! containerd 2, which asks for STATUS itself.

use std::{collections::BTreeSet, fs, net::IpAddr, path::Path, thread};

use e2e::cluster::{Cluster, Encap, Network, Node, Pod};
use nix::mount::{MntFlags, umount2};
use testkit::{needs, skip, wait_until};

use super::{
    DEADLINE, allocated, assert_nothing_left, cnitool,
    cri::{Client, Metadata},
    reaches,
    runtime::{Containerd, Sandbox, cgroup},
    tools,
};

/// Number that run at the same time.
const SANDBOXES: usize = 8;

fn ping_from(node: &Node, sandbox: &Sandbox, to: IpAddr) {
    let netns = format!("--net={}", sandbox.netns.display());
    let ping = || node.netns().output("nsenter", &[&netns, "ping", "-c1", "-W1", &to.to_string()]).map(Some);
    wait_until(DEADLINE, &format!("a sandbox reaches {to}"), ping).unwrap();
}

#[test]
fn containerd_runs_sandboxes_and_asks_for_the_status() {
    needs!(root(), binary("ethtool"));
    if let Some(reason) = tools::missing() {
        skip!("{reason}");
    }
    let _machine = testkit::shared();
    let mut cluster = Cluster::ebpf(Encap::Vxlan, &Network::pods()).unwrap();
    let mut containerd = Containerd::start(&cluster.nodes[0]);
    let peer = Pod::add(&cluster.nodes[1], &Network::pods(), "peer").unwrap();

    let ids = ["web", "db"].map(|name| containerd.run(name).unwrap());
    let [web, db] = ids.each_ref().map(|id| containerd.sandbox(id));
    assert!(web.addresses[0].is_ipv4() && web.addresses[1].is_ipv6(), "{:?}", web.addresses);
    for to in web.addresses.iter().chain(&db.addresses) {
        reaches(peer.netns(), *to);
    }
    ping_from(&cluster.nodes[0], &web, db.addresses[0]);
    ping_from(&cluster.nodes[0], &db, peer.ip.into());

    run_at_a_time(&containerd, &cluster);
    not_ready_without_the_agent(&mut containerd, &mut cluster);

    // Sandboxes outlive the runtime, which still knows them.
    containerd.restart();
    let again = containerd.sandbox(&ids[0]);
    assert!(again.ready && again.addresses == web.addresses);
    reaches(peer.netns(), web.addresses[0]);
    assert_eq!(cluster.nodes[0].pod_links().unwrap().len(), 2);

    // A sandbox without its process and its namespace, as after a reboot.
    containerd.signal("KILL", &db.pid);
    umount2(&db.netns, MntFlags::MNT_DETACH).unwrap();
    fs::remove_file(&db.netns).unwrap();
    for (id, sandbox) in ids.iter().zip([&web, &db]) {
        containerd.client.remove(id).unwrap();
        let address = sandbox.addresses[0].to_string();
        assert!(!allocated(&cluster).contains(&address), "{address} in {}", allocated(&cluster));
    }
    peer.remove(&cluster.nodes[1]).unwrap();
    assert_nothing_left(&cluster);
    let calls = containerd.calls();
    for command in ["STATUS", "ADD", "DEL"] {
        assert!(calls.iter().any(|call| call == command), "{calls:?}");
    }
    release_what_is_lost(&mut containerd, &cluster);
    drop(containerd);
    cluster.shut_down().unwrap();
}

/// containerd ends and does not come back, as when its data are lost: GC, which it never issues itself, releases its sandboxes.
fn release_what_is_lost(containerd: &mut Containerd, cluster: &Cluster) {
    let ids = ["left", "lost"].map(|name| containerd.run(name).unwrap());
    containerd.init.kill().unwrap();
    assert_eq!(cluster.nodes[0].pod_links().unwrap().len(), 2);
    let folder = containerd.folder.path();
    // libcni knows one of them, the agent both.
    fs::remove_file(folder.join(format!("lib/cni/results/contiv-net-{}-eth0", ids[1]))).unwrap();
    let none = Path::new("/proc/self/ns/net");
    let done = cnitool::call(cluster.nodes[0].netns(), folder, "gc", "contiv-net", "eth0", none);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_nothing_left(cluster);
}

/// Sandboxes that start and stop at the same time, as those of a node that boots do.
fn run_at_a_time(containerd: &Containerd, cluster: &Cluster) {
    let socket = containerd.folder.path().join("containerd.sock");
    let before = allocated(cluster);
    let start = |number: usize| {
        let client = Client::connect(&socket);
        let name = format!("many-{number}");
        let metadata = Metadata { uid: name.clone(), name, namespace: "default".to_owned() };
        let id = client.run(metadata, &cgroup()).unwrap();
        let network = client.sandbox(&id).unwrap().status.unwrap().network.unwrap();
        (client, id, network.ip)
    };
    let start = &start;
    let parallel = || {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..SANDBOXES).map(|number| scope.spawn(move || start(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let running = parallel();
    let addresses: BTreeSet<_> = running.iter().map(|(_, _, address)| address).collect();
    assert_eq!(addresses.len(), SANDBOXES);
    thread::scope(|scope| {
        for (client, id, _) in &running {
            scope.spawn(move || client.remove(id).unwrap());
        }
    });
    assert_eq!(allocated(cluster), before);
}

fn not_ready_without_the_agent(containerd: &mut Containerd, cluster: &mut Cluster) {
    let (links, addresses) = (cluster.nodes[0].pod_links().unwrap(), allocated(cluster));
    cluster.nodes[0].kill_agent().unwrap();
    let why = containerd.wait_for_the_network(false);
    assert!(why.contains("connect to the agent at"), "{why}");
    let refused = containerd.run("early").unwrap_err();
    assert!(refused.message().contains("check that netplugin runs on this node"), "{refused}");
    cluster.nodes[0].restart_agent().unwrap();
    containerd.wait_for_the_network(true);
    assert_eq!((cluster.nodes[0].pod_links().unwrap(), allocated(cluster)), (links, addresses));
}
