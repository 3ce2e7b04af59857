//! Restarts of the agent, without interruption of forwarding.

use std::{fs, os::unix::fs::MetadataExt as _, time::Duration};

use anyhow::{Context as _, Result};
use aya::programs::{
    SchedClassifier, TcAttachType,
    links::Link as _,
    tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle},
};
use contiv_abi::{
    ABI_VERSION, DropReason,
    maps::{ALL, FROM_OVERLAY, FROM_POD, FROM_UPLINK, Stage},
};
use netplugin::datapath::{
    Datapath as _, Object, ObjectId, Op, Peer,
    ebpf::{AttachMode, Ebpf},
};
use testkit::{Pinger, needs, packet::Packet, wait_until};

use crate::{
    flow_table,
    node::{Endpoint, Node, Pod, network, runtime, vtep, vxlan},
    run::run,
};

fn node_with_pods(
    label: &str,
    adjust: impl FnOnce(&mut netplugin::datapath::ebpf::Options),
) -> Result<(Node, Vec<Pod>)> {
    let mut node = Node::fresh(label, adjust)?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1).want_peer(2).want_peer(3);
    node.want(Object::Remote(Endpoint(9).remote(&n1, Some(vtep(2)))));
    let pods = [1, 2, 3].map(|n| node.pod(&n1, Endpoint(n)).unwrap());
    Ok((node, pods.into()))
}

/// The pool of pins: what other tests rely on.
#[test]
fn the_next_node_finds_loaded_programs_and_empty_maps() -> Result<()> {
    needs!(root());
    // No other test has nodes of this size.
    let node = || Node::with("pooled", |options| options.flows = 3000);
    let (n1, frames) = (network("n1.t", vxlan(10_001)), |to: Endpoint| {
        Packet::eth(to.mac(), Endpoint(1).mac()).ipv4(Endpoint(1).ip(), to.ip()).udp(1, 2).build()
    });
    let mut used = node()?;
    used.want_network(&n1);
    let pods = [used.pod(&n1, Endpoint(1))?, used.pod(&n1, Endpoint(2))?];
    used.converge()?;
    let port = &pods[0].local.port;
    run(&used, FROM_POD, port, &frames(Endpoint(2)))?.assert_sent_on(&frames(Endpoint(2)));
    let foreign =
        Packet::eth(Endpoint(2).mac(), Endpoint(9).mac()).ipv4(Endpoint(9).ip(), Endpoint(2).ip()).build();
    assert_eq!(run(&used, FROM_POD, port, &foreign)?.dropped.len(), 1);
    assert_eq!(flow_table::flows(&used)?.len(), 1);
    let (root, program) = (used.bpf_root().to_owned(), fs::metadata(used.pin(FROM_POD))?.ino());
    drop((used, pods));

    let mut next = node()?;
    assert_eq!(next.bpf_root(), root);
    next.converge()?;
    assert_eq!(fs::metadata(next.pin(FROM_POD))?.ino(), program, "the programs were loaded again");
    assert_eq!((flow_table::flows(&next)?.len(), flow_table::slots(&next)?), (0, 0));
    assert_eq!(next.drops()?, [].into());
    // The metrics have all reasons from the start.
    let none: Vec<_> = DropReason::ALL.iter().map(|reason| (reason.as_str(), 0)).collect();
    assert_eq!(next.datapath.stats().drops, none);
    next.want_network(&n1);
    let pods = [next.pod(&n1, Endpoint(1))?, next.pod(&n1, Endpoint(2))?];
    next.converge()?;
    run(&next, FROM_POD, &pods[0].local.port, &frames(Endpoint(2)))?.assert_sent_on(&frames(Endpoint(2)));
    Ok(())
}

#[test]
fn a_restart_adopts_without_a_write_or_a_lost_ping() -> Result<()> {
    needs!(root(), binary("ping"));
    let (mut node, pods) = node_with_pods("adopt", |_| {})?;
    node.converge()?;
    assert!(node.datapath.writes() > 0);
    let pinger = Pinger::start(&pods[0].ns, pods[1].ip(), Duration::from_millis(10))?;
    wait_until(Duration::from_secs(5), "pings", || Ok((pinger.answers() > 20).then_some(())))?;
    for _ in 0..3 {
        node.restart();
        let observed = node.observe()?;
        assert_eq!((observed.in_sync.len(), observed.orphans), (node.desired.len(), 0));
        // Setting existing objects writes nothing.
        let ops: Vec<Op> = node.desired.iter().map(|(_, object)| Op::Set(object.clone())).collect();
        assert!(node.apply(&ops)?.is_empty());
        assert!(node.apply(&[Op::GarbageCollect])?.is_empty());
        assert_eq!(node.datapath.writes(), 0);
    }
    let answers = pinger.answers();
    wait_until(Duration::from_secs(5), "more pings", || Ok((pinger.answers() > answers + 20).then_some(())))?;
    let ping = pinger.finish(Duration::from_secs(5))?;
    assert_eq!(ping.lost(), 0, "{ping:?}");
    Ok(())
}

/// An agent that was killed after it had stopped the datapath is followed by one that may have no store.
#[test]
fn stopped_programs_go_on_as_they_were() -> Result<()> {
    needs!(root(), binary("ping"));
    let (mut node, pods) = node_with_pods("resume", |_| {})?;
    node.converge()?;
    node.stop()?;
    assert!(node.is_passive()?);
    assert_eq!(pods[0].ns.ping(pods[1].ip(), 1, Duration::from_millis(10))?.received, 0);
    node.restart();
    node.resume()?;
    assert!(!node.is_passive()?);
    // The pod repeats the ARP request that was lost after a second.
    wait_until(Duration::from_secs(5), "an answer", || {
        let answered = pods[0].ns.ping(pods[1].ip(), 1, Duration::from_millis(10))?.received == 1;
        Ok(answered.then_some(()))
    })
}

#[test]
fn programs_of_another_build_are_replaced_in_place() -> Result<()> {
    needs!(root(), binary("ping"));
    let (mut node, pods) = node_with_pods("upgrade", |_| {})?;
    node.converge()?;
    let pinger = Pinger::start(&pods[0].ns, pods[1].ip(), Duration::from_millis(10))?;
    wait_until(Duration::from_secs(5), "pings", || Ok((pinger.answers() > 20).then_some(())))?;
    // Pretend that another build has pinned the programs.
    let build = node.datapath.maps_directory().join("ctv_build");
    let mut map: aya::maps::Array<_, [u8; 16]> =
        aya::maps::Map::from_map_data(aya::maps::MapData::from_pin(build)?)?.try_into()?;
    map.set(0, [1; 16], 0)?;
    let old = program_id(&node)?;
    node.restart();
    let observed = node.observe()?;
    // The program array of the previous build.
    assert_eq!(observed.orphans, 1);
    assert_ne!(program_id(&node)?, old);
    // Links have the new program already; filters get it when their endpoint is set.
    if node.datapath.inspect()["attachment"] == "tcx" {
        assert_eq!(observed.in_sync.len(), node.desired.len());
    }
    node.converge()?;
    let answers = pinger.answers();
    wait_until(Duration::from_secs(5), "more pings", || Ok((pinger.answers() > answers + 20).then_some(())))?;
    let ping = pinger.finish(Duration::from_secs(5))?;
    assert_eq!(ping.lost(), 0, "{ping:?}");
    // Adopted from now on.
    node.restart();
    node.observe()?;
    assert_eq!(node.datapath.writes(), 0);
    Ok(())
}

fn program_id(node: &Node) -> Result<u32> {
    Ok(SchedClassifier::from_pin(node.pin(FROM_POD))?.info()?.id())
}

#[test]
fn drift_is_detected_and_repaired() -> Result<()> {
    needs!(root(), binary("ping"));
    let (mut node, mut pods) = node_with_pods("drift", |_| {})?;
    node.converge()?;
    // Recreate an interface under the same name with another index, stop desiring an object, and delete the VXLAN
    // device.
    let gone = pods.remove(0);
    node.ns.ip(&format!("link del {}", gone.local.port))?;
    node.desired.remove(&ObjectId::Peer(vtep(3).into()));
    node.ns.ip("link del contivvx0")?;
    node.restart();
    let observed = node.observe()?;
    assert!(!observed.in_sync.contains(&Object::Local(gone.local.clone()).id()));
    // Networks, the peer list and the pod's entries are all out of sync.
    assert!(observed.orphans > 0);

    node.desired.remove(&Object::Local(gone.local).id());
    node.converge()?;
    let ping = pods[0].ns.ping(pods[1].ip(), 3, Duration::from_millis(10))?;
    assert_eq!(ping.received, 3);
    Ok(())
}

#[test]
fn a_deleted_device_requests_a_resync() -> Result<()> {
    needs!(root());
    let (mut node, _pods) = node_with_pods("disturb", |_| {})?;
    let Node { ns, datapath, desired, .. } = &mut node;
    let name = ns.name().to_owned();
    ns.run(|| {
        runtime()?.block_on(async {
            datapath.observe(desired).await?;
            let quiet = tokio::time::timeout(Duration::from_millis(50), datapath.resync_needed()).await;
            assert!(quiet.is_err(), "disturbed for no reason");
            tokio::process::Command::new("ip")
                .args(["-n", &name, "link", "del", "contivvx0"])
                .status()
                .await?;
            tokio::time::timeout(Duration::from_secs(5), datapath.resync_needed()).await?;
            Ok(())
        })
    })?;
    node.converge()
}

#[test]
fn a_detached_program_is_attached_again() -> Result<()> {
    needs!(root(), binary("ping"));
    let (mut node, pods) = node_with_pods("unhook", |_| {})?;
    node.converge()?;
    let ifindex = node.ifindex(&pods[0].local.port)?;
    if node.datapath.inspect()["attachment"] == "tcx" {
        fs::remove_file(node.bpf_root().join(format!("v{ABI_VERSION}/node/links/pod-{ifindex}")))?;
    } else {
        node.ns.output("tc", &["qdisc", "del", "dev", &pods[0].local.port, "clsact"])?;
    }
    let observed = node.observe()?;
    assert!(!observed.in_sync.contains(&Object::Local(pods[0].local.clone()).id()));
    node.converge()?;
    let ping = pods[0].ns.ping(pods[1].ip(), 3, Duration::from_millis(10))?;
    assert_eq!(ping.received, 3);
    Ok(())
}

/// Turns everything on the node into state of the previous ABI version. Returns the datapath that created it.
pub(crate) fn age(node: &mut Node, links: &[&str]) -> Result<Ebpf> {
    let (ours, theirs) = (format!("v{ABI_VERSION}"), format!("v{}", ABI_VERSION - 1));
    if node.datapath.inspect()["attachment"] == "clsact" {
        // The handle encodes the ABI version.
        let [ours, theirs] = [0xbe, 0xbd].map(|layout_0| TcHandle::new(0, layout_0 + ABI_VERSION as u16));
        for link in links {
            let pin = node.pin(if link.starts_with("vvport") { FROM_POD } else { FROM_OVERLAY });
            let shown = node.ns.output("tc", &["filter", "show", "dev", link, "ingress"])?;
            let words = || shown.split_whitespace();
            let priority = words().skip_while(|word| *word != "pref").nth(1).context("no filter")?.parse()?;
            node.ns.run(|| {
                let mut program = SchedClassifier::from_pin(pin)?;
                let options = NlOptions { priority, handle: theirs, classid: None };
                let options = TcAttachOptions::Netlink(options);
                let id = program.attach_with_options(link, TcAttachType::Ingress, options)?;
                std::mem::forget(program.take_link(id)?);
                let ours = SchedClassifierLink::attached(link, TcAttachType::Ingress, priority, ours, None)?;
                Ok(ours.detach()?)
            })?;
        }
    }
    fs::rename(node.bpf_root().join(&ours), node.bpf_root().join(&theirs))?;
    Ok(node.restart())
}

/// Takes over from the previous ABI version without a lost ping.
fn takes_over(node: &mut Node, links: &[&str], from: &Pod, to: &Pod) -> Result<()> {
    let pinger = Pinger::start(&from.ns, to.ip(), Duration::from_millis(5))?;
    wait_until(Duration::from_secs(5), "pings", || Ok((pinger.answers() > 20).then_some(())))?;
    age(node, links)?;
    node.converge()?;
    let layouts: Vec<_> = fs::read_dir(node.bpf_root())?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with('v'))
        .collect();
    assert_eq!(layouts, [format!("v{ABI_VERSION}")]);
    let answers = pinger.answers();
    let more = || Ok((pinger.answers() > answers + 20).then_some(()));
    wait_until(Duration::from_secs(5), "more pings", more)?;
    let ping = pinger.finish(Duration::from_secs(5))?;
    assert_eq!(ping.lost(), 0, "{ping:?}");
    for link in links {
        wait_until(Duration::from_secs(5), "one program", || Ok((attached(node, link)? == 1).then_some(())))?;
    }
    Ok(())
}

#[test]
fn programs_of_an_older_abi_version_forward_until_the_maps_are_filled() -> Result<()> {
    needs!(root(), binary("ping"));
    for mode in [|_: &mut _| {}, Node::clsact] {
        let (mut node, pods) = node_with_pods("abi", mode)?;
        node.converge()?;
        for _ in 0..2 {
            takes_over(&mut node, &["vvport1", "vvport2", "vvport3", "contivvx0"], &pods[0], &pods[1])?;
        }
    }
    Ok(())
}

#[test]
fn an_older_abi_version_forwards_tunnel_frames_until_the_maps_are_filled() -> Result<()> {
    needs!(root(), binary("ping"));
    for mode in [AttachMode::Auto, AttachMode::Clsact] {
        let (mut a, mut b) = Node::pair_with("abi", |options| options.attach_mode = mode)?;
        let n1 = network("n1.t", vxlan(10_001));
        let (pod_a, pod_b) = (a.pod(&n1, Endpoint(1))?, b.pod(&n1, Endpoint(2))?);
        assert!(!a.is_left_behind()?);
        a.want_network(&n1).want_peer(2).want(Object::Remote(pod_b.endpoint.remote(&n1, Some(vtep(2)))));
        b.want_network(&n1).want_peer(1).want(Object::Remote(pod_a.endpoint.remote(&n1, Some(vtep(1)))));
        // Enough entries that filling the maps takes a while.
        for n in 0..300_u32 {
            let mut remote = Endpoint(9).remote(&n1, Some(vtep(1)));
            let ip = std::net::Ipv4Addr::from(0x0a02_0000 + n);
            (remote.id, remote.addresses) = (format!("n1.t-far{n}").as_str().into(), ip.into());
            remote.mac = contiv_model::mac::Mac::of_endpoint(ip);
            b.want(Object::Remote(remote));
        }
        a.converge()?;
        assert!(a.is_left_behind()?, "{mode:?}");
        b.converge()?;
        for _ in 0..2 {
            takes_over(&mut b, &["vvport1", "contivvx0"], &pod_a, &pod_b)?;
        }
    }
    Ok(())
}

#[test]
fn pins_of_an_interrupted_first_start_are_adopted() -> Result<()> {
    needs!(root(), binary("ping"));
    let (mut node, pods) = node_with_pods("half", |_| {})?;
    node.converge()?;
    let stages = Stage::ALL.iter().map(|stage| stage.program());
    let programs: Vec<&str> = stages.chain([FROM_POD, FROM_OVERLAY, FROM_UPLINK]).collect();
    let order: Vec<String> = ALL
        .iter()
        .map(|map| format!("maps/{map}"))
        .chain(programs.iter().map(|program| format!("programs/{program}")))
        .collect();
    // The process died after this number of pins, or before it recorded the build.
    for made in [1, 7, ALL.len() - 1, ALL.len(), ALL.len() + 1, order.len() - 1, order.len()] {
        let folder = node.bpf_root().join(format!("v{ABI_VERSION}/node"));
        for pin in &order[made..] {
            fs::remove_file(folder.join(pin))?;
        }
        for link in fs::read_dir(folder.join("links"))? {
            fs::remove_file(link?.path())?;
        }
        if made >= ALL.len() {
            let build = folder.join("maps/ctv_build");
            let mut map: aya::maps::Array<_, [u8; 16]> =
                aya::maps::Map::from_map_data(aya::maps::MapData::from_pin(build)?)?.try_into()?;
            map.set(0, [0; 16], 0)?;
        }
        node.restart();
        node.converge()?;
        let ping = pods[0].ns.ping(pods[1].ip(), 3, Duration::from_millis(10))?;
        assert_eq!(ping.received, 3, "after {made} pins");
        node.restart();
        node.observe()?;
        assert_eq!(node.datapath.writes(), 0, "after {made} pins");
    }
    Ok(())
}

#[test]
fn deleting_everything_leaves_empty_maps() -> Result<()> {
    needs!(root());
    let (mut node, _pods) = node_with_pods("delete", |_| {})?;
    node.converge()?;
    let ops: Vec<Op> = node.desired.iter().map(|(id, _)| Op::Delete(id.clone())).collect();
    let ops: Vec<Op> = ops.into_iter().rev().collect();
    assert!(node.apply(&ops)?.is_empty());
    let writes = node.datapath.writes();
    // A repeated deletion succeeds and writes nothing.
    assert!(node.apply(&ops)?.is_empty());
    assert_eq!(node.datapath.writes(), writes);
    node.desired = netplugin::datapath::Desired::default();
    let observed = node.observe()?;
    assert_eq!((observed.in_sync.len(), observed.orphans), (0, 0));
    let entries = node.datapath.inspect()["entries"].clone();
    assert!(entries.as_object().unwrap().values().all(|count| count == 0), "{entries}");
    Ok(())
}

#[test]
fn invalid_objects_fail_alone() -> Result<()> {
    needs!(root());
    let (mut node, pods) = node_with_pods("refuse", |_| {})?;
    node.converge()?;
    let mut lost = pods[0].local.clone();
    (lost.id, lost.port) = ("n1.t-lost".into(), "vvport99".into());
    let other_port = Object::Peer(Peer::new(vtep(8), 4790));
    let good = Object::Peer(Peer::new(vtep(7), 4789));
    let ops = [Op::Set(Object::Local(lost)), Op::Set(other_port), Op::Set(good)];
    let failed = node.apply(&ops)?;
    let said: Vec<_> =
        failed.iter().map(|f| (f.index, format!("{:#}", anyhow::Error::msg(chain(&f.error))))).collect();
    assert_eq!(
        said,
        [
            (0, "ebpf datapath: set local endpoint n1.t-lost: no interface vvport99".to_owned()),
            (
                1,
                "ebpf datapath: set peer 192.0.2.8: the node uses VXLAN port 4790, this node 4789; configure the same \
                 port on all nodes"
                    .to_owned()
            ),
        ]
    );
    Ok(())
}

#[test]
fn a_full_map_is_named() -> Result<()> {
    needs!(root());
    let mut node = Node::fresh("full", |_| {})?;
    let peer = |n: u32| {
        let vtep = std::net::Ipv4Addr::from(0x0a00_0000 + n);
        Object::Peer(Peer::new(vtep, 4789))
    };
    let capacity = u32::try_from(contiv_abi::maps::PEERS_CAPACITY)?;
    for n in 0..capacity {
        node.want(peer(n));
    }
    node.converge()?;
    let failed = node.apply(&[Op::Set(peer(capacity))])?;
    let said = chain(&failed[0].error);
    assert!(said.contains("the map ctv_peers, which is full (8192 entries)"), "{said}");
    // Existing entries are unchanged, and a removal frees capacity.
    let observed = node.observe()?;
    assert_eq!((observed.in_sync.len(), observed.orphans), (node.desired.len(), 0));
    assert!(node.apply(&[Op::Delete(peer(0).id()), Op::Set(peer(capacity))])?.is_empty());
    Ok(())
}

#[test]
fn the_pins_are_locked_by_one_agent() -> Result<()> {
    needs!(root());
    let mut node = Node::fresh("alone", |_| {})?;
    node.want(Object::Network(network("n1.t", vxlan(10))));
    node.converge()?;
    let other = node.restart();
    let refused = chain(node.observe().unwrap_err().as_ref());
    assert!(refused.contains("another netplugin uses it; stop that process first"), "{refused}");
    let refused = chain(node.cleanup().unwrap_err().as_ref());
    assert!(refused.contains("another netplugin uses it; stop that process first"), "{refused}");
    // However the other process ended.
    drop(other);
    let observed = node.observe()?;
    assert_eq!((observed.in_sync.len(), node.datapath.writes()), (1, 0));
    node.cleanup()
}

#[test]
fn a_missing_privilege_is_named() -> Result<()> {
    needs!(root());
    let mut node = Node::fresh("caps", |_| {})?;
    let Node { ns, datapath, desired, .. } = &mut node;
    let error = ns.run(|| {
        drop_capabilities()?;
        Ok(runtime()?.block_on(datapath.observe(desired)).unwrap_err())
    })?;
    let said = chain(&error);
    assert!(said.contains("(the agent needs CAP_BPF and CAP_NET_ADMIN)"), "{said}");
    // With the capability, the same value works.
    node.converge()
}

/// Drops the capabilities of the calling thread permanently.
fn drop_capabilities() -> Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header { version: VERSION_3, pid: 0 };
    let none = [0_u32; 6];
    // SAFETY: both pointers refer to live structures with the lengths of version 3.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const none) };
    nix::errno::Errno::result(result)?;
    Ok(())
}

pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[test]
fn cleanup_removes_everything() -> Result<()> {
    needs!(root());
    for (label, adjust) in [("clean-tcx", (|_| {}) as fn(&mut _)), ("clean-cls", Node::clsact)] {
        let (mut node, _pods) = node_with_pods(label, adjust)?;
        node.converge()?;
        assert!(node.ns.links()?.contains(&"contivvx0".to_owned()));
        node.restart();
        node.cleanup()?;
        assert!(!node.ns.links()?.contains(&"contivvx0".to_owned()));
        // The kernel creates files such as `maps.debug` in every BPF file system.
        assert!(fs::read_dir(node.bpf_root())?.all(|entry| entry.unwrap().path().is_file()));
        // The kernel detaches links shortly after their last reference is closed.
        wait_until(Duration::from_secs(5), "no program", || {
            Ok((attached(&node, "vvport1")? == 0).then_some(()))
        })?;
        // A cleanup without anything to remove succeeds.
        node.restart();
        node.cleanup()?;
    }
    Ok(())
}

/// Number of programs on the ingress of a link, TCX and clsact.
fn attached(node: &Node, link: &str) -> Result<usize> {
    // Older kernels do not support the query.
    let tcx = node.ns.run(|| Ok(SchedClassifier::query_tcx(link, TcAttachType::Ingress)))?;
    let tcx = tcx.map_or(0, |(_, programs)| programs.len());
    let filters = node.ns.output("tc", &["filter", "show", "dev", link, "ingress"]).unwrap_or_default();
    Ok(tcx + filters.lines().filter(|line| line.contains("ctv_")).count())
}

#[test]
fn kernels_without_tcx_use_clsact_filters() -> Result<()> {
    needs!(root(), binary("ping"));
    let (mut node, pods) = node_with_pods("clsact", Node::clsact)?;
    node.converge()?;
    assert_eq!(attached(&node, "vvport1")?, 1);
    let ping = pods[0].ns.ping(pods[1].ip(), 3, Duration::from_millis(10))?;
    assert_eq!(ping.received, 3);
    node.restart();
    let observed = node.observe()?;
    assert_eq!((observed.in_sync.len(), observed.orphans), (node.desired.len(), 0));
    assert_eq!(node.datapath.writes(), 0);
    let pod = Object::Local(pods[2].local.clone()).id();
    assert!(node.apply(&[Op::Delete(pod.clone())])?.is_empty());
    assert_eq!(attached(&node, "vvport3")?, 0);
    // The filter of a pod that is deleted while no agent runs is an orphan.
    assert!(node.apply(&[Op::Set(Object::Local(pods[2].local.clone()))])?.is_empty());
    assert_eq!(attached(&node, "vvport3")?, 1);
    node.desired.remove(&pod);
    node.restart();
    node.converge()?;
    assert_eq!(attached(&node, "vvport3")?, 0);
    Ok(())
}
