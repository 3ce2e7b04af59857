//! Runs the real binaries as their users do. The tests beside this folder and the `lab` program (demo, benchmarks,
//! replay) share what is here; neither links the master or the agent.

pub mod binaries;
pub mod http;
pub mod master;
pub mod replay;
