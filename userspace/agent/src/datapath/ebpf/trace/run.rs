//! One run of the programs.

use std::sync::{Arc, Mutex, PoisonError};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, Map, MapData, ProgramArray},
    programs::{ProgramError, SchedClassifier, TestRun as _, TestRunOptions},
};
use aya_log::EbpfLogger;
use bytemuck::Zeroable as _;
use contiv_abi::{
    Address, FlowTableSize, LogResult, LogStage, Node, Traced,
    maps::{
        BACKENDS, FDB, FDB_REVISION, FLOOD, FROM_QUEUE, GROUPS, KERNEL_PORT, MEMBERS, NEIGH, NODE, PACKET,
        PEERS, PORT_SLOTS, PORTS, RING, ROUTES, RULE_SETS, RULES, SEGMENTS, SERVICE_SLOTS, SERVICES, STAGES,
        SUBNETS, Stage, TRACED, UPLINK, VIPS,
    },
};
use log::{Log, Metadata, Record as LogRecord};
use nix::{
    sched::{CpuSet, sched_getcpu, sched_setaffinity},
    unistd::Pid,
};

use super::super::{
    failure::{errno, failed},
    maps::{
        flows,
        foreign::{self, Record},
        pins::Pins,
        sizes::Sizes,
    },
    programs::load::{log_object, retry_interrupted, trim_heap},
};
use crate::datapath::{
    Error,
    trace::{Ingress, Probe},
};

/// Tables that only the agent writes. For every other map, a run uses a separate copy.
const TABLES: [&str; 21] = [
    PORTS,
    PORT_SLOTS,
    SERVICE_SLOTS,
    SEGMENTS,
    FLOOD,
    FDB,
    FDB_REVISION,
    NEIGH,
    SUBNETS,
    ROUTES,
    KERNEL_PORT,
    MEMBERS,
    PEERS,
    UPLINK,
    SERVICES,
    RING,
    BACKENDS,
    VIPS,
    GROUPS,
    RULE_SETS,
    RULES,
];
/// Records of the flow table, of which a traced packet needs one.
const FLOWS: u32 = 1024;
/// Space for the frame, its tag, and the data that a refusal adds.
const FRAME_ROOM: usize = 1024;
/// Fields of `struct __sk_buff` (`include/uapi/linux/bpf.h`) up to `ifindex`: one word each.
const CONTEXT_WORDS: usize = 11;
const MARK: usize = 2;
const IFINDEX: usize = 10;
/// EtherType of a VLAN tag.
const VLAN_TYPE: [u8; 2] = [0x81, 0];
/// Length of the Ethernet addresses, which a tag follows.
const ADDRESSES: usize = 12;
/// Attempts to run a program that a signal interrupts.
const MAX_RUNS: usize = 5;

/// The programs that log the stages, with separate maps for the data that packets write.
pub(super) struct Programs {
    object: Ebpf,
    /// The kernel empties a program array when its last descriptor is closed.
    _stages: ProgramArray<MapData>,
    logger: EbpfLogger<Records>,
    records: Records,
}

/// Result of a run for the frame.
#[derive(Debug)]
pub(super) struct Pass {
    /// Stages and results, in their order.
    pub(super) records: Vec<(u32, u32)>,
    /// The packet metadata at the end.
    pub(super) packet: Record,
    /// Output of the frame.
    pub(super) traced: Traced,
    /// The frame at the end.
    pub(super) frame: Vec<u8>,
}

impl Pass {
    /// The last result of a stage.
    pub(super) fn result(&self, stage: LogStage) -> Option<u32> {
        self.records.iter().rev().find(|(of, _)| *of == stage as u32).map(|(_, result)| *result)
    }

    /// The last result of a stage is this one.
    pub(super) fn is(&self, stage: LogStage, result: LogResult) -> bool {
        self.result(stage) == Some(result as u32)
    }
}

impl Programs {
    /// `flows` is the capacity of the node's flow table.
    pub(super) fn load(pins: &Pins, flows: u32) -> Result<Programs, Error> {
        let what = "load the programs that log their stages";
        let object = log_object()?;
        let mut loader = EbpfLoader::new();
        for name in TABLES {
            loader.map_pin_path(name, pins.map(name));
        }
        let sizes = Sizes::default().of_pinned(pins)?;
        for (name, entries) in sizes.entries()?.into_iter().chain(flows::sizes(FLOWS.min(flows))) {
            loader.map_max_entries(name, entries);
        }
        let mut object = loader.load(object).map_err(|error| failed(what, error))?;
        set_node(&mut object, pins, FLOWS.min(flows))?;
        let stages = fill_stages(&mut object)?;
        let records = Records::default();
        let logger = EbpfLogger::init_with_logger(&mut object, records.clone());
        let logger = logger.map_err(|error| failed("open the log of the eBPF programs", error))?;
        trim_heap();
        Ok(Programs { object, _stages: stages, logger, records })
    }

    /// Runs a program for the frame of a probe that enters through `ifindex`.
    pub(super) fn follow(&mut self, name: &'static str, ifindex: u32, probe: &Probe) -> Result<Pass, Error> {
        let cpu = stay_on_cpu().map_err(|error| failed("trace: stay on one CPU", error))?;
        let mut traced = Traced { enabled: 1, ..Traced::zeroed() };
        let mut frame = probe.frame();
        match &probe.ingress {
            Ingress::Pod { .. } => {}
            Ingress::Tunnel { vtep, vni } => {
                traced.vni = u32::from(*vni);
                traced.vtep = Address::from(*vtep);
            }
            Ingress::Uplink(vlan) => {
                let tag = [VLAN_TYPE, u16::from(*vlan).to_be_bytes()].concat();
                frame.splice(ADDRESSES..ADDRESSES, tag);
            }
        }
        let what = || format!("write to the map {TRACED}");
        let map = self.object.map_mut(TRACED).ok_or_else(|| failed(what(), "the object has none"))?;
        let mut map: Array<_, Traced> = map.try_into().map_err(|error| failed(what(), error))?;
        map.set(0, traced, 0).map_err(|error| failed(what(), error))?;
        let mut context = [0_u32; CONTEXT_WORDS];
        context[IFINDEX] = ifindex;
        self.execute(name, context, &mut frame)?;
        if self.records.read().last() == Some(&(LogStage::Verdict as u32, LogResult::Queued as u32)) {
            // The queue releases the frame.
            context[MARK] = ifindex;
            self.execute(FROM_QUEUE, context, &mut frame)?;
        }
        let what = || format!("read the map {TRACED}");
        let map = self.object.map(TRACED).ok_or_else(|| failed(what(), "the object has none"))?;
        let map: Array<_, Traced> = map.try_into().map_err(|error| failed(what(), error))?;
        let traced = map.get(&0, 0).map_err(|error| failed(what(), error))?;
        let Some(Map::PerCpuArray(packet)) = self.object.map(PACKET) else {
            return Err(failed(format!("read the map {PACKET}"), "the object has none"));
        };
        Ok(Pass { records: self.records.read(), packet: foreign::of_cpu(packet, cpu)?, traced, frame })
    }

    fn execute(
        &mut self,
        name: &str,
        context: [u32; CONTEXT_WORDS],
        frame: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let what = || format!("run the program {name}");
        let program = program(&mut self.object, name)?;
        let mut output = vec![0; FRAME_ROOM];
        for attempt in 0.. {
            let options = TestRunOptions {
                data_in: Some(frame),
                data_out: Some(&mut output),
                ctx_in: Some(bytemuck::cast_slice(&context)),
                ..TestRunOptions::new()
            };
            match program.test_run(options) {
                Ok(result) => {
                    output.truncate(result.data_size_out as usize);
                    break;
                }
                Err(error) if errno(&error) == Some(libc::EINTR) && attempt < MAX_RUNS => {}
                Err(error) => return Err(failed(what(), error)),
            }
        }
        *frame = output;
        self.logger.flush();
        Ok(())
    }
}

/// Copies the settings of the node to the programs, with a flow table of this size.
fn set_node(object: &mut Ebpf, pins: &Pins, flows: u32) -> Result<(), Error> {
    let what = || format!("write to the map {NODE}");
    let node: Array<MapData, Node> = pins.open_map(NODE)?;
    let node = node.get(&0, 0).map_err(|error| failed(format!("read the map {NODE}"), error))?;
    let flow_pages = FlowTableSize { flows }.pages();
    let map = object.map_mut(NODE).ok_or_else(|| failed(what(), "the object has none"))?;
    let mut map: Array<_, Node> = map.try_into().map_err(|error| failed(what(), error))?;
    map.set(0, Node { flows, flow_pages, ..node }, 0).map_err(|error| failed(what(), error))
}

/// Pins the thread to its current CPU, whose packet metadata is read afterwards.
fn stay_on_cpu() -> nix::Result<usize> {
    let cpu = sched_getcpu()?;
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set)?;
    Ok(cpu)
}

/// Fills the program array for tail calls.
fn fill_stages(object: &mut Ebpf) -> Result<ProgramArray<MapData>, Error> {
    let what = || format!("fill the map {STAGES}");
    let array = object.take_map(STAGES).ok_or_else(|| failed(what(), "the object has none"))?;
    let mut array: ProgramArray<MapData> = array.try_into().map_err(|error| failed(what(), error))?;
    for stage in Stage::ALL {
        let program = program(object, stage.program())?;
        let program = program.fd().map_err(|error| failed(what(), error))?;
        array.set(*stage as u32, program, 0).map_err(|error| failed(what(), error))?;
    }
    Ok(array)
}

/// Returns a program, loading it on its first use.
fn program<'a>(object: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, Error> {
    let what = || format!("load the program {name}");
    let program = object.program_mut(name).ok_or_else(|| failed(what(), "the object has none"))?;
    let program: &mut SchedClassifier =
        program.try_into().map_err(|error: ProgramError| failed(what(), error))?;
    if program.fd().is_err() {
        retry_interrupted(|| program.load()).map_err(|error| failed(what(), error))?;
    }
    Ok(program)
}

/// Stages and results that the programs have logged.
#[derive(Clone, Debug, Default)]
struct Records(Arc<Mutex<Vec<(u32, u32)>>>);

impl Records {
    fn read(&self) -> Vec<(u32, u32)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Log for Records {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    /// The first two words of a record are the stage and its result.
    fn log(&self, record: &LogRecord<'_>) {
        let text = record.args().to_string();
        let mut words = text.split(' ').map(str::parse);
        if let (Some(Ok(stage)), Some(Ok(result))) = (words.next(), words.next()) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push((stage, result));
        }
    }

    fn flush(&self) {}
}
