//! Subnets of networks to which a node drops packets.

use super::*;

/// Packets from a VLAN to the VXLAN networks of its tenant would leave through the kernel, and reach any host that has
/// the address there.
#[test]
fn a_node_that_routes_vlans_has_the_subnets_of_the_vxlan_networks_of_their_tenant() {
    let vlan = Event::Network { n: 1, encap: Some(Encap::Vlan(5.try_into().unwrap())), subnets: 0 };
    let Event::Network { encap, .. } = vxlan(2) else { unreachable!() };
    let other = Event::Network { n: 2, encap, subnets: 2 };
    let mut state = State::default();
    state.route_vlans();
    let mut desired = Desired::default();
    let mut planned = |state: &mut State, event: Event| -> Vec<String> {
        let dirty = apply_event(state, event, 0);
        update(&mut desired, state, &node(), &dirty);
        assert_eq!(desired, full(state, &node()));
        let subnets = desired.iter().filter(|(id, _)| matches!(id, ObjectId::Subnet(_)));
        subnets.map(|(id, _)| id.to_string()).collect()
    };
    let endpoint = |net, host| Event::Endpoint { n: 1, at: Some((net, host, 1)), group: 0 };
    for event in [Event::Config { flood: false, routing: true }, vlan, other] {
        assert_eq!(planned(&mut state, event), [""; 0]);
    }
    assert_eq!(planned(&mut state, endpoint(1, 0)), ["subnet n1.t ipv4", "subnet n2.t ipv4"]);
    // The network has its own VRF: its addresses overlap those of the VLAN.
    let same = Event::Network { n: 2, encap, subnets: 0 };
    assert_eq!(planned(&mut state, same), ["subnet n1.t ipv4"]);
    let apart = Event::Network { n: 2, encap, subnets: 2 };
    assert_eq!(planned(&mut state, apart), ["subnet n1.t ipv4", "subnet n2.t ipv4"]);
    assert_eq!(planned(&mut state, endpoint(1, 1)), [""; 0]);
    // A node that only has VXLAN networks has no route to the VLANs.
    assert_eq!(planned(&mut state, endpoint(2, 0)), ["subnet n2.t ipv4"]);
}
