//! BPF programs: attachment to interfaces.

pub(crate) mod clsact;
pub(crate) mod tc;
pub(crate) mod xdp;
