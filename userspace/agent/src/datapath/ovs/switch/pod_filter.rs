//! The filter of pods' interfaces, a program.
//!
//! The switch of the kernel gets the frames behind it: OpenFlow does not see where the kernel will write a checksum that the sender has
//! left to it. The switch in userspace has read them before by a packet socket: the network stack of the node would get each frame, too,
//! past all checks and rules, so the filter drops them.
//!
//! It is at the TCX hook, behind the programs of the other datapath. Before Linux 6.6 it is a filter of the clsact qdisc. ovs-vswitchd
//! removes that qdisc when it opens an interface, when its rate changes, and when it looks at its ports again after any event of a link
//! (`netdev_linux_set_policing`), so the filter is attached afterwards, before the flows of the port are written, and with each resync.

mod tcx;

use std::{mem, os::fd::AsFd as _};

use aya::{
    Ebpf, EbpfLoader,
    maps::{MapData, PerCpuArray},
    programs::{
        ProgramError, SchedClassifier, TcAttachType,
        links::Link as _,
        tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle},
    },
};
use contiv_abi::SkbLayout;
use nix::net::if_::if_nametoindex;

use crate::{
    datapath::{
        Error,
        ovs::{error::ovs_error, options::DatapathType},
        skb::{self, skb_layout},
    },
    error::{errno, one_line},
};

/// The object file that `build.rs` compiled; empty if it was given ready objects without this one.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/contiv-ebpf-ovs"));

/// For the switch of the kernel, and for that in userspace.
const CHECKED: &str = "ovs_from_pod";
const TAKEN: &str = "ovs_taken";
const PROGRAMS: [&str; 2] = [CHECKED, TAKEN];
const DROPS: &str = "ovs_drops";
/// Before the rates of ovs-vswitchd (49), whose filter may end the chain.
const PRIORITY: u16 = 16;
const HANDLE: TcHandle = TcHandle::new(0, 0x0b5);

type Source = Box<dyn std::error::Error + Send + Sync>;

/// The loaded program.
pub(crate) struct PodFilter {
    object: Ebpf,
    program: &'static str,
}

impl PodFilter {
    /// Loads the program, or says why that is not possible.
    pub(crate) fn load(datapath_type: DatapathType) -> Result<PodFilter, String> {
        let program = match datapath_type {
            DatapathType::System => {
                skb::layout()?;
                CHECKED
            }
            DatapathType::Netdev => TAKEN,
        };
        if OBJECT.is_empty() {
            const MISSING: &str =
                "this build has no program: it was given CONTIV_EBPF_OBJECT without CONTIV_EBPF_OVS_OBJECT";
            return Err(MISSING.to_owned());
        }
        let layout = skb_layout();
        let mut loader = EbpfLoader::new();
        loader.override_global(SkbLayout::GLOBAL, &layout[..], true);
        let failed =
            |error: &dyn std::error::Error| format!("load the program {program}: {}", one_line(error));
        let object = loader.load(OBJECT).map_err(|error| failed(&error))?;
        let mut filter = PodFilter { object, program };
        let loaded = filter.program().and_then(SchedClassifier::load);
        loaded.map_err(|error| failed(&error))?;
        Ok(filter)
    }

    fn program(&mut self) -> Result<&mut SchedClassifier, ProgramError> {
        let program = self.object.program_mut(self.program).ok_or(ProgramError::NotLoaded)?;
        program.try_into()
    }

    /// Attaches the program to the host end of a pod's interface; replaces that of an earlier agent. Succeeds if the interface does not
    /// exist.
    pub(crate) fn attach(&mut self, interface: &str) -> Result<(), Error> {
        if if_nametoindex(interface).is_err() {
            return Ok(());
        }
        let attached = self.replace_or_attach(interface);
        attached
            .map_err(|error| ovs_error(format!("attach the program {} to {interface}", self.program), error))
    }

    fn replace_or_attach(&mut self, interface: &str) -> Result<(), Source> {
        match tcx::is_supported() {
            true => self.attach_tcx(interface),
            false => self.attach_clsact(interface),
        }
    }

    fn attach_tcx(&mut self, interface: &str) -> Result<(), Source> {
        let program = self.program()?;
        let id = program.info()?.id();
        let (own, others): (Vec<_>, Vec<_>) =
            tcx::attached(interface, &PROGRAMS)?.into_iter().partition(|found| found.id() == id);
        let ifindex = if_nametoindex(interface)?;
        if own.is_empty() {
            tcx::attach(program.fd()?.as_fd(), ifindex)?;
        }
        for earlier in others {
            tcx::detach(earlier.fd()?.as_fd(), ifindex)?;
        }
        Ok(())
    }

    fn attach_clsact(&mut self, interface: &str) -> Result<(), Source> {
        match tc::qdisc_add_clsact(interface) {
            Err(error)
                if errno(&error) != Some(libc::EEXIST) && !matches!(error, TcError::AlreadyAttached) =>
            {
                return Err(error.into());
            }
            _ => {}
        }
        let program = self.program()?;
        let id = match program.attach_to_link(attached(interface)?) {
            Err(error) if errno(&error) == Some(libc::ENOENT) => {
                let options = NlOptions { priority: PRIORITY, handle: HANDLE, classid: None };
                let options = TcAttachOptions::Netlink(options);
                program.attach_with_options(interface, TcAttachType::Ingress, options)?
            }
            replaced => replaced?,
        };
        // A drop of the link would detach the program.
        mem::forget(program.take_link(id)?);
        Ok(())
    }

    /// Number of frames dropped because of their checksums since the program was loaded.
    pub(crate) fn drops(&self) -> Result<u64, Source> {
        let map = self.object.map(DROPS).ok_or("the object has no counter")?;
        let drops: PerCpuArray<&MapData, u64> = map.try_into()?;
        Ok(drops.get(&0, 0)?.iter().sum())
    }
}

fn attached(interface: &str) -> Result<SchedClassifierLink, Source> {
    Ok(SchedClassifierLink::attached(interface, TcAttachType::Ingress, PRIORITY, HANDLE, None)?)
}

/// Whether the filter lets the programs of another datapath see the frames first.
pub(crate) fn is_behind_others() -> bool {
    tcx::is_supported()
}

/// Detaches the program. Succeeds if it is not attached, or if the interface does not exist.
pub(crate) fn detach(interface: &str) -> Result<(), Error> {
    let is_absent =
        |error: &Source| matches!(errno(&**error), Some(libc::ENODEV | libc::ENOENT | libc::EINVAL));
    let from_tcx = if tcx::is_supported() { detach_tcx(interface) } else { Ok(()) };
    let from_clsact = attached(interface).and_then(|link| Ok(link.detach()?));
    match from_tcx.and(from_clsact) {
        Err(error) if !is_absent(&error) => {
            Err(ovs_error(format!("detach the filter of pods from {interface}"), error))
        }
        _ => Ok(()),
    }
}

fn detach_tcx(interface: &str) -> Result<(), Source> {
    for program in tcx::attached(interface, &PROGRAMS)? {
        tcx::detach(program.fd()?.as_fd(), if_nametoindex(interface)?)?;
    }
    Ok(())
}
