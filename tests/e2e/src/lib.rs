//! Runs the real binaries as their users do. The tests beside this folder and the `lab` program (demo, benchmarks,
//! replay) share what is here; neither links the master or the agent.

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
