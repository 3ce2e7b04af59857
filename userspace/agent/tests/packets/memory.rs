//! Memory of a node's maps, as the kernel accounts it.

use std::{
    fs,
    os::fd::{AsFd as _, AsRawFd as _},
};

use anyhow::{Context as _, Result};
use aya::{maps::MapData, util::nr_cpus};
use contiv_abi::maps::{ALL, RULES};
use netplugin::datapath::{
    Datapath as _, Object,
    ebpf::{Ebpf, Options, Sizes},
};
use testkit::needs;

use crate::node::{Endpoint, Node, Pod, network, vtep, vxlan};

const MEBIBYTE: u64 = 1 << 20;

/// Bytes of each pinned map.
fn memory(node: &Node) -> Result<Vec<(&'static str, u64)>> {
    let of = |name: &'static str| {
        let map = MapData::from_pin(node.datapath.maps_directory().join(name))?;
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", map.fd().as_fd().as_raw_fd()))?;
        let line = info.lines().find_map(|line| line.strip_prefix("memlock:")).context("no memlock")?;
        Ok((name, line.trim().parse()?))
    };
    ALL.iter().map(|name| of(name)).collect()
}

/// Ten pods on a network with 100 remote endpoints.
fn node(label: &str, adjust: impl FnOnce(&mut Options)) -> Result<(Node, Vec<Pod>, u64)> {
    let mut node = Node::with(label, adjust)?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1).want_peer(2);
    for number in 100..200 {
        node.want(Object::Remote(Endpoint(number).remote(&n1, Some(vtep(2)))));
    }
    let pods: Vec<Pod> = (1..=10).map(|number| node.pod(&n1, Endpoint(number))).collect::<Result<_>>()?;
    node.converge()?;
    let mut maps = memory(&node)?;
    let sum = maps.iter().map(|(_, bytes)| bytes).sum();
    maps.sort_unstable_by_key(|(_, bytes)| u64::MAX - bytes);
    println!("{label}: {} possible CPUs, {:.1} MiB", nr_cpus().map_err(|(_, error)| error)?, mebibytes(sum));
    for (name, bytes) in maps.iter().filter(|(_, bytes)| *bytes > MEBIBYTE / 16) {
        println!("  {name:<15} {:>8.2} MiB", mebibytes(*bytes));
    }
    Ok((node, pods, sum))
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / MEBIBYTE as f64
}

#[test]
fn an_idle_node_with_ten_pods_holds_less_than_forty_mebibytes() -> Result<()> {
    needs!(root());
    let (.., idle) = node("mem-idle", |_| {})?;
    assert!(idle <= 40 * MEBIBYTE, "{idle} bytes");
    Ok(())
}

/// Prints the memory of large configurations.
#[test]
fn maps_have_the_configured_sizes() -> Result<()> {
    needs!(root());
    let (.., services) = node("mem-services", |options| options.sizes.services = 30_000)?;
    let (.., flows) = node("mem-flows", |options| options.flows = 500_000)?;
    let (.., rules) = node("mem-rules", |options| options.sizes.rules = 262_144)?;
    let (.., small) = node("mem-small", |options| {
        options.flows = 1024;
        let sizes = &mut options.sizes;
        (sizes.endpoints, sizes.services, sizes.backends, sizes.rules) = (1024, 64, 1024, 1024);
    })?;
    assert!(small < services && small < flows && small < rules);
    // 217 bytes for each flow, 128 for each node of a tree.
    assert!(flows > small + 500_000 * 200 && rules > small + 262_144 * 128);
    Ok(())
}

#[test]
fn existing_maps_keep_their_sizes_and_a_warning_names_the_flag() -> Result<()> {
    needs!(root());
    let (mut node, _pods, _) = node("mem-keep", |_| {})?;
    // Hash maps grow with what the pods' kernels send.
    let rules =
        |node: &Node| Ok::<_, anyhow::Error>(memory(node)?.into_iter().find(|(name, _)| *name == RULES));
    let before = rules(&node)?;
    assert!(before.is_some_and(|(_, bytes)| bytes > MEBIBYTE), "{before:?}");
    assert_eq!(node.datapath.warnings(), [""; 0]);
    let sizes = Sizes { services: 1024, rules: 65_536, ..Sizes::default() };
    node.datapath = Ebpf::new(Options { sizes, ..node.options.clone() });
    let observed = node.observe()?;
    assert_eq!((observed.orphans, node.datapath.writes()), (0, 0));
    assert_eq!(rules(&node)?, before);
    let warnings = node.datapath.warnings();
    let named = |flag: &str| warnings.iter().filter(|warning| warning.contains(flag)).count();
    assert_eq!((warnings.len(), named("--bpf-services"), named("--bpf-rules")), (2, 1, 1), "{warnings:?}");
    Ok(())
}
