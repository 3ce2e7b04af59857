//! Runs the real binaries as users do. The end-to-end tests and the `lab` program (demo, benchmarks, replay) use this
//! library; it does not link netmaster or netplugin.
//!
//! Modules from low to high: `binaries`, `processor`, `interrupt`, `http`; `progress`, `master`, `load`, `traffic`;
//! `cluster`; `replay`, `faults`; `demo`; `bench`. A module imports only lower ones.

pub mod bench;
pub mod binaries;
pub mod cluster;
pub mod demo;
pub mod faults;
pub mod http;
pub mod install;
pub mod interrupt;
pub mod load;
pub mod master;
pub mod processor;
pub mod progress;
pub mod replay;
pub mod traffic;
