//! Several uplinks: one carries the VLAN networks, the others stand by.
//!
//! ```text
//!   pod -- node -- trunk0 ======= wire0 -- learning bridge -- edge ======= host0 (outside)
//!               \- trunk1 ======= wire1 -/
//! ```

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use contiv_abi::{DropReason, maps::FROM_UPLINK};
use netplugin::datapath::{Datapath as _, Object};
use testkit::{
    Netns,
    capture::Tap,
    needs,
    packet::{BROADCAST, Packet},
    wait_until,
};
use tokio::runtime::Runtime;

use crate::{
    node::{Endpoint, Node, Pod, network, runtime, vlan, vtep, vxlan},
    run::run,
};

const HERE: Endpoint = Endpoint(1);
const THERE: Endpoint = Endpoint(2);
const TAG: u16 = 100;
const TIMEOUT: Duration = Duration::from_secs(5);
const UPLINKS: [&str; 2] = ["trunk0", "trunk1"];

struct Rig {
    node: Node,
    pod: Pod,
    switch: Netns,
    outside: Netns,
}

impl Rig {
    fn new(label: &str) -> Result<Rig> {
        Rig::with(label, &UPLINKS, |_| Ok(()))
    }

    /// A rig whose node uses other interfaces, which `prepare` makes from `UPLINKS`.
    fn with(label: &str, uplinks: &[&str], prepare: impl FnOnce(&Netns) -> Result<()>) -> Result<Rig> {
        let names = uplinks.iter().map(|name| (*name).to_owned()).collect();
        let mut node = Node::with(label, |options| options.uplinks = names)?;
        let (switch, outside) = (Netns::new(&format!("{label}-sw"))?, Netns::new(&format!("{label}-out"))?);
        switch.ip("link add br0 type bridge")?;
        switch.up("br0")?;
        for (port, other, link) in
            [("wire0", &node.ns, "trunk0"), ("wire1", &node.ns, "trunk1"), ("edge", &outside, "host0")]
        {
            switch.veth(port, other, link)?;
            for (ns, link) in [(&switch, port), (other, link)] {
                ns.sysctl(&format!("net/ipv6/conf/{link}/disable_ipv6"), "1")?;
                ns.up(link)?;
            }
            switch.ip(&format!("link set {port} master br0"))?;
        }
        prepare(&node.ns)?;
        let n1 = network("n1.t", vlan(TAG));
        node.want_network(&n1).want(Object::Remote(THERE.remote(&n1, None)));
        let pod = node.pod(&n1, HERE)?;
        node.converge()?;
        Ok(Rig { node, pod, switch, outside })
    }

    /// Watches the carriers as long as the returned value lives.
    fn watch(&mut self) -> Result<Runtime> {
        let Node { ns, datapath, desired, .. } = &mut self.node;
        ns.run(|| {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            runtime.block_on(datapath.observe(desired))?;
            Ok(runtime)
        })
    }

    fn active(&self) -> Result<u64> {
        self.node.datapath.inspect()["activeUplink"]["ifindex"].as_u64().context("no active uplink")
    }

    fn is_active(&self, link: &str) -> Result<bool> {
        Ok(self.active()? == u64::from(self.node.ifindex(link)?))
    }
}

/// A packet from the pod to the host outside, with and without the tag.
fn out(port: u16) -> [Packet; 2] {
    let packet = |frame: Packet| frame.ipv4(HERE.ip(), THERE.ip()).udp(port, 53);
    [Packet::eth(THERE.mac(), HERE.mac()), Packet::eth(THERE.mac(), HERE.mac()).vlan(TAG)].map(packet)
}

/// A packet from the host outside to the pod, with and without the tag.
fn into(to: [u8; 6], port: u16) -> [Packet; 2] {
    let packet = |frame: Packet| frame.ipv4(THERE.ip(), HERE.ip()).udp(port, 53);
    [Packet::eth(to, THERE.mac()), Packet::eth(to, THERE.mac()).vlan(TAG)].map(packet)
}

#[test]
fn only_the_active_uplink_takes_frames_of_the_networks() -> Result<()> {
    needs!(root());
    let rig = Rig::new("upls-one")?;
    assert!(rig.is_active("trunk0")?);
    let [plain, tagged] = into(HERE.mac(), 4000);
    // What the pod's kernel multicasts and the agent announces comes back on the other uplink, where it is dropped, and
    // counted while the program runs.
    let run_alone = |link: &str, frame: &Packet, drops: &[DropReason]| {
        wait_until(TIMEOUT, &format!("drops of {drops:?} only, on {link}"), || {
            let outcome = run(&rig.node, FROM_UPLINK, link, &frame.build())?;
            Ok((outcome.dropped == drops).then_some(outcome))
        })
    };
    run_alone("trunk0", &tagged, &[])?.assert_sent_on(&plain.build());
    run_alone("trunk1", &tagged, &[DropReason::StandbyUplink])?.assert_dropped(DropReason::StandbyUplink);
    // What is of no network stays the host's.
    assert_eq!(run_alone("trunk1", &plain, &[])?.bytes, plain.build());
    Ok(())
}

/// The bridge floods a broadcast to both uplinks, and what the pod sends comes back on the other one.
#[test]
fn frames_for_many_arrive_once_and_do_not_come_back() -> Result<()> {
    needs!(root());
    let rig = Rig::new("upls-many")?;
    let (pod, host) = (Tap::open(&rig.pod.ns, "eth0")?, Tap::open(&rig.outside, "host0")?);
    let request = |from: Endpoint, asked: Endpoint, frame: Packet| {
        frame.arp(1, (from.mac(), from.ip()), ([0; 6], asked.ip())).build()
    };
    host.send(&request(THERE, Endpoint(9), Packet::eth(BROADCAST, THERE.mac()).vlan(TAG)))?;
    let plain = request(THERE, Endpoint(9), Packet::eth(BROADCAST, THERE.mac()));
    pod.expect(TIMEOUT, "the request from outside", |bytes| (bytes == plain).then_some(()))?;
    pod.send(&request(HERE, Endpoint(9), Packet::eth(BROADCAST, HERE.mac())))?;
    let tagged = request(HERE, Endpoint(9), Packet::eth(BROADCAST, HERE.mac()).vlan(TAG));
    host.expect(TIMEOUT, "the request of the pod", |bytes| (bytes == tagged).then_some(()))?;
    // The last frame arrives after all copies of the others.
    let [last, tagged] = into(HERE.mac(), 4001);
    host.send(&tagged.build())?;
    let mut others = 0;
    pod.expect(TIMEOUT, "the last frame", |bytes| {
        others += u32::from(bytes != last.build());
        (bytes == last.build()).then_some(())
    })?;
    assert_eq!(others, 0, "more than one copy");
    Ok(())
}

/// Without the reconciler: the pod sends and receives by the other uplink, and switches learn its address there.
#[test]
fn another_uplink_takes_over_when_the_active_one_loses_its_carrier() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("upls-fail")?;
    let _watch = rig.watch()?;
    let (pod, host) = (Tap::open(&rig.pod.ns, "eth0")?, Tap::open(&rig.outside, "host0")?);
    let mut port = 1024;
    for (down, takes_over) in [("wire0", "trunk1"), ("wire1", "trunk0")] {
        rig.switch.ip(&format!("link set {down} down"))?;
        let lost = send_until_received(&pod, &host, &mut port)?;
        println!("{down} down: {lost} packets lost, one every two milliseconds");
        assert!(rig.is_active(takes_over)?);
        let announced = Packet::eth(BROADCAST, HERE.mac()).vlan(TAG).arp(
            2,
            (HERE.mac(), HERE.ip()),
            (BROADCAST, HERE.ip()),
        );
        let announced = announced.build();
        host.expect(TIMEOUT, "the announcement", |bytes| (bytes == announced).then_some(()))?;
        let [plain, tagged] = into(HERE.mac(), port);
        host.send(&tagged.build())?;
        pod.expect(TIMEOUT, "the reply", |bytes| (bytes == plain.build()).then_some(()))?;
        // The carrier is back; the active uplink stays.
        rig.switch.up(down)?;
    }
    assert!(rig.is_active("trunk0")?);
    Ok(())
}

/// Sends packets from the pod until one arrives outside. Returns the number of those that were lost.
fn send_until_received(pod: &Tap, host: &Tap, port: &mut u16) -> Result<u32> {
    let (mut lost, start) = (0, Instant::now());
    loop {
        *port += 1;
        let [plain, tagged] = out(*port);
        pod.send(&plain.build())?;
        let arrived = |bytes: &[u8]| (bytes == tagged.build()).then_some(());
        if host.expect(Duration::from_millis(1), "the packet", arrived).is_ok() {
            return Ok(lost);
        }
        lost += 1;
        ensure!(start.elapsed() < TIMEOUT, "{lost} packets were lost");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The kernel changes the active interface of the bond; the agent does nothing.
#[test]
fn a_bond_of_the_kernel_fails_over_by_itself() -> Result<()> {
    needs!(root(), link_type("bond"));
    let rig = Rig::with("upls-bond", &["bond0"], |ns| {
        ns.ip("link add bond0 type bond mode active-backup miimon 10 num_grat_arp 0")?;
        for uplink in UPLINKS {
            ns.ip(&format!("link set {uplink} down"))?;
            ns.ip(&format!("link set {uplink} master bond0"))?;
        }
        ns.sysctl("net/ipv6/conf/bond0/disable_ipv6", "1")?;
        ns.up("bond0")
    })?;
    assert!(rig.is_active("bond0")?);
    let (pod, host) = (Tap::open(&rig.pod.ns, "eth0")?, Tap::open(&rig.outside, "host0")?);
    let mut port = 1024;
    // The bond takes up its interfaces some time after they are up.
    send_until_received(&pod, &host, &mut port)?;
    for down in ["wire0", "wire1"] {
        rig.switch.ip(&format!("link set {down} down"))?;
        let lost = send_until_received(&pod, &host, &mut port)?;
        println!("{down} of the bond down: {lost} packets lost, one every two milliseconds");
        let [plain, tagged] = into(HERE.mac(), port);
        host.send(&tagged.build())?;
        pod.expect(TIMEOUT, "the reply", |bytes| (bytes == plain.build()).then_some(()))?;
        rig.switch.up(down)?;
        // The bond has seen that it is back.
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// A fresh agent keeps the active uplink: pods notice nothing of a restart.
#[test]
fn a_restarted_agent_keeps_the_active_uplink() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("upls-restart")?;
    rig.switch.ip("link set wire0 down")?;
    rig.node.converge()?;
    rig.switch.up("wire0")?;
    rig.node.restart();
    rig.node.converge()?;
    assert!(rig.is_active("trunk1")?);
    Ok(())
}

/// The names of the missing uplinks in the warnings, and whether others are in use.
fn missing(node: &Node) -> Vec<(String, bool)> {
    let warnings = node.datapath.warnings().into_iter();
    let missing = warnings.filter_map(|warning| {
        let (name, effect) = warning.strip_prefix("VLAN uplink ")?.split_once(": does not exist; ")?;
        Some((name.to_owned(), effect.contains("use the other uplinks")))
    });
    missing.collect()
}

/// Without any uplink, the node has its other networks, and takes changes.
#[test]
fn a_missing_uplink_is_reported_and_used_when_it_appears() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("upls-missing")?;
    rig.node.ns.ip("link del trunk0")?;
    rig.node.converge()?;
    assert!(rig.is_active("trunk1")?);
    assert_eq!(missing(&rig.node), [("trunk0".to_owned(), true)]);
    rig.node.ns.ip("link del trunk1")?;
    let n2 = network("n2.t", vxlan(10_002));
    rig.node.want_network(&n2).want(Object::Remote(Endpoint(3).remote(&n2, Some(vtep(2)))));
    rig.node.converge()?;
    assert_eq!(rig.active()?, 0);
    assert_eq!(missing(&rig.node), UPLINKS.map(|name| (name.to_owned(), false)));

    let (ns, switch) = (rig.node.ns.clone(), rig.switch.clone());
    let Node { datapath, desired, .. } = &mut rig.node;
    ns.run(|| {
        runtime()?.block_on(async {
            datapath.observe(desired).await?;
            switch.veth("wire1", &ns, "trunk1")?;
            let needed = tokio::time::timeout(TIMEOUT, datapath.resync_needed()).await;
            needed.context("a full resync after the uplink has appeared")
        })
    })?;
    rig.node.converge()?;
    assert!(rig.is_active("trunk1")?);
    assert_eq!(missing(&rig.node), [("trunk0".to_owned(), true)]);
    Ok(())
}

/// What another datapath forwards on VLANs would be cut off. An agent whose programs forward goes on with what it has.
#[test]
fn programs_take_over_from_another_datapath_with_an_uplink_only() -> Result<()> {
    needs!(root());
    let mut node = Node::with("upls-prepare", |options| options.uplinks = UPLINKS.map(str::to_owned).into())?;
    let error = node.prepare().unwrap_err();
    assert!(format!("{error:#}").contains("find the VLAN uplink trunk0, trunk1"), "{error:#}");
    let other = Netns::new("upls-other")?;
    other.veth("wire1", &node.ns, "trunk1")?;
    node.prepare()?;
    node.want_network(&network("n1.t", vlan(TAG)));
    node.converge()?;
    // Filters have no pins that tell of them.
    if node.datapath.inspect()["attachment"] == "tcx" {
        node.ns.ip("link del trunk1")?;
        node.restart();
        node.prepare()?;
    }
    Ok(())
}

#[test]
fn preparation_fails_without_any_uplink_and_loads_nothing() -> Result<()> {
    needs!(root());
    let mut node = Node::fresh("upls-none", |options| options.uplinks = UPLINKS.map(str::to_owned).into())?;
    let error = node.prepare().unwrap_err();
    let text = format!("{error:#}");
    ensure!(text.contains("VLAN uplink trunk0, trunk1; check --vlan-uplinks"), "{text}");
    ensure!(!node.datapath.maps_directory().exists(), "maps are created");
    node.ns.ip("link add trunk1 type veth peer name wire1")?;
    node.prepare()?;
    ensure!(node.datapath.maps_directory().exists(), "no maps are created");
    Ok(())
}

/// The other datapath has made the uplinks promiscuous, and goes on.
#[test]
fn programs_that_stand_by_leave_the_uplinks_as_they_were() -> Result<()> {
    needs!(root());
    let mut node = Node::fresh("upls-beside", |options| options.uplinks = vec!["trunk0".into()])?;
    node.ns.ip("link add trunk0 type veth peer name wire0")?;
    node.ns.ip("link set trunk0 up promisc on")?;
    for remover in ["the agent that has attached them", "the next agent"] {
        drop(node.restart());
        node.datapath.stand_by();
        node.observe()?;
        if remover == "the next agent" {
            drop(node.restart());
        }
        node.cleanup()?;
        let link = node.ns.ip("-o link show trunk0")?;
        ensure!(link.contains("PROMISC"), "removed by {remover}: {link}");
    }
    Ok(())
}
