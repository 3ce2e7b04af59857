//! Stack of a program, computed from its instructions as the verifier of Linux 6.1 computes it
//! (`check_max_stack_depth` in kernel/bpf/verifier.c).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use aya_obj::{Object, generated::bpf_insn};

/// Stack that the kernel gives to a chain of calls, in bytes.
pub(crate) const STACK: usize = 512;
/// Frames of a chain of calls (`MAX_CALL_FRAMES`).
pub(crate) const FRAMES: usize = 8;
/// Instructions that a branch can skip: its offset has 16 bits.
pub(crate) const BRANCH: usize = i16::MAX as usize;

/// What the deepest chain of calls uses, and the longest branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Stack in bytes.
    pub(crate) stack: usize,
    /// Frames.
    pub(crate) frames: usize,
    /// Instructions that the longest branch skips.
    pub(crate) branch: usize,
}

/// Usage of each program of an object file, by name.
pub(crate) fn of_programs(object: &[u8]) -> Result<BTreeMap<String, Usage>> {
    let mut object = Object::parse(object)?;
    let sections = object.functions.keys().map(|(section, _)| *section).collect();
    // Afterwards a program's instructions contain those of the functions that it calls.
    object.relocate_calls(&sections)?;
    let mut usages = BTreeMap::new();
    for (name, program) in &object.programs {
        let function = object.functions.get(&program.function_key()).context("a program without code")?;
        usages.insert(name.clone(), usage(&function.instructions).with_context(|| name.clone())?);
    }
    Ok(usages)
}

/// A function of a program.
#[derive(Default)]
struct Function {
    /// Bytes below the frame pointer.
    stack: usize,
    /// First instructions of the functions that it calls, or passes to `bpf_loop`.
    calls: BTreeSet<usize>,
}

fn usage(instructions: &[bpf_insn]) -> Result<Usage> {
    let (functions, timers) = functions(instructions)?;
    let mut usage = Usage::default();
    // The kernel calls a timer's callback with a stack of its own.
    for root in timers.into_iter().chain([0]) {
        let (stack, frames) = deepest(&functions, root, 0)?;
        usage = Usage { stack: usage.stack.max(stack), frames: usage.frames.max(frames), ..usage };
    }
    let branches = instructions.iter().filter(|insn| is_branch(insn));
    usage.branch = branches.map(|insn| usize::from(insn.off.unsigned_abs())).max().unwrap_or(0);
    Ok(usage)
}

/// Stack and frames of the deepest chains that begin with a function.
fn deepest(functions: &BTreeMap<usize, Function>, first: usize, depth: usize) -> Result<(usize, usize)> {
    ensure!(depth < 64, "the calls are recursive");
    let function = functions.get(&first).context("a call of no function")?;
    let (mut stack, mut frames) = (0, 0);
    for call in &function.calls {
        let (below, count) = deepest(functions, *call, depth + 1)?;
        (stack, frames) = (stack.max(below), frames.max(count));
    }
    Ok((stack + function.stack.max(1).next_multiple_of(32), frames + 1))
}

const CLASS: u8 = 0x07;
const LDX: u8 = 0x01;
const ST: u8 = 0x02;
const STX: u8 = 0x03;
const JMP: u8 = 0x05;
const JMP32: u8 = 0x06;
const ALU64: u8 = 0x07;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const LOAD_64: u8 = 0x18;
const MOVE: u8 = 0xbf;
const ADD: u8 = 0x07;
const FRAME_POINTER: u8 = 10;
/// `BPF_PSEUDO_CALL`.
const FUNCTION_CALL: u8 = 1;
/// `BPF_PSEUDO_FUNC`.
const FUNCTION_ADDRESS: u8 = 4;
const TIMER_SET_CALLBACK: i32 = 170;

fn is_branch(insn: &bpf_insn) -> bool {
    matches!(insn.code & CLASS, JMP | JMP32) && insn.code != CALL && insn.code != EXIT
}

/// The functions by their first instructions, and the callbacks of timers among them.
fn functions(instructions: &[bpf_insn]) -> Result<(BTreeMap<usize, Function>, BTreeSet<usize>)> {
    let mut functions = BTreeMap::from([(0, Function::default())]);
    let (mut timers, mut calls) = (BTreeSet::new(), vec![]);
    for (at, insn) in instructions.iter().enumerate() {
        let called = insn.code == CALL && insn.src_reg() == FUNCTION_CALL;
        let taken = insn.code == LOAD_64 && insn.src_reg() == FUNCTION_ADDRESS;
        if !(called || taken) {
            continue;
        }
        let target = usize::try_from(at as i64 + i64::from(insn.imm) + 1)?;
        functions.insert(target, Function::default());
        let mut helpers = instructions.iter().skip(at + 1).filter(|insn| insn.code == CALL);
        if taken && helpers.next().is_some_and(|call| call.imm == TIMER_SET_CALLBACK) {
            timers.insert(target);
        } else {
            calls.push((at, target));
        }
    }
    for (at, target) in calls {
        let (_, caller) = functions.range_mut(..=at).next_back().context("an instruction of no function")?;
        caller.calls.insert(target);
    }
    let starts: Vec<usize> = functions.keys().copied().chain([instructions.len()]).collect();
    for bounds in starts.windows(2) {
        let [from, to] = bounds else { continue };
        if let Some(function) = functions.get_mut(from) {
            function.stack = stack(instructions.get(*from..*to).context("a function without an end")?);
        }
    }
    Ok((functions, timers))
}

/// Bytes below the frame pointer that a function accesses, or takes the address of.
fn stack(instructions: &[bpf_insn]) -> usize {
    // Offset from the frame pointer, for each register that is known to have one. LLVM computes addresses at once before
    // their use, so branches need not be followed.
    let mut offsets = [None; 11];
    offsets[usize::from(FRAME_POINTER)] = Some(0);
    let mut deepest = 0;
    for insn in instructions {
        let (to, from) = (usize::from(insn.dst_reg()), usize::from(insn.src_reg()));
        let class = insn.code & CLASS;
        let base = match class {
            ST | STX => offsets[to],
            LDX => offsets[from],
            _ => None,
        };
        let accessed = base.map(|base: i64| base + i64::from(insn.off));
        let computed = match (insn.code, offsets[to]) {
            (MOVE, _) => offsets[from],
            (ADD, Some(offset)) => Some(offset + i64::from(insn.imm)),
            _ => None,
        };
        if class == LDX || class == ALU64 || class == 0x04 || insn.code == LOAD_64 {
            offsets[to] = computed;
        } else if insn.code == CALL {
            offsets[..6].fill(None);
        }
        for offset in [accessed, computed].into_iter().flatten() {
            deepest = deepest.max(usize::try_from(-offset).unwrap_or(0));
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(code: u8, to: u8, from: u8, off: i16, imm: i32) -> bpf_insn {
        // SAFETY: integers.
        let mut insn: bpf_insn = unsafe { std::mem::zeroed() };
        (insn.code, insn.off, insn.imm) = (code, off, imm);
        insn.set_dst_reg(to);
        insn.set_src_reg(from);
        insn
    }

    #[test]
    fn a_chain_of_calls_adds_up_in_units_of_32_bytes() {
        const STORE: u8 = 0x7b;
        let program = [
            // main: 40 bytes, calls a function at 5.
            insn(STORE, 10, 1, -40, 0),
            insn(0x05, 0, 0, 1, 0),
            insn(CALL, 0, FUNCTION_CALL, 0, 2),
            insn(CALL, 0, FUNCTION_CALL, 0, 4),
            insn(EXIT, 0, 0, 0, 0),
            // A function that uses 8 bytes by a copy of the frame pointer.
            insn(MOVE, 2, 10, 0, 0),
            insn(ADD, 2, 0, 0, -8),
            insn(EXIT, 0, 0, 0, 0),
            // A function without a stack.
            insn(EXIT, 0, 0, 0, 0),
        ];
        assert_eq!(usage(&program).unwrap(), Usage { stack: 96, frames: 2, branch: 1 });
    }
}
