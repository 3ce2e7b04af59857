//! Resources that a test process owns: namespaces, directories, pins, ports; and their cleanup after a kill.

pub(crate) mod bpf;
pub(crate) mod interface;
pub(crate) mod names;
pub(crate) mod netns;
pub(crate) mod port;
pub(crate) mod scratch;
pub(crate) mod sweep;
