//! The compiled programs: load into the kernel, pin, and open.

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, MapData},
    programs::{ProgramError, SchedClassifier, Xdp},
};
use aya_obj::programs::XdpAttachType;
use contiv_abi::maps::{ALL, BUILD, BUILD_LEN, SERVICE_COUNTS, XDP};

use super::{
    tc::{Role, TcHooks},
    xdp::XdpHook,
};
use crate::datapath::{
    Error,
    ebpf::{
        failure::{errno, failed},
        maps::{flows, pins::Pins, writes::Writes},
    },
};

/// The object file with programs and maps that `build.rs` compiled.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/contiv-ebpf"));

/// Number of attempts to load a program that a signal interrupts.
const MAX_LOADS: usize = 5;

/// The pinned programs.
pub(crate) struct Programs {
    from_pod: SchedClassifier,
    from_queue: SchedClassifier,
    from_overlay: SchedClassifier,
    from_uplink: SchedClassifier,
    xdp: Xdp,
}

impl Programs {
    /// Opens the pinned programs.
    pub(crate) fn open(pins: &Pins) -> Result<Programs, Error> {
        Ok(Programs {
            from_pod: open_tc(pins, Role::Pod)?,
            from_queue: open_tc(pins, Role::Queue)?,
            from_overlay: open_tc(pins, Role::Overlay)?,
            from_uplink: open_tc(pins, Role::Uplink)?,
            xdp: open_xdp(pins)?,
        })
    }

    pub(crate) fn tc(&mut self, role: Role) -> &mut SchedClassifier {
        match role {
            Role::Pod => &mut self.from_pod,
            Role::Queue => &mut self.from_queue,
            Role::Overlay => &mut self.from_overlay,
            Role::Uplink => &mut self.from_uplink,
        }
    }

    pub(crate) fn xdp(&mut self) -> &mut Xdp {
        &mut self.xdp
    }
}

/// Map sizes that are known only at run time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacities {
    /// Records of the flow table.
    pub(crate) flows: u32,
    pub(crate) service_counts: u32,
}

/// Whether all maps and programs are pinned and come from this build.
pub(crate) fn is_current(pins: &Pins) -> Result<bool, Error> {
    let complete = ALL.iter().all(|name| pins.map(name).exists())
        && Role::ALL.iter().map(|role| role.program()).chain([XDP]).all(|name| pins.program(name).exists());
    if !complete {
        return Ok(false);
    }
    let build: Array<MapData, [u8; BUILD_LEN]> = pins.open_map(BUILD)?;
    let build = build.get(&0, 0).map_err(|error| failed(format!("read the map {BUILD}"), error))?;
    Ok(build == build_id())
}

/// Records that the pinned programs come from this build. Call it last: after a crash before this call, the next start
/// loads the programs again.
pub(crate) fn set_current(pins: &Pins, writes: &Writes) -> Result<(), Error> {
    let mut build: Array<MapData, [u8; BUILD_LEN]> = pins.open_map(BUILD)?;
    writes.count();
    build.set(0, build_id(), 0).map_err(|error| failed(format!("write to the map {BUILD}"), error))
}

/// FNV-1a hash of the object file. Collision resistance is not required.
fn build_id() -> [u8; BUILD_LEN] {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = OBJECT.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME));
    hash.to_be_bytes()
}

/// Programs in the kernel that are neither attached nor pinned.
pub(crate) struct Loaded(Ebpf);

/// Loads the programs. Pinned maps are reused; missing maps are created and pinned.
pub(crate) fn load(pins: &Pins, capacities: Capacities, writes: &Writes) -> Result<Loaded, Error> {
    let mut loader = EbpfLoader::new();
    for name in ALL {
        loader.map_pin_path(name, pins.map(name));
        writes.count();
    }
    for (name, entries) in flows::sizes(capacities.flows) {
        loader.map_max_entries(name, entries);
    }
    loader.map_max_entries(SERVICE_COUNTS, capacities.service_counts);
    let mut loaded = Loaded(loader.load(OBJECT).map_err(|error| failed("load the eBPF object", error))?);
    for role in Role::ALL {
        let program = loaded.tc(role)?;
        writes.count();
        retry_interrupted(|| program.load()).map_err(|error| failed(loading(role.program()), error))?;
    }
    let program = loaded.xdp()?;
    writes.count();
    retry_interrupted(|| program.load()).map_err(|error| failed(loading(XDP), error))?;
    Ok(loaded)
}

impl Loaded {
    fn tc(&mut self, role: Role) -> Result<&mut SchedClassifier, Error> {
        let what = || loading(role.program());
        let missing = || failed(what(), "the object does not contain it");
        let program = self.0.program_mut(role.program()).ok_or_else(missing)?;
        program.try_into().map_err(|error| failed(what(), error))
    }

    fn xdp(&mut self) -> Result<&mut Xdp, Error> {
        let missing = || failed(loading(XDP), "the object does not contain it");
        let program = self.0.program_mut(XDP).ok_or_else(missing)?;
        program.try_into().map_err(|error| failed(loading(XDP), error))
    }

    /// Replaces attached programs of an earlier build in place, and pins the programs.
    pub(crate) async fn replace(mut self, pins: &Pins, hooks: &TcHooks, xdp: &XdpHook) -> Result<(), Error> {
        for role in Role::ALL {
            let program = self.tc(role)?;
            hooks.replace(role, program).await?;
            let path = pins.program(role.program());
            pins.unpin(&path)?;
            program.pin(&path).map_err(|error| failed(format!("pin {}", path.display()), error))?;
        }
        let program = self.xdp()?;
        xdp.replace(program)?;
        let path = pins.program(XDP);
        pins.unpin(&path)?;
        program.pin(&path).map_err(|error| failed(format!("pin {}", path.display()), error))
    }
}

fn loading(program: &str) -> String {
    format!("load the program {program}")
}

/// Repeats the load if the verifier returns EAGAIN, which it does when the thread has a pending signal (`bpf_check` in
/// kernel/bpf/verifier.c).
pub(crate) fn retry_interrupted(
    mut load: impl FnMut() -> Result<(), ProgramError>,
) -> Result<(), ProgramError> {
    let interrupted = |error: &ProgramError| errno(error) == Some(libc::EAGAIN);
    for _ in 1..MAX_LOADS {
        match load() {
            Err(error) if interrupted(&error) => {}
            result => return result,
        }
    }
    load()
}

fn open_xdp(pins: &Pins) -> Result<Xdp, Error> {
    let path = pins.program(XDP);
    Xdp::from_pin(&path, XdpAttachType::Interface)
        .map_err(|error| failed(format!("open the program {}", path.display()), error))
}

fn open_tc(pins: &Pins, role: Role) -> Result<SchedClassifier, Error> {
    let path = pins.program(role.program());
    SchedClassifier::from_pin(&path)
        .map_err(|error| failed(format!("open the program {}", path.display()), error))
}
