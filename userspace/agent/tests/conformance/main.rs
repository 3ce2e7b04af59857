//! One list of scenarios, and every datapath must pass all of them.
//!
//! A scenario tells a node some objects, sends frames from pods and from the wire, and says for each frame all that
//! must come out, everywhere. What the fake datapath does is the oracle's answer, so a scenario that passes there and
//! fails elsewhere has found a difference.

mod harness;
mod scenarios;
mod topology;
mod wire;
mod world;

/// A `#[test]` for each scenario, named after the datapath and the scenario.
macro_rules! on {
    ($datapath:ident, $node:ty, [$($module:ident: $($scenario:ident),+ $(,)?;)*]) => {
        mod $datapath {
            $($(
                #[test]
                fn $scenario() -> ::anyhow::Result<()> {
                    if let Some(reason) = <$node as crate::harness::Harness>::missing() {
                        ::testkit::skip!("{reason}");
                    }
                    crate::scenarios::$module::$scenario::<$node>()
                }
            )+)*
        }
    };
}

macro_rules! on_every_datapath {
    ([$($scenarios:tt)*], [$($with_programs:tt)*], [$($with_policies:tt)*], [$($with_services:tt)*]) => {
        on!(fake, crate::harness::FakeNode, [$($scenarios)* $($with_policies)* $($with_services)*]);
        // Knows neither policies nor services, and says so: `tests/ovs`.
        on!(ovs, crate::harness::OvsNode, [$($scenarios)* $($with_programs)*]);
        on!(ebpf, crate::harness::EbpfNode,
            [$($scenarios)* $($with_programs)* $($with_policies)* $($with_services)*]);
    };
}

on_every_datapath!([
    unicast: local_unicast, own_mac_goes_nowhere;
    neighbours: questions_are_answered_in_place, own_addresses_are_not_answered, duplicates_are_detected,
        unknown_addresses_are_asked_everywhere, the_outside_is_answered_for_local_pods, questions_are_flooded_in_flood_mode;
    isolation: networks_with_the_same_addresses, the_outside_stays_in_its_network, pods_choose_no_network;
    vxlan: vxlan_unicast, unknown_vteps_and_networks, outer_class_of_service;
    vlan: vlan_unicast, foreign_tags, unknown_unicast_on_vlan;
    flooding: broadcast_and_multicast, flooding_from_outside, unknown_unicast_on_vxlan;
    change: remote_moves_to_another_node, pod_changes_its_address, pod_moves_to_another_node, peer_leaves_and_comes,
        arp_mode_changes, set_twice_writes_once, removal_stops_traffic_and_leaves_nothing;
    restart: restart_writes_nothing, restart_finds_what_is_not_wanted_any_more, cleanup_leaves_nothing;
    drift: lost_forwarding_is_repaired, lost_port_is_repaired, litter_is_swept;
    failure: missing_interface_fails_alone;
], [
    programs: local_pods_talk, pods_talk_by_vxlan, restart_loses_no_ping, changes_lose_no_ping;
], [
    policy: rules_out_hold_at_the_source, rules_in_hold_at_the_destination, answers_pass, a_change_is_in_force_at_once,
        the_highest_priority_decides, addresses_count, icmp_is_of_both_families, neighbours_are_found_whatever_the_policy,
        packets_are_marked;
], [
    services: connections_go_to_backends, the_address_is_answered_on_its_network, backends_come_and_go,
        backends_are_reached_beside_the_service, policies_see_the_backend;
]);
