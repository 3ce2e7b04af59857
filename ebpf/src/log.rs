//! Log of the stages that frames of one endpoint pass (`netplugin --bpf-log-stages`), and trace of a frame that the agent
//! injects. Without the feature `log`, these functions do nothing.

use contiv_abi::{DropReason, LogResult, LogStage, Vtep, maps::Stage};

use crate::{
    packet::{self, PacketMeta},
    verdict::Verdict,
};

/// Prepares the log for a frame.
#[inline(always)]
pub(crate) fn begin() {
    #[cfg(feature = "log")]
    enabled::begin();
}

/// Logs the result of a stage for the current packet.
#[inline(always)]
pub(crate) fn stage(stage: LogStage, result: LogResult) {
    write(stage, result as u32, 0);
}

/// Logs the result of a stage that returns a number as `packet::code` does.
#[inline(always)]
pub(crate) fn code(stage: LogStage, code: u32, passed: LogResult) {
    let result = match code {
        packet::GO_ON => passed as u32,
        packet::AGAIN => LogResult::Exists as u32,
        reason => reason,
    };
    write(stage, result, 0);
}

/// Logs the verdict on a frame that was received on `ifindex`.
#[inline(always)]
pub(crate) fn verdict(ifindex: u32, verdict: &Verdict) {
    let result = match verdict {
        Verdict::Drop(reason) => *reason as u32,
        Verdict::Delivered => LogResult::Copied as u32,
        Verdict::Pod { .. } => LogResult::ToPod as u32,
        Verdict::Wait { .. } => LogResult::Queued as u32,
        Verdict::Continue(Stage::SlowPath) => LogResult::SlowPath as u32,
        Verdict::Continue(Stage::Replicate) => LogResult::Replicate as u32,
        Verdict::Out(_) => LogResult::ToInterface as u32,
        Verdict::Back(..) => LogResult::Refused as u32,
    };
    write(LogStage::Verdict, result, ifindex);
    match verdict {
        Verdict::Pod { ifindex, .. } => leaves(*ifindex),
        Verdict::Wait { queue, .. } => leaves(*queue),
        Verdict::Out(out) | Verdict::Back(out, _) => leaves(*out),
        Verdict::Drop(_) | Verdict::Delivered | Verdict::Continue(_) => {}
    }
}

#[cfg(feature = "log")]
#[inline(always)]
fn leaves(ifindex: u32) {
    enabled::ctv_leaves_by(ifindex);
}

#[cfg(not(feature = "log"))]
#[inline(always)]
fn leaves(_ifindex: u32) {}

/// Origin of a traced frame that the agent injects as one from a tunnel: returns the VNI, and stores the VTEP in the packet
/// metadata.
#[inline(always)]
pub(crate) fn origin(packet: &mut PacketMeta) -> Option<u32> {
    #[cfg(feature = "log")]
    return enabled::origin(packet);
    #[cfg(not(feature = "log"))]
    {
        _ = packet;
        None
    }
}

/// Records a copy of a traced frame instead of sending it. False for any other frame.
#[inline(always)]
pub(crate) fn copied(ifindex: u32, vtep: Option<&Vtep>) -> bool {
    #[cfg(feature = "log")]
    return enabled::copied(ifindex, vtep);
    #[cfg(not(feature = "log"))]
    {
        _ = (ifindex, vtep);
        false
    }
}

/// Logs the drop of a frame that the verdict has admitted.
#[inline(always)]
pub(crate) fn dropped(ifindex: u32, reason: DropReason) {
    write(LogStage::Verdict, reason as u32, ifindex);
}

#[cfg(feature = "log")]
#[inline(always)]
fn write(stage: LogStage, result: u32, ifindex: u32) {
    enabled::ctv_log(stage as u32, result, ifindex);
}

#[cfg(not(feature = "log"))]
#[inline(always)]
fn write(_stage: LogStage, _result: u32, _ifindex: u32) {}

#[cfg(feature = "log")]
mod enabled {
    use aya_ebpf::{btf_maps::Array, macros::btf_map};
    use aya_log_ebpf::info;
    use contiv_abi::{Address, FdbKey, LoggedEndpoint, Traced, Vtep};

    use crate::{
        maps,
        packet::{self, PacketMeta},
    };

    #[btf_map(name = "ctv_logged")]
    static LOGGED: Array<LoggedEndpoint, 1> = Array::new();

    #[btf_map(name = "ctv_traced")]
    static TRACED: Array<Traced, 1> = Array::new();

    /// The traced frame.
    #[inline(always)]
    fn traced<'a>() -> Option<&'a mut Traced> {
        // SAFETY: the agent runs the programs for one frame at a time.
        let traced = unsafe { &mut *TRACED.get_ptr_mut(0)? };
        (traced.enabled != 0).then_some(traced)
    }

    /// A separate function: inlined, it would read a value that verdicts without an interface do not have.
    #[inline(never)]
    #[unsafe(no_mangle)]
    pub(super) extern "C" fn ctv_leaves_by(ifindex: u32) -> u32 {
        if let Some(traced) = traced() {
            traced.ifindex = ifindex;
        }
        0
    }

    #[inline(always)]
    pub(super) fn origin(packet: &mut PacketMeta) -> Option<u32> {
        let traced = traced().filter(|traced| traced.vni != 0)?;
        packet.vtep.set_words(traced.vtep.words());
        Some(traced.vni)
    }

    #[inline(always)]
    pub(super) fn copied(ifindex: u32, vtep: Option<&Vtep>) -> bool {
        let Some(traced) = traced() else { return false };
        if let Some(copy) = traced.copy.get_mut(traced.copies as usize) {
            copy.ifindex = ifindex;
            if let Some(vtep) = vtep {
                copy.vtep.set_words(vtep.words());
            }
        }
        traced.copies += 1;
        true
    }

    /// Clears the fields of the previous frame by which a frame is selected for the log.
    #[inline(always)]
    pub(super) fn begin() {
        ctv_leaves_by(0);
        let Some(packet) = packet::current() else { return };
        // SAFETY: numbers.
        unsafe {
            contiv_abi::clear(&raw mut packet.segment);
            contiv_abi::clear(&raw mut packet.tuple);
            contiv_abi::clear(&raw mut packet.wanted);
            contiv_abi::clear(&raw mut packet.destination_mac);
        }
        packet.source_port = 0;
    }

    /// Logs the result of a stage if the current packet is from or to the logged endpoint, or is traced.
    ///
    /// A global function: the verifier checks it once, and it saves stack.
    #[inline(never)]
    #[unsafe(no_mangle)]
    pub(super) extern "C" fn ctv_log(stage: u32, result: u32, ifindex: u32) -> u32 {
        let (Some(packet), Some(endpoint)) = (packet::current(), LOGGED.get(0)) else { return 0 };
        if traced().is_none() && !is_logged(packet, endpoint, ifindex) {
            return 0;
        }
        let tuple = &packet.tuple;
        let [source, destination] =
            [tuple.source_port, tuple.destination_port].map(|port| u32::from(port.get()));
        let protocol = u32::from(tuple.protocol);
        info!(
            (),
            "{} {} {:i} {} {:i} {} {}",
            stage,
            result,
            tuple.source.0,
            source,
            tuple.destination.0,
            destination,
            protocol
        );
        0
    }

    #[inline(always)]
    fn is_logged(packet: &PacketMeta, endpoint: &LoggedEndpoint, ifindex: u32) -> bool {
        let port = endpoint.ifindex;
        if port != 0 && (ifindex == port || packet.source_port == port || is_to_port(packet, port)) {
            return true;
        }
        let is_endpoint = |ip: &Address| ip.same(&endpoint.ip);
        let [high, low] = endpoint.ip.words();
        high | low != 0 && (is_endpoint(&packet.tuple.source) || is_endpoint(&packet.tuple.destination))
    }

    #[inline(always)]
    fn is_to_port(packet: &PacketMeta, port: u32) -> bool {
        maps::destination(&FdbKey::new(packet.segment, packet.destination_mac))
            .is_some_and(|place| place.ifindex == port)
    }
}
