//! The programs that continue with a frame by a tail call.
//!
//! They find everything in the packet metadata: nothing else runs on the CPU in between.

use aya_ebpf::{btf_maps::ProgramArray, macros::btf_map, programs::TcContext};
use contiv_abi::maps::{STAGES_CAPACITY, Stage};

#[btf_map(name = "ctv_stages")]
static STAGES: ProgramArray<STAGES_CAPACITY> = ProgramArray::new();

/// Continues in the program of a stage. Returns only if the program is missing.
#[inline(always)]
pub(crate) fn enter(ctx: &TcContext, stage: Stage) {
    // SAFETY: no value of the caller has a destructor, and no lock is held.
    unsafe { STAGES.tail_call(ctx, stage as u32) };
}
