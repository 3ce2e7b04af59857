//! Memory of a node's maps, as the kernel has allocated it.
//!
//! Linux 6.4 and newer account what a map has allocated. Older kernels show an estimate: what all entries of the map would
//! take. Hash maps that allocate entries as they come (`BPF_F_NO_PREALLOC`) have far less: for the counters of rules on 128
//! CPUs the estimate is 64 MiB, of which an idle node has half a MiB. There, the memory of such a map is computed from the
//! number of its entries.

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
use nix::{errno::Errno, libc};
use testkit::needs;

use crate::node::{Endpoint, Node, Pod, network, vtep, vxlan};

const MEBIBYTE: u64 = 1 << 20;

/// Bytes of each pinned map.
fn memory(node: &Node) -> Result<Vec<(&'static str, u64)>> {
    let of = |name: &'static str| {
        let map = MapData::from_pin(node.datapath.maps_directory().join(name))?;
        Ok((name, Facts::of(&map).and_then(|facts| facts.allocated(&map)).context(name)?))
    };
    ALL.iter().map(|name| of(name)).collect()
}

/// What the kernel tells of a map.
struct Facts {
    kind: u64,
    /// Bytes of a key and of a value, both rounded to 8 bytes.
    sizes: [u64; 2],
    capacity: u64,
    flags: u64,
    /// Bytes; see the module.
    accounted: u64,
}

impl Facts {
    fn of(map: &MapData) -> Result<Facts> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", map.fd().as_fd().as_raw_fd()))?;
        let field = |name: &str| -> Result<u64> {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let value = line.with_context(|| format!("no {name}"))?.trim();
            Ok(match value.strip_prefix("0x") {
                Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16)?,
                None => value.parse()?,
            })
        };
        Ok(Facts {
            kind: field("map_type")?,
            sizes: [field("key_size")?.next_multiple_of(8), field("value_size")?.next_multiple_of(8)],
            capacity: field("max_entries")?,
            flags: field("map_flags")?,
            accounted: field("memlock")?,
        })
    }

    fn allocated(&self, map: &MapData) -> Result<u64> {
        const HASH: u64 = 1;
        const PER_CPU_HASH: u64 = 5;
        const LPM_TRIE: u64 = 11;
        const NO_PREALLOC: u64 = 1;
        /// `struct bucket` and `struct htab_elem` of the kernel.
        const BUCKET: u64 = 16;
        const ELEMENT: u64 = 48;
        let Facts { kind, sizes: [key, value], capacity, flags, accounted } = *self;
        /// `struct lpm_trie_node`; between entries there is one for each fork.
        const NODE: u64 = 40;
        if flags & NO_PREALLOC == 0 || ![HASH, PER_CPU_HASH, LPM_TRIE].contains(&kind) {
            return Ok(accounted);
        }
        let cpus = nr_cpus().map_err(|(_, error)| error)? as u64;
        let values = if kind == PER_CPU_HASH { value * cpus } else { value };
        let entries = entries(map, key)?;
        let estimated = entries < capacity / 2 && accounted >= capacity * (key + values);
        if kind == LPM_TRIE && estimated {
            return Ok(2 * entries * (NODE + key + value));
        }
        let allocated = BUCKET * capacity.next_power_of_two() + entries * (ELEMENT + key + values);
        Ok(if estimated { allocated } else { accounted })
    }
}

/// Number of entries of a hash map whose keys have at most `key` bytes.
fn entries(map: &MapData, key: u64) -> Result<u64> {
    const GET_NEXT_KEY: libc::c_int = 4;
    let fd = u64::from(map.fd().as_fd().as_raw_fd().cast_unsigned());
    let mut current = vec![0_u8; usize::try_from(key)?];
    let mut next = current.clone();
    let mut count = 0;
    loop {
        let previous = if count == 0 { 0 } else { current.as_ptr() as u64 };
        let mut attributes = [fd, previous, next.as_mut_ptr() as u64];
        let size = size_of_val(&attributes);
        // SAFETY: the kernel reads one key and writes one, and both buffers have room for it.
        let result = unsafe { libc::syscall(libc::SYS_bpf, GET_NEXT_KEY, attributes.as_mut_ptr(), size) };
        match Errno::result(result) {
            Ok(_) => count += 1,
            Err(Errno::ENOENT) => return Ok(count),
            Err(error) => return Err(error.into()),
        }
        std::mem::swap(&mut current, &mut next);
    }
}

/// Ten pods on a network with 100 remote endpoints.
fn node(label: &str, adjust: impl FnOnce(&mut Options)) -> Result<(Node, Vec<Pod>, u64)> {
    let mut node = Node::fresh(label, adjust)?;
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
