//! Flow tables of the bridges. Pure functions that return flows and groups.
//!
//! The numbers of tables 0 to 9 are those of the original Contiv. Metadata bits 40 to 63 hold the tag of the network on the
//! bridge (VLAN id or VNI). The first tables set it, and every flow that outputs a frame matches it, so that a frame cannot
//! leave its network. A routed packet gets another tag in table 7. Bits 1 to 39 hold the service that a packet is for. No table
//! pushes or pops a tag. Networks that are routed to each other share a VRF, whose number is in a register: addresses, rules,
//! connections and services are those of the VRF.
//!
//! ```text
//!  0 input ─ 1 source ─┬─ local pod ────── 13 ─ guard ─┬─ 3 services ─ 4 policies ─ 22 DSCP ─ 6 ─ 9 destination: local pod, tunnel,
//!                      │                               │                                          BUM flood (VXLAN),
//!                      │                               │  │                                       NORMAL (VLAN)
//!                      ├─ tunnel, uplink ─ 14 ─ guard ─┘  │
//!                      └─ drop                            └─ requests of pods ─ 10 lookup ─ 11 reply ─ 12 ND option
//! ```
//!
//! * [`table`]: table numbers and priorities.
//! * [`metadata`]: metadata bits and matches on them.
//! * [`group`]: groups for BUM traffic.
//! * [`guard`]: checks of addresses (anti-spoofing).
//! * [`policy`]: rules, connection tracking, DSCP.
//! * [`neighbour`]: ARP and ND.
//! * [`base`]: flows that exist for any desired state.
//! * [`service`]: translation to backends of services and back.
//! * [`external`]: services for clients outside the cluster.
//! * [`route`]: delivery by IP address.
//! * [`kernel`]: VLAN networks that the node routes to the physical network.
//! * [`host`]: host access of VXLAN networks.
//! * [`forward`]: flows of each object.
//! * [`answer`]: what the agent answers.
//! * [`tracked`]: connections that the agent records.
//! * [`misread`]: packets that ovs-vswitchd and the kernel read differently.
//! * [`released`]: fragments that connection tracking releases.
//! * [`retracted`]: drops for a limited time.
//! * [`slow_path`]: packets about which ovs-vswitchd decides one by one.
//! * [`family`]: IPv4 and IPv6.
//! * [`stage`]: the stages of a trace.

mod answer;
mod base;
mod external;
mod family;
mod forward;
mod group;
mod guard;
mod host;
mod kernel;
mod metadata;
mod misread;
mod neighbour;
mod policy;
mod released;
mod retracted;
mod route;
mod service;
mod slow_path;
mod stage;
mod table;
mod tracked;

pub(crate) use self::{
    answer::{ANSWER_TABLES, answer, meters},
    base::{base_flows, drop_all},
    external::external,
    forward::{
        ENTRY_TABLE, Spread, from_network, is_entry, local, network, outside, remote, subnet, tunnel,
        unattached, vrf_number, vtep,
    },
    group::{
        MAX_BACKENDS, MAX_BUCKETS, UPLINK_GROUP, all_group, backend_group, endpoint_group, output_port,
        peer_group, receiver_group, uplink_group,
    },
    guard::{RECORD_TABLE, addresses, recorded_identity},
    host::{HostAccess, from_kernel, local as host_local, route as host_route, subnet as host_subnet},
    metadata::{Domain, MAX_SERVICE, MAX_VRF, Routed, Segment, bridge_and_tag},
    misread::is_misread,
    neighbour::replies_by_bond,
    policy::{Opener, RULE_TABLES, Receiver, counted_rules, receiver_port, receivers, rules},
    route::{DROP_TABLES, apart, counted_drops},
    service::{
        Counted, SERVICE_NUMBERS, SERVICE_TABLES, chosen_backend, chosen_port, counted_services,
        has_selection, is_learned, is_of_service, ready, selection, service, service_number,
    },
    stage::stage_of,
    table::TRANSLATION_TABLES,
    tracked::{accepted, chosen},
};

#[cfg(test)]
mod tests;
