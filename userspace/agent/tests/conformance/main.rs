//! Conformance tests: one list of scenarios that every datapath must pass.
//!
//! A scenario installs objects on a node, sends frames from pods and from the wire, and states for each frame all copies
//! that must leave the node. The fake datapath is the oracle: a scenario that passes there and fails elsewhere has found a
//! difference.

#[path = "../node/mod.rs"]
#[expect(dead_code, reason = "the attacks use the other half")]
mod node;
mod scenarios;

use node::{harness, topology, world};

/// Defines a `#[test]` for each scenario, named by datapath and scenario.
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
    (
        [$($scenarios:tt)*], [$($with_programs:tt)*], [$($not_on_ovs:tt)*]
    ) => {
        on!(fake, crate::harness::FakeNode, [$($scenarios)* $($not_on_ovs)*]);
        on!(ovs, crate::harness::OvsNode, [$($scenarios)* $($with_programs)*]);
        on!(ebpf, crate::harness::EbpfNode, [$($scenarios)* $($with_programs)* $($not_on_ovs)*]);
    };
}

on_every_datapath!([
    unicast: local_unicast, frames_to_the_own_mac_are_dropped;
    neighbours: requests_are_answered_locally, own_addresses_are_not_answered, duplicates_are_detected,
        requests_for_unknown_addresses_are_flooded, the_outside_gets_replies_for_local_pods, requests_are_flooded_in_flood_mode;
    isolation: networks_with_the_same_addresses, the_outside_stays_in_its_network, pods_cannot_choose_their_network;
    vxlan: vxlan_unicast, unknown_vteps_and_networks, outer_dscp;
    vlan: vlan_unicast, foreign_tags, unknown_unicast_on_vlan, routers_send_errors_from_their_own_addresses,
        routers_send_errors_about_replies;
    flooding: broadcast_and_multicast, flooding_from_outside, unknown_unicast_on_vxlan;
    change: remote_moves_to_another_node, pod_changes_its_address, pod_moves_to_another_node, peer_leaves_and_comes,
        arp_mode_changes, set_twice_writes_once, removal_stops_traffic_and_leaves_nothing;
    restart: restart_writes_nothing, restart_finds_orphans, restart_retains_orphans, cleanup_leaves_nothing;
    drift: lost_forwarding_is_repaired, lost_port_is_repaired, orphans_are_removed;
    failure: missing_interface_fails_alone, unsupported_values_fail_alone;
    policy: rules_out_hold_at_the_source, flows_to_strangers_reach_no_endpoint,
        flows_of_endpoints_reach_no_strangers, an_address_comes_without_its_group, rules_in_hold_at_the_destination, answers_pass, errors_belong_to_their_connection, a_change_is_in_force_at_once,
        the_highest_priority_decides, rules_match_addresses, rules_match_link_local_addresses_in_groups, icmp_rules_match_both_families, policies_do_not_apply_to_neighbour_discovery,
        rules_apply_to_solicitations_from_afar,
        packets_get_the_dscp_of_their_group;
    connections: replies_reach_no_successor, the_other_end_opens_a_connection_of_its_own;
    services: connections_go_to_backends, requests_for_the_address_are_answered, backends_come_and_go,
        backends_are_reachable_directly, policies_see_the_backend, tcp_connections_over_ipv6, a_pod_reaches_itself,
        refused_clients_are_told, errors_are_about_the_service,
        errors_of_clients_go_to_the_backend, connections_keep_their_target_port;
    service_changes: a_new_service_gets_the_packets_of_existing_flows;
    service_collisions: replies_have_the_address_that_was_asked, connections_go_on_with_another_service;
    external: external_clients_reach_backends, one_node_answers_external_clients, addresses_of_services_are_only_announced,
        the_backends_node_translates_for_external_clients, only_backends_get_what_external_clients_send,
        other_ports_of_a_service_reach_no_pod,
        terminating_backends_get_what_other_nodes_forward, policies_see_external_clients, external_clients_are_refused,
        external_connections_keep_their_target_port;
    routing: gateways_answer_arp_and_nd, the_router_answers_for_other_networks, gateways_answer_pings, local_pods_on_two_networks,
        pods_of_other_nodes, routers_speak_for_their_own_pods, tenants_are_not_routed_to_each_other,
        unknown_destinations_are_dropped, services_do_not_route_link_local_addresses, errors_are_routed, the_ttl_is_exceeded_at_the_gateway;
    routing_policies: policies_apply_between_networks, services_have_backends_on_other_networks, routed_packets_get_a_dscp,
        expired_packets_to_services_choose_a_backend;
    routing_vlan: gateways_of_vlans_answer, frames_stay_on_the_node, discovery_does_not_leave, pods_of_routed_vlans_on_one_node, packets_leave_by_the_kernel,
        the_kernel_reaches_pods, the_kernel_speaks_for_no_pod_of_the_node, tenants_on_vlans_are_separate,
        a_vlan_has_a_vrf_of_its_own, policies_apply_to_the_kernel, policies_apply_to_expired_packets, services_have_backends_behind_the_kernel, errors_about_packets_to_the_kernel,
        pods_move_behind_the_kernel, vlans_are_bridged_again, restart_with_routed_vlans_writes_nothing;
    routing_kinds: networks_of_two_kinds_are_separate, routers_speak_for_networks_of_their_kind,
        gateways_of_both_kinds_answer_pings, services_have_backends_of_their_own_kind;
    host_access: packets_leave_and_return_by_the_kernel, tenants_have_host_access_of_their_own, errors_are_about_the_packets_of_their_receiver,
        errors_are_about_the_packets_of_the_kernel,
        other_destinations_are_closed, the_kernel_speaks_for_no_endpoint, policies_apply_to_host_access,
        the_route_comes_and_goes, restart_with_host_access_writes_nothing;
    routing_changes: the_forward_mode_changes, routed_subnets_come_and_go, restart_of_a_routing_node_writes_nothing;
], [
    programs: local_pods_talk, pods_talk_by_vxlan, restart_loses_no_ping, changes_lose_no_ping;
    services: a_deleted_backend_is_replaced, clients_keep_their_backend, connections_at_once_keep_their_backend, services_survive_a_restart;
    session_affinity: clients_have_one_backend_for_all_ports;
    external: external_clients_keep_their_backend;
], [
    flooding: copies_go_to_nodes_with_the_network;
]);
