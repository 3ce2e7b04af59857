//! Tests of the eBPF datapath with single frames and with real traffic.
//!
//! `node` creates a node: a network namespace, its own BPF file system, the datapath in it, and pods. `run` passes
//! single frames to the pinned programs with `BPF_PROG_TEST_RUN` and returns verdict and bytes. Tests with frames on
//! links cover what such a run cannot carry: tunnel keys, hardware-accelerated VLAN tags, and the target of a
//! redirect.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod announcements;
mod campaign;
mod checksum_offload;
mod checksums;
mod counters;
mod deleted_endpoints;
mod domains;
mod equivalence;
mod established;
mod external;
mod floods;
mod flow_table;
mod flows;
mod from_overlay;
mod from_pod;
mod from_uplink;
mod full_maps;
mod fuzz;
mod host_access;
mod infra;
mod ipv6_vteps;
mod malformed;
mod members;
mod memory;
mod monitor;
mod node;
mod policy;
mod rates;
mod restart;
mod routing;
mod run;
mod scale;
mod services;
mod stage_log;
mod stages;
mod stand_by;
mod trace;
#[path = "../node/traced.rs"]
mod traced;
mod traffic;
mod upgrade;
mod uplinks;
mod user_pages;
mod verifier;
mod vlan_routing;
