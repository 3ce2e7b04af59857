//! Location of the partial checksum information in `struct sk_buff` of the running kernel: the checksum that the kernel
//! has yet to write into a frame.

use std::{fs, sync::LazyLock};

use aya::{
    programs::ProgramType,
    sys::{BpfHelper, is_helper_supported},
};
use contiv_abi::SkbLayout;

use crate::{
    datapath::btf::{Btf, Member, VMLINUX},
    error::one_line,
};

const STRUCTURE: &str = "sk_buff";

/// Returns the warning that the pods' kernels complete checksums, with the cause.
pub(crate) fn offload_warning(cause: &str) -> String {
    format!(
        "checksums: TX checksum offload of pods is off, because the programs cannot see what checksums are missing: {cause}"
    )
}

/// Returns the layout that programs are loaded with, or the reason why it is unknown. If it is unknown, the pods' kernels
/// must complete checksums.
pub(crate) fn layout() -> Result<SkbLayout, &'static str> {
    static LAYOUT: LazyLock<Result<SkbLayout, String>> = LazyLock::new(|| {
        let layout = find();
        if let Err(cause) = &layout {
            tracing::warn!(
                "read checksums that pods leave to the kernel: {cause}; TX checksum offload of pods is turned off"
            );
        }
        layout
    });
    match &*LAYOUT {
        Ok(layout) => Ok(*layout),
        Err(cause) => Err(cause.as_str()),
    }
}

/// The value of the global [`SkbLayout::GLOBAL`] on this kernel.
pub fn skb_layout() -> [u32; 4] {
    layout().unwrap_or(SkbLayout::UNKNOWN).words()
}

fn find() -> Result<SkbLayout, String> {
    const HELPER: BpfHelper = BpfHelper::BPF_FUNC_probe_read_kernel;
    match is_helper_supported(ProgramType::SchedClassifier, HELPER) {
        Ok(true) => {}
        Ok(false) => return Err(format!("the kernel refuses {HELPER:?}, as with lockdown=confidentiality")),
        Err(error) => return Err(format!("probe for {HELPER:?}: {}", one_line(&error))),
    }
    let data = fs::read(VMLINUX).map_err(|error| format!("read {VMLINUX}: {error}"))?;
    let types = Btf::parse(&data).ok_or_else(|| format!("read {VMLINUX}: the BTF is not valid"))?;
    layout_of(&types)
}

fn layout_of(types: &Btf<'_>) -> Result<SkbLayout, String> {
    let member = |name: &str| {
        let member = types.member(STRUCTURE, name);
        member.ok_or_else(|| format!("the kernel's {STRUCTURE} has no member {name}"))
    };
    let places = Places {
        summed: member("ip_summed")?,
        start: member("csum_start")?,
        offset: member("csum_offset")?,
        head: member("head")?,
        data: member("data")?,
    };
    places
        .layout()
        .ok_or_else(|| format!("the members of the kernel's {STRUCTURE} are elsewhere: {places:?}"))
}

#[derive(Clone, Copy, Debug)]
struct Places {
    summed: Member,
    start: Member,
    offset: Member,
    head: Member,
    data: Member,
}

impl Places {
    /// The layout; `None` if the programs cannot read it.
    fn layout(self) -> Option<SkbLayout> {
        const BYTE: u32 = 8;
        const WORD: u32 = 32;
        const POINTER: u32 = 64;
        /// Bits of `ip_summed`; CHECKSUM_PARTIAL has both.
        const SUMMED: u32 = 0b11;
        let Places { summed, start, offset, head, data } = self;
        let bit = summed.offset % WORD;
        let block = summed.offset - bit;
        let distance = start.offset.checked_sub(block)? / BYTE;
        let fits = summed.bits == SUMMED.count_ones()
            && bit + summed.bits <= WORD
            && start.offset.is_multiple_of(WORD)
            && offset.offset == start.offset + WORD / 2
            && distance as usize + size_of::<u32>() <= SkbLayout::BLOCK
            && head.offset.is_multiple_of(POINTER)
            && data.offset == head.offset + POINTER;
        fits.then_some(SkbLayout {
            block: block / BYTE,
            summed: SUMMED << bit,
            start: distance,
            head: head.offset / BYTE,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux 6.18 on x86-64.
    fn places() -> Places {
        let at = |offset| Member { offset, bits: 0 };
        Places {
            summed: Member { offset: 1029, bits: 2 },
            start: at(1088),
            offset: at(1104),
            head: at(1536),
            data: at(1600),
        }
    }

    #[test]
    fn a_known_layout_is_translated() {
        let layout = SkbLayout { block: 128, summed: 3 << 5, start: 8, head: 192 };
        assert_eq!(places().layout(), Some(layout));
        let second = Places { summed: Member { offset: 1024 + 14, bits: 2 }, ..places() };
        assert_eq!(second.layout(), Some(SkbLayout { summed: 3 << 14, ..layout }));
    }

    #[test]
    fn a_layout_that_programs_cannot_read_is_refused() {
        let at = |offset| Member { offset, bits: 0 };
        for unknown in [
            Places { summed: Member { offset: 1029, bits: 3 }, ..places() },
            Places { summed: Member { offset: 1024 + 31, bits: 2 }, ..places() },
            Places { summed: Member { offset: 2048, bits: 2 }, ..places() },
            Places { start: at(1096), offset: at(1112), ..places() },
            Places { start: at(1216), offset: at(1232), ..places() },
            Places { offset: at(1120), ..places() },
            Places { head: at(1528), data: at(1592), ..places() },
            Places { data: at(1664), ..places() },
        ] {
            assert_eq!(unknown.layout(), None, "{unknown:?}");
        }
    }

    #[test]
    fn the_layout_of_the_running_kernel_is_known() {
        let Ok(data) = fs::read(VMLINUX) else {
            testkit::skip!("the kernel has no {VMLINUX}");
        };
        let layout = layout_of(&Btf::parse(&data).unwrap()).unwrap();
        assert_ne!(layout.summed, 0);
    }
}
