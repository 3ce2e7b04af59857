//! Small BPF programs, assembled by hand: baselines of measurements, and frame generators.

use std::{
    ffi::CString,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    path::Path,
};

use anyhow::{Context as _, Result};
use nix::{errno::Errno, libc};

/// `enum bpf_prog_type` of the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    SchedCls = 3,
    Xdp = 6,
}

/// Encodes an instruction: opcode, registers, offset, immediate (`struct bpf_insn`).
pub(super) const fn instruction(code: u8, [to, from]: [u8; 2], offset: i16, constant: i32) -> u64 {
    code as u64
        | (to as u64) << 8
        | (from as u64) << 12
        | (offset.cast_unsigned() as u64) << 16
        | (constant.cast_unsigned() as u64) << 32
}

/// A program that returns a constant.
pub(super) const fn returns(number: i32) -> [u64; 2] {
    [instruction(0xb7, [0, 0], 0, number), instruction(0x95, [0, 0], 0, 0)]
}

/// An XDP program that assigns each frame to a random flow and sends it (XDP_TX). It rewrites the MAC addresses and the two
/// bytes at `at`, which identify the flow. `flows` is a power of two.
pub(super) fn sender(ethernet: [u8; 12], at: i16, flows: u16) -> Vec<u64> {
    const FIRST_FLOW: i32 = 0x4000;
    const PRANDOM: i32 = 7;
    let word = |from: usize| i32::from_le_bytes(std::array::from_fn(|byte| ethernet[from + byte]));
    let end = i32::from(at) + 2;
    vec![
        instruction(0xbf, [6, 1], 0, 0),                    // r6 = r1
        instruction(0x85, [0, 0], 0, PRANDOM),              // r0 = random number
        instruction(0x57, [0, 0], 0, i32::from(flows) - 1), // r0 &= flows - 1
        instruction(0x07, [0, 0], 0, FIRST_FLOW),           // r0 += first flow
        instruction(0xdc, [0, 0], 0, 16),                   // to network byte order
        instruction(0x61, [2, 6], 0, 0),                    // r2 = data
        instruction(0x61, [3, 6], 4, 0),                    // r3 = data_end
        instruction(0xbf, [4, 2], 0, 0),                    // r4 = r2
        instruction(0x07, [4, 0], 0, end),                  // r4 += end of the written bytes
        instruction(0x2d, [4, 3], 6, 0),                    // if r4 > r3: drop
        instruction(0x62, [2, 0], 0, word(0)),              // MAC addresses
        instruction(0x62, [2, 0], 4, word(4)),
        instruction(0x62, [2, 0], 8, word(8)),
        instruction(0x6b, [2, 0], at, 0), // flow
        instruction(0xb7, [0, 0], 0, 3),  // XDP_TX
        instruction(0x95, [0, 0], 0, 0),
        instruction(0xb7, [0, 0], 0, 1), // XDP_DROP
        instruction(0x95, [0, 0], 0, 0),
    ]
}

/// A program that follows a chain of `lines` cache lines in the value of an array map: each line has the offset of the next
/// one. Four bytes of the frame are the first offset. `bytes`, the size of the value, is a power of two.
pub(super) fn reads_lines(map: &OwnedFd, bytes: u32, lines: u32) -> Vec<u64> {
    const MAP_VALUE: u8 = 2;
    let mask = (bytes - LINE).cast_signed();
    let mut code = vec![
        instruction(0x61, [2, 1], SKB_DATA, 0),                // r2 = data
        instruction(0x61, [3, 1], SKB_DATA + 4, 0),            // r3 = data_end
        instruction(0xbf, [4, 2], 0, 0),                       // r4 = r2
        instruction(0x07, [4, 0], 0, AT_FRAME + 4),            // r4 += end of the read bytes
        instruction(0x2d, [4, 3], (6 + 4 * lines) as i16, 0),  // if r4 > r3: end
        instruction(0x61, [5, 2], AT_FRAME as i16, 0),         // r5 = first offset
        instruction(0x18, [6, MAP_VALUE], 0, map.as_raw_fd()), // r6 = value
        instruction(0, [0, 0], 0, 0),
    ];
    for _ in 0..lines {
        code.extend([
            instruction(0x54, [5, 0], 0, mask), // r5 &= mask (32 bits)
            instruction(0xbf, [0, 6], 0, 0),    // r0 = r6
            instruction(0x0f, [0, 5], 0, 0),    // r0 += r5
            instruction(0x61, [5, 0], 0, 0),    // r5 = *r0
        ]);
    }
    // The return value depends on all reads.
    code.extend([
        instruction(0x54, [5, 0], 0, 0),
        instruction(0xbf, [0, 5], 0, 0),
        instruction(0x95, [0, 0], 0, 0),
        instruction(0xb7, [0, 0], 0, 0),
        instruction(0x95, [0, 0], 0, 0),
    ]);
    code
}

/// Offset of the bytes of the frame with the first offset: the IPv4 destination address.
const AT_FRAME: i32 = 30;
/// Offset of `data` in `struct __sk_buff`; `data_end` follows it.
const SKB_DATA: i16 = 76;
/// Size of a cache line in bytes.
pub(super) const LINE: u32 = 64;

/// Creates an array map with one value.
pub(super) fn array(value: &[u8]) -> Result<OwnedFd> {
    const MAP_CREATE: libc::c_int = 0;
    const MAP_UPDATE: libc::c_int = 2;
    const ARRAY: u64 = 2;
    let (key, length) = (0_u32, u32::try_from(value.len())?);
    let mut create = [0_u64; 16];
    create[0] = ARRAY | 4 << 32;
    create[1] = u64::from(length) | 1 << 32;
    let map = bpf(MAP_CREATE, &create).context("create an array map")?;
    // SAFETY: the kernel has just returned this descriptor; nothing else owns it.
    let map = unsafe { OwnedFd::from_raw_fd(map) };
    let mut update = [0_u64; 16];
    update[0] = map.as_raw_fd() as u64;
    update[1] = (&raw const key) as u64;
    update[2] = value.as_ptr() as u64;
    bpf(MAP_UPDATE, &update).context("write the array map")?;
    Ok(map)
}

/// Loads a program and pins it.
pub(super) fn pin(kind: Kind, code: &[u64], path: &Path) -> Result<()> {
    const PROG_LOAD: libc::c_int = 5;
    const OBJ_PIN: libc::c_int = 6;
    let license = CString::new("GPL")?;
    let mut load = [0_u64; 16];
    load[0] = kind as u64 | (code.len() as u64) << 32;
    load[1] = code.as_ptr() as u64;
    load[2] = license.as_ptr() as u64;
    let program = bpf(PROG_LOAD, &load).with_context(|| format!("load {}", path.display()))?;
    // SAFETY: the kernel has just returned this descriptor; nothing else owns it.
    let program = unsafe { OwnedFd::from_raw_fd(program) };
    let name = CString::new(path.as_os_str().as_encoded_bytes())?;
    let mut attributes = [0_u64; 16];
    attributes[0] = name.as_ptr() as u64;
    attributes[1] = program.as_raw_fd() as u64;
    bpf(OBJ_PIN, &attributes).with_context(|| format!("pin {}", path.display())).map(drop)
}

fn bpf(command: libc::c_int, attributes: &[u64; 16]) -> Result<libc::c_int> {
    // SAFETY: the pointers are to values that live in the callers until this returns. The kernel accepts trailing
    // zeros.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(attributes)) };
    Ok(Errno::result(result)? as libc::c_int)
}
