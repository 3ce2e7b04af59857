//! Site of the eBPF datapath.

use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    process,
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use aya::{
    Pod,
    maps::{Array, HashMap, Map, MapData},
    programs::{SchedClassifier, TcAttachType},
};
use contiv_abi::{ABI_VERSION, Address, FdbEntry, FdbKey, Flow, NeighEntry, NeighKey, Segment, maps};
use netplugin::datapath::ebpf::{Ebpf, Options};
use testkit::{
    Netns,
    pins::{Lent, Pool},
    wait_until,
};

use super::{
    Damage, Difference,
    real::{Site, UNDERLAY, UPLINK},
};
use crate::node::topology::NODE;

const BPFFS: &str = "/sys/fs/bpf";
const PREFIX: &str = "ctvk";
const SOON: Duration = Duration::from_secs(5);
const INSTANCE: &str = "conformance";

static COUNT: AtomicU32 = AtomicU32::new(0);
static SWEEP: Once = Once::new();

static POOL: Pool<Root> = Pool::new();

extern "C" fn drop_pool() {
    POOL.drop_all();
}

/// Directory of the pins; removed with its contents on drop.
struct Root(PathBuf);

impl AsRef<Path> for Root {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

pub(crate) struct EbpfSite {
    pins: Lent<Root>,
}

impl EbpfSite {
    fn options(&self) -> Options {
        Options {
            bpf_root: self.pins.path().to_owned(),
            instance: INSTANCE.to_owned(),
            vtep: Some(NODE.into()),
            uplinks: vec![UPLINK.to_owned()],
            ..Options::default()
        }
    }

    fn map(&self, name: &str) -> Result<Map> {
        Ok(Map::HashMap(self.pinned(name)?))
    }

    fn array<T: Pod>(&self, name: &str) -> Result<Array<MapData, T>> {
        Ok(Map::Array(self.pinned(name)?).try_into()?)
    }

    fn pinned(&self, name: &str) -> Result<MapData> {
        let path = Ebpf::new(self.options()).maps_directory().join(name);
        MapData::from_pin(&path).with_context(|| format!("open the map {}", path.display()))
    }

    fn links(&self) -> PathBuf {
        self.pins.path().join(format!("v{ABI_VERSION}")).join(INSTANCE).join("links")
    }

    /// Makes all flows this many seconds older.
    fn age(&self, seconds: u32) -> Result<()> {
        let (mut flows, bitmap) = (self.array::<Flow>(maps::FLOWS)?, self.array::<u64>(maps::FLOW_BITMAP)?);
        for word in 0..bitmap.len() {
            let bits = bitmap.get(&word, 0)?;
            for number in (0..64).filter(|bit| bits >> bit & 1 != 0).map(|bit| word * 64 + bit) {
                let mut flow = flows.get(&number, 0)?;
                for half in &mut flow.halves {
                    half.seen = half.seen.wrapping_sub(seconds);
                }
                flows.set(number, flow, 0)?;
            }
        }
        Ok(())
    }
}

impl Site for EbpfSite {
    type Path = Ebpf;

    const LINKS: &'static [&'static str] = &[UNDERLAY, UPLINK];

    const DIFFERENCES: &'static [Difference] = &[
        Difference::EndsConnectionsOfRegrouped,
        Difference::ResolvesUnrepliedAgain,
        Difference::KeepsConnectionsOfRemoved,
        Difference::KeepsConnectionsOfStrangers,
    ];

    fn missing() -> Option<String> {
        None
    }

    fn start(host: &Netns) -> Result<EbpfSite> {
        SWEEP.call_once(sweep);
        host.address(UNDERLAY, &format!("{NODE}/24"))?;
        let make = || {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            Ok(Root(Path::new(BPFFS).join(format!("{PREFIX}{}-{count}", process::id()))))
        };
        let pins = POOL.lend((Some(INSTANCE.to_owned()), &[maps::BUILD]), host, make, drop_pool)?;
        Ok(EbpfSite { pins })
    }

    async fn open(&self) -> Result<Ebpf> {
        Ok(Ebpf::new(self.options()))
    }

    fn underlay(&self) -> &'static str {
        UNDERLAY
    }

    fn neighbour(&self, _vtep: IpAddr, _mac: &str) -> Result<()> {
        // The kernel queues a frame until its next hop is resolved.
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        // Map entries take effect at once.
        Ok(())
    }

    /// Makes all flows as old as if no packet had come for days: they are not found any more.
    fn forget(&self) -> Result<()> {
        const DAYS: u32 = 1 << 20;
        self.age(DAYS)
    }

    fn pass_second(&self) -> Result<()> {
        self.age(1)
    }

    fn damage(&self, host: &Netns, damage: Damage) -> Result<()> {
        match damage {
            Damage::Forwarding => {
                let mut fdb = HashMap::<_, FdbKey, FdbEntry>::try_from(self.map(maps::FDB)?)?;
                for key in fdb.keys().collect::<Result<Vec<_>, _>>()? {
                    fdb.remove(&key)?;
                }
                let mut neighbours = HashMap::<_, NeighKey, NeighEntry>::try_from(self.map(maps::NEIGH)?)?;
                for key in neighbours.keys().collect::<Result<Vec<_>, _>>()? {
                    neighbours.remove(&key)?;
                }
            }
            Damage::Port(port) => {
                let index = host.run(|| Ok(nix::net::if_::if_nametoindex(port)?))?;
                let link = self.links().join(format!("pod-{index}"));
                if !link.exists() {
                    return host.output("tc", &["qdisc", "del", "dev", port, "clsact"]).map(drop);
                }
                fs::remove_file(&link).with_context(|| format!("remove {}", link.display()))?;
                // The kernel detaches the program some time after the last pin of its link is removed.
                let bare = || host.run(|| Ok(is_bare(port)?.then_some(())));
                wait_until(SOON, &format!("no program is on {port}"), bare)?;
            }
            Damage::ForeignItem => {
                let mut fdb = HashMap::<_, FdbKey, FdbEntry>::try_from(self.map(maps::FDB)?)?;
                let unknown = FdbKey::new(Segment::vxlan(77), [2, 0, 0, 0, 0, 77]);
                let vtep = Address::v4([192, 168, 50, 77]);
                fdb.insert(unknown, FdbEntry { vtep, ifindex: 0, group: 0 }, 0)?;
            }
        }
        Ok(())
    }
}

/// Returns whether the interface has no TCX program.
fn is_bare(port: &str) -> Result<bool> {
    let (_, programs) = SchedClassifier::query_tcx(port, TcAttachType::Ingress)?;
    Ok(programs.is_empty())
}

fn remove(root: &Path) {
    match fs::remove_dir_all(root) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => eprintln!("remove {}: {error}", root.display()),
    }
}

/// Removes leftovers of killed test processes.
fn sweep() {
    for entry in fs::read_dir(BPFFS).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-'));
        if owner.is_some_and(|(pid, _)| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists())
        {
            remove(&entry.path());
        }
    }
}
