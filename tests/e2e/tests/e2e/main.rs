//! Tests of the real binaries. They are modules of one program, so that they are linked once and run beside each other:
//! each takes the machine lock of testkit, either shared or exclusively.

mod bad_input;
mod bench;
mod bgp;
mod cleanup;
mod cni_peers;
mod demo;
mod faults;
mod infra;
mod ipam;
mod load;
mod lost_store;
mod monitor;
mod monitoring;
mod netctl;
mod openapi;
mod outside;
mod replace_datapath;
mod replay;
mod routing;
mod secure_agent;
mod survival;
