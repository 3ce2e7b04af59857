//! Bandwidth limits: rows of the database, queues of the kernel, and traffic.

use std::{
    net::UdpSocket,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use contiv_model::{global::ArpMode, group::Rate, policy::Identity};
use netplugin::datapath::{Datapath as _, Group, Local, Network, Object, Op, ovs::DatapathType};
use testkit::{needs, wait_until};

use crate::node::{Node, Pod, SOON, addresses, kind, network, vlan, vxlan};

const IDENTITY: u32 = 7;
const BURST: u64 = 125_000;
/// A rate so low that the passed traffic is small compared with the offered traffic, also on a machine that is busy for seconds.
const LOW: u64 = 400_000;
const DATAGRAM: usize = 1400;
/// Headers of a frame with a datagram.
const HEADERS: u64 = 42;

pub(crate) fn limited(bits_per_second: Option<u64>) -> Object {
    let rate = bits_per_second.map(|bits_per_second| Rate { bits_per_second, burst_bytes: BURST });
    Object::Group(Group { rate, ..Group::new(Identity::try_from(IDENTITY).unwrap(), []) })
}

/// Creates pod `n` in the group, without setting its object.
pub(crate) fn member(node: &Node, network: &Network, n: u8) -> Result<Pod> {
    let mut pod = node.pod(network, n)?;
    let Object::Local(local) = &pod.object else { unreachable!() };
    pod.object = Object::Local(Local { identity: Some(Identity::try_from(IDENTITY)?), ..local.clone() });
    Ok(pod)
}

fn vsctl(node: &Node, words: &[&str]) -> Result<String> {
    node.switch.borrow().vsctl(&[&["--timeout=20"], words].concat())
}

/// Rate and burst of a port's policer, and those of its queue in bits; none without a limit.
fn rows(node: &Node, port: &str) -> Result<(String, Option<(String, String)>)> {
    let policing =
        vsctl(node, &["get", "interface", port, "ingress_policing_rate", "ingress_policing_burst"])?;
    let qos = vsctl(node, &["get", "port", port, "qos"])?;
    let queue = match qos.trim() {
        "[]" => None,
        qos => {
            let queue = vsctl(node, &["get", "qos", qos, "queues:0"])?;
            let get = |column| vsctl(node, &["get", "queue", queue.trim(), column]);
            let text = |value: String| value.trim().trim_matches('"').to_owned();
            Some((text(get("other_config:max-rate")?), text(get("other_config:burst")?)))
        }
    };
    Ok((policing.trim().replace('\n', " "), queue))
}

fn in_rows(kilobits: u64) -> (String, Option<(String, String)>) {
    (format!("{kilobits} 1000"), Some((format!("{kilobits}000"), "1000000".to_owned())))
}

/// Number of rows of QoS and of queues.
pub(crate) fn counts(node: &Node) -> Result<[usize; 2]> {
    let count = |table| {
        vsctl(node, &["--bare", "--columns=_uuid", "list", table]).map(|rows| rows.split_whitespace().count())
    };
    Ok([count("qos")?, count("queue")?])
}

#[test]
fn rows_follow_the_group() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("limit-rows", &[])?;
    node.converge()?;
    for (encap, first) in [(vxlan(5000), 1), (vlan(100), 3)] {
        let net = network("blue", encap, ArpMode::Proxy);
        let pods = [member(&node, &net, first)?, member(&node, &net, first + 1)?];
        let ports = [format!("vvport{first}"), format!("vvport{}", first + 1)];
        let off = ("0 0".to_owned(), None);
        // The first pod starts with the group, the other one joins it.
        node.add([Object::Network(net.clone()), limited(Some(4_194_000)), pods[0].object.clone()])?;
        node.add([pods[1].object.clone()])?;
        for port in &ports {
            assert_eq!(rows(&node, port)?, in_rows(4194));
            let class = node.namespace.output("tc", &["class", "show", "dev", port])?;
            assert!(class.contains(" rate 4194Kbit ceil 4194Kbit burst 12"), "{class}");
        }
        assert_eq!(counts(&node)?, [2, 2]);
        for rate in [Some(1_048_000), None, Some(80_000_000), Some(524_000)] {
            node.add([limited(rate)])?;
            let expected = rate.map_or(off.clone(), |rate| in_rows(rate / 1000));
            if rate != Some(80_000_000) {
                assert_eq!([rows(&node, &ports[0])?, rows(&node, &ports[1])?], [expected.clone(), expected]);
            }
            assert_eq!(counts(&node)?, if rate.is_some() { [2, 2] } else { [0, 0] });
            node.restart_agent();
            assert_eq!(node.converge()?, []);
            assert_eq!(node.writes(), 0, "after a restart with {rate:?}");
        }
        node.remove([limited(None).id()])?;
        assert_eq!([rows(&node, &ports[0])?, rows(&node, &ports[1])?], [off.clone(), off]);
        node.add([limited(Some(4_194_000))])?;
        node.remove(pods.iter().map(|pod| pod.object.id()))?;
        assert_eq!(counts(&node)?, [0, 0]);
        node.remove([limited(None).id(), Object::Network(net).id()])?;
        assert_eq!(node.converge()?, []);
    }
    Ok(())
}

#[test]
fn changed_rows_are_restored() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("limit-drift", &[])?;
    node.converge()?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    let [one, two] = [member(&node, &blue, 1)?, member(&node, &blue, 2)?];
    node.add([Object::Network(blue), limited(Some(4_194_000)), one.object.clone(), two.object.clone()])?;
    let qos = vsctl(&node, &["get", "port", "vvport1", "qos"])?.trim().to_owned();
    let queue = vsctl(&node, &["get", "qos", &qos, "queues:0"])?.trim().to_owned();
    for damage in [
        &["set", "interface", "vvport1", "ingress_policing_rate=0"][..],
        &["set", "interface", "vvport1", "ingress_policing_burst=1"],
        &["set", "queue", &queue, "other_config:max-rate=1"],
        &["set", "qos", &qos, "other_config:max-rate=1"],
        &["set", "qos", &qos, "type=linux-hfsc"],
        &["clear", "qos", &qos, "queues"],
        &["set", "port", "vvport1", "qos=@other", "--", "--id=@other", "create", "qos", "type=linux-htb"],
        &["clear", "port", "vvport1", "qos"],
        &[
            "--", "clear", "port", "vvport1", "qos", "--", "--all", "destroy", "queue", "--", "clear",
            "port", "vvport2", "qos", "--", "--all", "destroy", "qos",
        ],
    ] {
        vsctl(&node, damage)?;
        assert!(node.resync_needed(SOON), "{damage:?}");
        let found = node.converge()?;
        assert!(found.contains(&one.object.id()), "{damage:?}: {found:?}");
        assert_eq!([rows(&node, "vvport1")?, rows(&node, "vvport2")?], [in_rows(4194), in_rows(4194)]);
        let writes = node.writes();
        assert_eq!(node.converge()?, [], "{damage:?}");
        assert_eq!(node.writes(), writes, "{damage:?}");
    }
    assert_eq!(counts(&node)?, [2, 2]);
    // Rows of other programs stay.
    vsctl(&node, &["create", "qos", "type=linux-htb"])?;
    assert_eq!(node.converge()?, []);
    assert!(!node.resync_requested());
    // The change of a group is no drift.
    node.add([limited(Some(1_048_000))])?;
    assert!(!node.resync_requested());
    let mut datapath = node.datapath.borrow_mut();
    node.runtime.block_on(datapath.cleanup())?;
    assert_eq!(counts(&node)?, [1, 0]);
    Ok(())
}

/// The database refuses to delete a row that another one refers to.
#[test]
fn rows_that_an_operator_has_used_again_stay() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("limit-used", &[])?;
    node.converge()?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    let pods = [member(&node, &blue, 1)?, member(&node, &blue, 2)?];
    let [one, two] = pods.each_ref().map(|pod| pod.object.clone());
    node.add([Object::Network(blue), limited(Some(4_194_000)), one.clone(), two.clone()])?;
    let qos = vsctl(&node, &["get", "port", "vvport1", "qos"])?.trim().to_owned();
    vsctl(&node, &["set", "port", "contivVlanBridge", &format!("qos={qos}")])?;
    let other = vsctl(&node, &["get", "port", "vvport2", "qos"])?.trim().to_owned();
    let other = vsctl(&node, &["get", "qos", &other, "queues:0"])?.trim().to_owned();
    let created = format!("create qos type=linux-htb queues:1={other}");
    let used = format!("-- set port contivVxlanBridge qos=@q -- --id=@q {created}");
    vsctl(&node, &used.split(' ').collect::<Vec<_>>())?;

    for pod in [&one, &two] {
        node.desired.borrow_mut().remove(&pod.id());
    }
    assert!(node.apply(&[Op::Delete(one.id()), Op::Delete(two.id())])?.is_empty());
    assert_eq!(vsctl(&node, &["list-ports", "contivVxlanBridge"])?.trim(), "");
    assert_eq!(counts(&node)?, [2, 2]);
    assert_eq!(node.converge()?, []);
    // The operator no longer uses them.
    for bridge in ["contivVlanBridge", "contivVxlanBridge"] {
        vsctl(&node, &["clear", "port", bridge, "qos"])?;
    }
    node.observe()?;
    assert!(node.apply(&[Op::GarbageCollect])?.is_empty());
    assert_eq!(counts(&node)?, [1, 1]);
    Ok(())
}

/// Sends datagrams until `done`, or this many.
fn flood(from: &Pod, to: u8, count: usize, done: &AtomicBool) -> Result<()> {
    let socket = from.namespace.run(|| Ok(UdpSocket::bind(("0.0.0.0", 0))?))?;
    socket.connect((addresses(to).0, 9))?;
    for n in 0..count {
        // The peer refuses datagrams, which the socket reports.
        let _refused = socket.send(&[7; DATAGRAM]);
        if n % 16 == 15 {
            thread::sleep(Duration::from_millis(1));
        }
        if done.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(())
}

/// Number of bytes that a pod has received.
fn received(pod: &Pod) -> Result<u64> {
    let text = pod.namespace.run(|| Ok(std::fs::read_to_string("/proc/thread-self/net/dev")?))?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("eth0:"));
    let first = line.and_then(|line| line.split_whitespace().next());
    Ok(first.with_context(|| format!("no eth0 in {text}"))?.parse()?)
}

/// Sends far more than may pass, and compares what arrives in that time with the limit.
fn assert_held(from: &Pod, to: &Pod, n: u8) -> Result<()> {
    const DATAGRAMS: usize = 2000;
    let frame = DATAGRAM as u64 + HEADERS;
    let (start, before) = (Instant::now(), received(to)?);
    flood(from, n, DATAGRAMS, &AtomicBool::new(false))?;
    wait_until(SOON, "the burst", || Ok((received(to)? - before >= BURST - frame).then_some(())))?;
    let came = received(to)? - before;
    // A slow machine allows more, never less.
    let may = BURST + (start.elapsed().as_secs_f64() * (LOW / 8) as f64) as u64 + 32 * frame;
    ensure!(came <= may, "{came} bytes to pod {n}, {may} may have passed");
    ensure!(may < DATAGRAMS as u64 * frame / 2, "the machine is too slow: {may}");
    Ok(())
}

#[test]
fn traffic_is_limited_and_other_pods_are_not_affected() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    for encap in [vxlan(5000), vlan(100)] {
        let node = Node::new("limit-flow", &[])?;
        node.converge()?;
        let blue = network("blue", encap, ArpMode::Proxy);
        let one = member(&node, &blue, 1)?;
        node.add([Object::Network(blue.clone()), limited(Some(LOW)), one.object.clone()])?;
        let [two, three] = [node.run_pod(&blue, 2)?, node.run_pod(&blue, 3)?];
        two.reaches(3)?;
        two.reaches(1)?;
        assert_held(&two, &one, 1)?;
        // The kernel polices; the userspace datapath does not.
        if kind() == DatapathType::System {
            assert_held(&one, &two, 2)?;
        }
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let flood = scope.spawn(|| flood(&two, 1, usize::MAX, &done));
            let pings = three.namespace.ping(addresses(2).0.into(), 40, Duration::from_millis(25));
            done.store(true, Ordering::Relaxed);
            flood.join().unwrap()?;
            let lost = pings?.lost();
            ensure!(lost <= 2, "{lost} of 40 pings between other pods are lost");
            Ok(())
        })?;
        let [on_netdev, warnings] = [usize::from(kind() == DatapathType::Netdev), node.warnings().len()];
        assert_eq!(warnings, on_netdev, "{:?}", node.warnings());
    }
    Ok(())
}
