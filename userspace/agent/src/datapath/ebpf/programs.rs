//! The BPF programs and their attachment to interfaces. From low to high:
//!
//! | module | contents |
//! |---|---|
//! | [`clsact`] | filters of the clsact qdisc, for kernels without TCX |
//! | [`tc`] | attachment to the TC ingress hook |
//! | [`xdp`] | attachment to the XDP hook of the uplink |
//! | [`stages`] | program arrays for tail calls |
//! | [`load`] | the compiled object: load, pin, open |
//! | [`stage_log`] | the log of programs that log their stages |
//! | [`import`] | the program that inserts flows of another table |
//! | [`migration`] | moves all flows of another table |
//! | [`kernel_port`] | the interfaces to the node's kernel |
//! | [`interfaces`] | the VXLAN device, the uplink, the interfaces to the kernel, and the programs on them |

pub(crate) mod clsact;
pub(crate) mod import;
pub(crate) mod interfaces;
pub(crate) mod kernel_port;
pub(crate) mod load;
pub(crate) mod migration;
pub(crate) mod stage_log;
pub(crate) mod stages;
pub(crate) mod tc;
pub(crate) mod xdp;
