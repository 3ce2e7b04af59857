//! Tail calls into the programs that continue with a frame.
//!
//! The packet metadata carry the state from one program to the next: no other program runs on the CPU in between.

use aya_ebpf::{btf_maps::ProgramArray, macros::btf_map, programs::TcContext};
use contiv_abi::maps::{STAGES_CAPACITY, Stage};

#[btf_map(name = "ctv_stages")]
static STAGES: ProgramArray<STAGES_CAPACITY> = ProgramArray::new();

/// Tail-calls the program of a stage. Returns only if the program is missing.
#[inline(always)]
pub(crate) fn enter(ctx: &TcContext, stage: Stage) {
    // SAFETY: no value of the caller has a destructor, and no lock is held.
    unsafe { STAGES.tail_call(ctx, stage as u32) };
}
