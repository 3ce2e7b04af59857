//! The compiled programs: load into the kernel, pin, and open.

use std::{path::Path, ptr, sync::LazyLock};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, MapData, ProgramArray},
    programs::{ProgramError, SchedClassifier, Xdp},
};
use aya_obj::programs::XdpAttachType;
use contiv_abi::{
    SkbLayout,
    maps::{
        ALL, BUILD, BUILD_LEN, FROM_HOST, FROM_OVERLAY, FROM_POD, FROM_QUEUE, FROM_UPLINK, STAGES, Stage, XDP,
    },
};

use super::{
    stages,
    tc::{Role, TcHooks},
    xdp::XdpHook,
};
use crate::datapath::{
    Error,
    ebpf::{
        failure::{errno, failed},
        maps::{flows, pins::Pins, sizes::Sizes, writes::Writes},
    },
    skb::skb_layout,
};

/// The object file with programs and maps that `build.rs` compiled.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/contiv-ebpf"));

/// The same programs, which log the result of each stage; empty if they were not built.
pub static LOG_OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/contiv-ebpf-log"));

/// [`LOG_OBJECT`], if this build has it.
pub(crate) fn log_object() -> Result<&'static [u8], Error> {
    const MISSING: &str =
        "this build has none: it was given CONTIV_EBPF_OBJECT without CONTIV_EBPF_LOG_OBJECT";
    let object = Some(LOG_OBJECT).filter(|object| !object.is_empty());
    object.ok_or_else(|| failed("load the programs that log their stages", MISSING))
}

/// Every program except [`XDP`].
const TC_PROGRAMS: [&str; 7] = [
    FROM_POD,
    FROM_QUEUE,
    FROM_OVERLAY,
    FROM_UPLINK,
    FROM_HOST,
    Stage::SlowPath.program(),
    Stage::Replicate.program(),
];

/// Number of attempts to load a program that a signal interrupts.
const MAX_LOADS: usize = 5;

/// The pinned programs.
pub(crate) struct Programs {
    from_pod: SchedClassifier,
    from_queue: SchedClassifier,
    from_overlay: SchedClassifier,
    from_uplink: SchedClassifier,
    from_host: SchedClassifier,
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
            from_host: open_tc(pins, Role::Kernel)?,
            xdp: open_xdp(pins)?,
        })
    }

    pub(crate) fn tc(&mut self, role: Role) -> &mut SchedClassifier {
        match role {
            Role::Pod => &mut self.from_pod,
            Role::Queue => &mut self.from_queue,
            Role::Overlay => &mut self.from_overlay,
            Role::Uplink => &mut self.from_uplink,
            Role::Kernel => &mut self.from_host,
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
    /// The maps that the agent fills.
    pub(crate) sizes: Sizes,
}

/// Whether all maps and programs are pinned and come from this build.
pub(crate) fn is_current(pins: &Pins) -> Result<bool, Error> {
    let complete = ALL.iter().all(|name| pins.map(name).exists())
        && TC_PROGRAMS.iter().chain(&[XDP]).all(|name| pins.program(name).exists());
    if !(complete && stages::is_complete(pins)?) {
        return Ok(false);
    }
    let build: Array<MapData, [u8; BUILD_LEN]> = pins.open_map(BUILD)?;
    let build = build.get(&0, 0).map_err(|error| failed(format!("read the map {BUILD}"), error))?;
    Ok(build == build_id(OBJECT))
}

/// Records that the pinned programs come from this build. Call it last: after a crash before this call, the next start
/// loads the programs again. `object` is the object file.
pub(crate) fn set_current(object: &[u8], pins: &Pins, writes: &Writes) -> Result<(), Error> {
    let mut build: Array<MapData, [u8; BUILD_LEN]> = pins.open_map(BUILD)?;
    writes.count();
    build.set(0, build_id(object), 0).map_err(|error| failed(format!("write to the map {BUILD}"), error))
}

/// Identifies an object file and the kernel structure offsets that it is loaded with. The id of the programs is computed
/// once.
fn build_id(object: &[u8]) -> [u8; BUILD_LEN] {
    static PROGRAMS: LazyLock<[u8; BUILD_LEN]> = LazyLock::new(|| hash(OBJECT));
    if ptr::eq(object, OBJECT) { *PROGRAMS } else { hash(object) }
}

/// FNV-1a of the object file and of the values of its globals. Collision resistance is not required.
fn hash(object: &[u8]) -> [u8; BUILD_LEN] {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let globals = skb_layout().into_iter().flat_map(u32::to_ne_bytes);
    let bytes = object.iter().copied().chain(globals);
    let hash = bytes.fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    hash.to_be_bytes()
}

/// Programs in the kernel that are neither attached nor pinned.
pub(crate) struct Loaded(Ebpf);

/// Loads the object file. Pinned maps are reused; missing maps are created and pinned.
///
/// The program array of an earlier load is kept until [`stages::remove_superseded`]: filters are replaced later.
pub(crate) fn load(
    pins: &Pins,
    (file, capacities): (&[u8], Capacities),
    writes: &Writes,
) -> Result<Loaded, Error> {
    let array = stages::next(pins)?;
    let skb = skb_layout();
    let mut loader = EbpfLoader::new();
    loader.override_global(SkbLayout::GLOBAL, &skb[..], true);
    for name in ALL {
        loader.map_pin_path(name, pins.map(name));
        writes.count();
    }
    loader.map_pin_path(STAGES, pins.map(&array));
    for (name, entries) in flows::sizes(capacities.flows) {
        loader.map_max_entries(name, entries);
    }
    for (name, entries) in capacities.sizes.entries()? {
        loader.map_max_entries(name, entries);
    }
    let loaded = loader.load(file).map_err(|error| failed("load the eBPF object", error));
    let loaded = loaded.and_then(|mut object| verify(&mut object, writes).map(|()| object));
    match loaded {
        Ok(object) => Ok(Loaded(object)),
        Err(error) => {
            // No program uses it yet.
            pins.unpin(&pins.map(&array))?;
            Err(error)
        }
    }
}

/// Loads all programs into the kernel, and fills the program array.
fn verify(object: &mut Ebpf, writes: &Writes) -> Result<(), Error> {
    for name in TC_PROGRAMS {
        let program = tc_program(object, name)?;
        writes.count();
        retry_interrupted(|| program.load()).map_err(|error| failed(load_of(name), error))?;
    }
    let program = xdp_program(object)?;
    writes.count();
    retry_interrupted(|| program.load()).map_err(|error| failed(load_of(XDP), error))?;
    let what = || format!("fill the map {STAGES}");
    let missing = || failed(what(), "the object does not contain it");
    let array = object.take_map(STAGES).ok_or_else(missing)?;
    let mut array: ProgramArray<MapData> = array.try_into().map_err(|error| failed(what(), error))?;
    for stage in Stage::ALL {
        let program = tc_program(object, stage.program())?;
        let program = program.fd().map_err(|error| failed(what(), error))?;
        writes.count();
        array.set(*stage as u32, program, 0).map_err(|error| failed(what(), error))?;
    }
    Ok(())
}

impl Loaded {
    /// Pins the programs, and replaces those of an earlier load that are attached. The result has the maps that are not
    /// pinned.
    pub(crate) async fn replace(self, pins: &Pins, hooks: &TcHooks, xdp: &XdpHook) -> Result<Ebpf, Error> {
        let Loaded(mut object) = self;
        for stage in Stage::ALL {
            let path = pins.program(stage.program());
            pins.unpin(&path)?;
            let program = tc_program(&mut object, stage.program())?;
            program.pin(&path).map_err(|error| failed(pin_of(&path), error))?;
        }
        for role in Role::ALL {
            let program = tc_program(&mut object, role.program())?;
            hooks.replace(role, program).await?;
            let path = pins.program(role.program());
            pins.unpin(&path)?;
            program.pin(&path).map_err(|error| failed(pin_of(&path), error))?;
        }
        let program = xdp_program(&mut object)?;
        xdp.replace(program)?;
        let path = pins.program(XDP);
        pins.unpin(&path)?;
        program.pin(&path).map_err(|error| failed(pin_of(&path), error))?;
        Ok(object)
    }
}

/// Returns freed memory to the kernel. Loading takes many small allocations, and glibc keeps the pages of most of them.
pub(crate) fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no requirements; glibc locks its arenas.
    let _released = unsafe { libc::malloc_trim(0) };
}

fn tc_program<'a>(object: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, Error> {
    let missing = || failed(load_of(name), "the object does not contain it");
    object
        .program_mut(name)
        .ok_or_else(missing)?
        .try_into()
        .map_err(|error: ProgramError| failed(load_of(name), error))
}

fn xdp_program(object: &mut Ebpf) -> Result<&mut Xdp, Error> {
    let missing = || failed(load_of(XDP), "the object does not contain it");
    object
        .program_mut(XDP)
        .ok_or_else(missing)?
        .try_into()
        .map_err(|error: ProgramError| failed(load_of(XDP), error))
}

fn load_of(program: &str) -> String {
    format!("load the program {program}")
}

fn pin_of(path: &Path) -> String {
    format!("pin {}", path.display())
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
