//! Host access: packets of routed VXLAN networks to addresses outside all subnets leave and enter the node through its
//! kernel.
//!
//! ```text
//!  pod ─▶ 16 routed ─ 7 in no subnet ─ 4 policy ... 9 ─ 8 private source ─▶ kernel
//!  kernel ─▶ 0 ─ 2 private destination ─ 14 to 16 checks ─ 7 ─ 4 policy ... 9 ─▶ pod
//! ```
//!
//! The translation is stateless. Rules and connection tracking use the pod's address. The kernel decrements the TTL.

use contiv_model::{mac::Mac, policy::ICMP};
use ipnet::Ipv4Net;
use openflow_rs::{Action, Field, Flow, Match, Slice, matching::mac_bits};

use super::{
    answer, guard, kernel,
    metadata::{Domain, NETWORK, NETWORK_SHIFT, OUTSIDE, Segment, network_match_from, routed},
    table::{self, priority, priority::check, priority::router as rank},
};
use crate::datapath::{
    KERNEL_MAC, Local, Subnet,
    host_access::{NO_HOST, endpoint_address, kernel_address},
};

/// Bit that is set if the destination is in a subnet of the VRF or in the private one. Policies use the bit later.
const IS_INSIDE: Slice = Slice { field: Field::Reg15, offset: 0, width: 1 };

/// Destination unreachable, time exceeded, parameter problem (RFC 792). They quote an address that their receiver does
/// not know.
const ICMP_ERRORS: [u8; 3] = [3, 11, 12];

/// Configuration of host access on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostAccess {
    /// Port number of the kernel.
    pub(crate) port: u32,
    /// Private subnet.
    pub(crate) subnet: Ipv4Net,
}

/// Returns the flow of the kernel's port.
pub(crate) fn from_kernel(port: u32) -> Flow {
    let m = Match::new().in_port(port.into()).eth_src(KERNEL_MAC.0).eth_dst(KERNEL_MAC.0).no_vlan();
    Flow::new(table::INPUT, priority::MATCH, m).goto(table::HOST_DNAT)
}

/// Matches packets that pods of a domain send to the router and whose destination no flow has recognised yet.
fn unknown(domain: Domain) -> Match {
    routed(domain.packets_from(0)).masked(IS_INSIDE.field, 0u8, 1u8)
}

/// Marks the destination as inside: the packet is delivered only to a known endpoint.
fn inside(matching: Match) -> Flow {
    let again = [Action::load(1, IS_INSIDE), Action::resubmit(table::IP)];
    Flow::new(table::IP, rank::OTHER_VRF, matching).apply(again)
}

/// Returns the flows of the default route of a domain.
pub(crate) fn route(domain: Domain, HostAccess { port, subnet }: HostAccess) -> Vec<Flow> {
    let (address, bits) = (subnet.network(), subnet.prefix_len());
    let to_kernel = unknown(domain).ipv4_dst(kernel_address(subnet), 32);
    let received = domain.packets_from(OUTSIDE).in_port(port.into()).eth_dst(Mac::ROUTER.0).ipv4();
    let mut flows = vec![
        Flow::new(table::IP, rank::OUTSIDE, unknown(domain).ipv4()).apply(kernel::leave()),
        // Endpoints cannot reach each other by private addresses.
        inside(unknown(domain).ipv4_dst(address, bits)),
        Flow::new(table::IP, rank::SAME_VRF, to_kernel).apply(kernel::leave()),
        Flow::new(table::DESTINATION, priority::MATCH, domain.packets_from(0).eth_dst(Mac::ROUTER.0))
            .apply([answer::unseen(), Action::resubmit(table::HOST_SNAT)]),
        Flow::new(table::TARGET, check::CLAIMED_BY_OWNER, received).apply([Action::resubmit(table::IP)]),
    ];
    let no_host = |prefix: Ipv4Net| inside(unknown(domain).ipv4_dst(prefix.addr(), prefix.prefix_len()));
    flows.extend(NO_HOST.map(no_host));
    flows
}

/// Returns the flows of a subnet of a domain with host access.
pub(crate) fn subnet(subnet: &Subnet, domain: Domain, HostAccess { port, .. }: HostAccess) -> Vec<Flow> {
    let prefix = subnet.prefix;
    if !subnet.is_routed() || prefix.addr().is_ipv6() {
        return vec![];
    }
    let claimed = guard::source_within(domain.packets_from(OUTSIDE).in_port(port.into()), prefix);
    vec![
        inside(guard::destination_within(unknown(domain), prefix)),
        Flow::new(table::STATION, check::FROM_KERNEL, claimed),
    ]
}

/// Returns the flows of the local endpoint at `port`, which has one private address.
pub(crate) fn local(local: &Local, segment: Segment, port: u32, host: HostAccess) -> Vec<Flow> {
    let address = local.addresses.v4().next().filter(|ip| segment.routed.has((*ip).into()));
    let Some((ip, private)) = address.zip(endpoint_address(host.subnet, &local.port)) else { return vec![] };
    let Segment { tag, domain, .. } = segment;
    let sent = network_match_from(tag, 0).in_port(port.into()).eth_dst(Mac::ROUTER.0).ipv4_src(ip, 32);
    let leave = [
        Action::set(Field::Ipv4Src, private.to_bits()),
        Action::set(Field::EthDst, mac_bits(KERNEL_MAC.0)),
        Action::output(host.port),
    ];
    let received = || Match::new().in_port(host.port.into()).ipv4_dst(private, 32);
    let router = [Field::EthSrc, Field::EthDst].map(|field| Action::set(field, mac_bits(Mac::ROUTER.0)));
    let mut flows = vec![
        Flow::new(table::HOST_SNAT, priority::MATCH, sent.clone()).apply(leave),
        Flow::new(table::HOST_DNAT, priority::MATCH, received())
            .apply([Action::set(Field::Ipv4Dst, ip.to_bits())])
            .apply(router)
            .apply(domain.enter())
            .write_metadata(u64::from(tag) << NETWORK_SHIFT | OUTSIDE, NETWORK | OUTSIDE)
            .goto(table::STATION),
    ];
    flows.extend(ICMP_ERRORS.map(|kind| {
        let error = received().ip_proto(ICMP).field(Field::Icmpv4Type, kind);
        let (error, restore) = answer::restore(error, ip);
        Flow::new(table::HOST_DNAT, priority::INTERCEPT, error).apply(restore)
    }));
    flows.extend(ICMP_ERRORS.map(|kind| {
        let error = sent.clone().ip_proto(ICMP).field(Field::Icmpv4Type, kind);
        let (error, conceal) = answer::conceal(error, private);
        Flow::new(table::HOST_SNAT, priority::INTERCEPT, error).apply(conceal)
    }));
    flows
}
