//! Interface management against the kernel.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{net::IpAddr, path::Path, time::Duration};

use netplugin::attach::link::{
    AttachedPort, DefaultRoutes, Error, Links, Netns, PodInterface, TrafficReader, forget_connections,
};
use netplugin::datapath::Owner;
use testkit::needs;

/// Runs `work` on a runtime with all threads in the node's network namespace, like an agent on `node`.
fn on_node<T: Send>(node: &testkit::Netns, work: impl AsyncFnOnce() -> T + Send) -> T {
    node.run(|| Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work())))
        .unwrap()
}

fn pod(octet: u8) -> PodInterface {
    PodInterface {
        name: "eth0".into(),
        mac: contiv_model::mac::Mac([2, 2, 10, 1, 1, octet]),
        ip: ([10, 1, 1, octet].into(), 24),
        ip6: Some((format!("2001:db8::{octet}").parse().unwrap(), 64)),
        gateway: Some([10, 1, 1, 254].into()),
        gateway6: Some("2001:db8::fe".parse().unwrap()),
        mtu: 1450,
        owner: Owner::Pod,
        disable_tx_offload: true,
    }
}

#[test]
fn attached_pod_is_recovered() {
    needs!(root());
    let (node, pod_ns) = (testkit::Netns::new("node").unwrap(), testkit::Netns::new("pod").unwrap());
    let netns = Netns::open(pod_ns.path()).unwrap();
    let attached = on_node(&node, async || {
        let links = Links::open().await.unwrap();
        let attached = links.attach(&"n.t-c1".into(), &netns, &pod(5)).await.unwrap();
        assert_eq!(
            attached,
            AttachedPort { port: "vvport1".into(), endpoint: "n.t-c1".into(), owner: Owner::Pod }
        );
        assert!(pod_ns.ip("-o link show eth0").unwrap().contains("state DOWN"));
        // A process of the pod may set its end up.
        pod_ns.up("eth0").unwrap();
        let host_end = node.ip("-o link show vvport1").unwrap();
        assert!(!host_end.contains(",UP"), "up without a datapath: {host_end}");
        node.up(&attached.port).unwrap();
        links.raise(&attached.port, &netns, &pod(5)).await.unwrap();
        links.raise(&attached.port, &netns, &pod(5)).await.unwrap();
        attached
    });
    let link = pod_ns.ip("-o link show eth0").unwrap();
    assert!(link.contains("state UP") && link.contains("mtu 1450") && link.contains("02:02:0a:01:01:05"));
    assert!(pod_ns.ip("-o addr show eth0").unwrap().contains("inet 10.1.1.5/24"));
    assert!(pod_ns.ip("-6 route").unwrap().contains("default via 2001:db8::fe dev eth0"));
    assert!(pod_ns.ip("route").unwrap().contains("default via 10.1.1.254 dev eth0"));
    let offload = pod_ns.output("ethtool", &["-k", "eth0"]).unwrap();
    assert!(offload.contains("tx-checksumming: off"), "{offload}");
    assert!(!node.ip("-o addr").unwrap().contains("fe80"), "IPv6 is disabled on the host end");

    // The pod reaches the host end of its pair.
    node.address("vvport1", "10.1.1.1/24").unwrap();
    let ping = pod_ns.ping(IpAddr::from([10, 1, 1, 1]), 2, Duration::from_millis(10)).unwrap();
    assert_eq!(ping.lost(), 0);

    on_node(&node, async || {
        let links = Links::open().await.unwrap();
        assert_eq!(links.attachments().await.unwrap(), std::slice::from_ref(&attached));
        assert!(links.detach(&attached.port).await.unwrap());
        assert!(!links.detach(&attached.port).await.unwrap(), "already deleted");
        assert!(links.attachments().await.unwrap().is_empty());
    });
    assert!(pod_ns.links().unwrap().is_empty());
}

#[test]
fn attach_goes_on_without_its_caller() {
    needs!(root());
    let (node, pod_ns) = (testkit::Netns::new("node").unwrap(), testkit::Netns::new("pod").unwrap());
    let netns = Netns::open(pod_ns.path()).unwrap();
    on_node(&node, async || {
        let links = Links::open().await.unwrap();
        let (id, interface) = ("n.t-c1".into(), pod(5));
        {
            let mut attach = std::pin::pin!(links.attach(&id, &netns, &interface));
            assert!(futures::poll!(&mut attach).is_pending());
        }
        links.attached().await;
        assert_eq!(links.port_of(&id).await.unwrap().as_deref(), Some("vvport1"));
    });
    assert_eq!(pod_ns.links().unwrap(), ["eth0"]);
}

#[test]
fn failed_attach_leaves_no_interface() {
    needs!(root());
    let (node, pod_ns) = (testkit::Netns::new("node").unwrap(), testkit::Netns::new("pod").unwrap());
    let netns = Netns::open(pod_ns.path()).unwrap();
    on_node(&node, async || {
        let links = Links::open().await.unwrap();
        links.attach(&"n.t-c1".into(), &netns, &pod(5)).await.unwrap();
        let taken = links.attach(&"n.t-c2".into(), &netns, &pod(6)).await.unwrap_err();
        assert!(matches!(taken, Error::Taken { .. }), "{taken}");
        // The kernel rejects the prefix length after the pair exists.
        let mut wrong = PodInterface { name: "eth1".into(), ..pod(7) };
        wrong.ip.1 = 33;
        let refused = links.attach(&"n.t-c3".into(), &netns, &wrong).await.unwrap_err();
        assert_eq!(refused.to_string(), "add an address to eth1");
        assert_eq!(links.attachments().await.unwrap().len(), 1);
    });
    assert_eq!(node.links().unwrap(), ["vvport1"]);
    assert_eq!(pod_ns.links().unwrap(), ["eth0"]);
}

#[test]
fn default_routes_are_those_of_the_first_interface() {
    needs!(root());
    let (node, pod_ns) = (testkit::Netns::new("node").unwrap(), testkit::Netns::new("pod").unwrap());
    let netns = Netns::open(pod_ns.path()).unwrap();
    on_node(&node, async || {
        let links = Links::open().await.unwrap();
        let second = PodInterface { name: "net1".into(), ..pod(6) };
        let both = DefaultRoutes { ipv4: true, ipv6: true };
        for (name, interface, routes) in
            [("c1", pod(5), both), ("c1-net1", second.clone(), DefaultRoutes::default())]
        {
            let port = links.attach(&format!("n.t-{name}").into(), &netns, &interface).await.unwrap().port;
            node.up(&port).unwrap();
            for _ in 0..2 {
                assert_eq!(links.raise(&port, &netns, &interface).await.unwrap(), routes, "{name}");
                assert_eq!(
                    links.difference(&port, &netns, &interface, (&interface).into()).await.unwrap(),
                    None,
                    "{name}"
                );
            }
        }
        for words in ["route", "-6 route"] {
            let routes = pod_ns.ip(words).unwrap();
            let default: Vec<_> = routes.lines().filter(|line| line.starts_with("default")).collect();
            assert!(default.len() == 1 && default[0].contains("dev eth0"), "{routes}");
        }
        // Without the first interface, the second one gets them.
        assert!(links.detach("vvport1").await.unwrap());
        let lost = links.difference("vvport2", &netns, &second, (&second).into()).await.unwrap().unwrap();
        assert!(lost.contains("no default route by 10.1.1.254 on net1"), "{lost}");
        assert_eq!(links.raise("vvport2", &netns, &second).await.unwrap(), both);
        assert_eq!(links.difference("vvport2", &netns, &second, (&second).into()).await.unwrap(), None);
    });
}

/// As an earlier plugin of the chain, or a DHCP client, sets them.
#[test]
fn default_routes_with_other_metrics_stay_those_of_the_first_interface() {
    needs!(root());
    let (node, pod_ns) = (testkit::Netns::new("node").unwrap(), testkit::Netns::new("pod").unwrap());
    let netns = Netns::open(pod_ns.path()).unwrap();
    pod_ns.ip("link add net0 type veth peer name wire0").unwrap();
    for name in ["net0", "wire0"] {
        pod_ns.up(name).unwrap();
    }
    pod_ns.ip("address add 10.7.0.2/24 dev net0").unwrap();
    pod_ns.ip("-6 address add 2001:db8:7::2/64 dev net0 nodad").unwrap();
    on_node(&node, async || {
        let links = Links::open().await.unwrap();
        let port = links.attach(&"n.t-c1".into(), &netns, &pod(5)).await.unwrap().port;
        node.up(&port).unwrap();
        for (set, delete, expected) in [
            (
                "route add default via 10.7.0.1 dev net0 metric 100",
                "route del default dev net0",
                DefaultRoutes { ipv4: false, ipv6: true },
            ),
            (
                "route add default nexthop via 10.7.0.1 dev net0 nexthop via 10.7.0.3 dev net0",
                "route del default",
                DefaultRoutes { ipv4: false, ipv6: true },
            ),
            (
                "-6 route add default via 2001:db8:7::1 dev net0 metric 512",
                "-6 route del default dev net0",
                DefaultRoutes { ipv4: true, ipv6: false },
            ),
        ] {
            pod_ns.ip(set).unwrap();
            // The same each time.
            for _ in 0..2 {
                assert_eq!(links.raise(&port, &netns, &pod(5)).await.unwrap(), expected, "{set}");
            }
            // A later plugin sets one that comes first: the interface keeps its own.
            let later = ["route", "-6 route"].map(|words| format!("{words} add default dev net0 metric 7"));
            for words in &later {
                pod_ns.ip(words).unwrap();
            }
            assert_eq!(links.raise(&port, &netns, &pod(5)).await.unwrap(), expected, "{set}");
            for words in &later {
                pod_ns.ip(&words.replace(" add ", " del ")).unwrap();
            }
            pod_ns.ip(delete).unwrap();
            for words in ["route del default", "-6 route del default"] {
                // The interface has only one of them.
                let _ = pod_ns.ip(words);
            }
        }
    });
}

#[test]
fn concurrent_attaches_use_different_port_names() {
    needs!(root());
    let node = testkit::Netns::new("node").unwrap();
    // The name is in use by another program.
    node.ip("link add vvport2 type veth peer name other").unwrap();
    node.ip("link set vvport2 alias not-ours").unwrap();
    let pods: Vec<_> = (0..8).map(|_| testkit::Netns::new("pod").unwrap()).collect();
    on_node(&node, async || {
        let links = Links::open().await.unwrap();
        let attach = pods.iter().enumerate().map(|(n, ns)| {
            let (links, netns) = (&links, Netns::open(ns.path()).unwrap());
            async move { links.attach(&format!("n.t-c{n}").into(), &netns, &pod(n as u8)).await.unwrap().port }
        });
        let mut ports = futures::future::join_all(attach).await;
        ports.sort();
        assert_eq!(ports.len(), 8);
        ports.dedup();
        assert_eq!(ports.len(), 8);
    });
}

#[test]
fn incomplete_ports_are_deleted_and_foreign_ports_remain() {
    needs!(root());
    // Outlives the last check: deleting the pod's namespace deletes the pair.
    let (node, pod_ns) = (testkit::Netns::new("node").unwrap(), testkit::Netns::new("pod").unwrap());
    let netns = Netns::open(pod_ns.path()).unwrap();
    node.ip("link add vvport1 group 4412502 type veth peer name a").unwrap();
    node.ip("link add vvport2 type veth peer name b").unwrap();
    on_node(&node, async || {
        let links = Links::open().await.unwrap();
        assert!(links.attachments().await.unwrap().is_empty());
        let made = links.attach(&"n.t-c1".into(), &netns, &pod(5)).await.unwrap();
        assert_eq!(made.port, "vvport1");
        let second = PodInterface { name: "eth1".into(), ..pod(6) };
        assert_eq!(links.attach(&"n.t-c2".into(), &netns, &second).await.unwrap().port, "vvport3");
    });
    assert!(node.ip("-d link show vvport2").unwrap().contains("vvport2"));
    assert!(node.links().unwrap().contains(&"vvport1".to_owned()));
}

#[test]
fn path_without_namespace_is_rejected() {
    for path in ["/run/netns/there-is-none", "/etc/hostname", "/"] {
        let error = Netns::open(Path::new(path)).unwrap_err();
        assert!(error.to_string().contains(path), "{error}");
    }
}

#[test]
fn traffic_is_read_from_the_pods_end() {
    needs!(root(), binary("ping"));
    let (node, pod_ns) = (testkit::Netns::new("node").unwrap(), testkit::Netns::new("pod").unwrap());
    let netns = Netns::open(pod_ns.path()).unwrap();
    let traffic = || on_node(&node, async || TrafficReader::open().unwrap().read().await.unwrap());
    assert_eq!(traffic(), []);
    let attached = on_node(&node, async || {
        let links = Links::open().await.unwrap();
        let attached = links.attach(&"n.t-c1".into(), &netns, &pod(5)).await.unwrap();
        node.up(&attached.port).unwrap();
        links.raise(&attached.port, &netns, &pod(5)).await.unwrap();
        attached
    });
    node.address("vvport1", "10.1.1.1/24").unwrap();
    let before = traffic();
    assert_eq!(before[0].port, attached);
    let ping = pod_ns.ping(IpAddr::from([10, 1, 1, 1]), 5, Duration::from_millis(10)).unwrap();
    assert_eq!(ping.lost(), 0);
    let (before, after) = (&before[0], &traffic()[0]);
    for (before, after) in [(before.sent, after.sent), (before.received, after.received)] {
        // Includes ARP.
        assert!(after.packets - before.packets >= 5 && after.bytes - before.bytes >= 5 * 98, "{after:?}");
    }
    // A deleted pod is omitted.
    drop((netns, pod_ns));
    testkit::wait_until(Duration::from_secs(5), "the pair to disappear", || {
        Ok(traffic().is_empty().then_some(()))
    })
    .unwrap();
}

#[test]
fn connections_that_an_address_has_begun_end() {
    needs!(root(), binary("nft"));
    let node = testkit::Netns::new("node").unwrap();
    node.up("lo").unwrap();
    let addresses = ["172.19.0.7", "172.19.0.8", "172.19.0.9"];
    for address in addresses {
        node.address("lo", &format!("{address}/32")).unwrap();
    }
    // The kernel tracks connections where a rule asks for their state.
    let rule = "add table ip t; add chain ip t c { type filter hook output priority 0; }; add rule ip t c ct state new counter";
    node.run(|| Ok(std::process::Command::new("nft").arg(rule).status()?.success())).unwrap();
    node.run(|| {
        let sockets: Vec<std::net::UdpSocket> = addresses
            .iter()
            .map(|address| std::net::UdpSocket::bind((*address, 5000)))
            .collect::<Result<_, _>>()?;
        for socket in &sockets[..2] {
            socket.send_to(b"one", "172.19.0.9:5000")?;
            socket.send_to(b"other", "172.19.0.9:5001")?;
        }
        sockets[2].send_to(b"to it", "172.19.0.7:5001")?;
        let [first, second, _] = addresses.map(|address| address.parse().unwrap());
        assert_eq!(forget_connections(first)?, 2);
        assert_eq!(forget_connections(first)?, 0);
        // Those of others go on.
        assert_eq!(forget_connections(second)?, 2);
        Ok(())
    })
    .unwrap();
}
