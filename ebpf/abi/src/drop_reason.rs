//! Drop reasons.

/// Frames and bytes of one reason on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct DropCount {
    /// Number of frames.
    pub packets: u64,
    /// Bytes of these frames.
    pub bytes: u64,
}

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// Why a frame was dropped; the number is the index in `ctv_drops`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum DropReason {
            $($(#[$doc])* $name = $number,)*
        }

        impl DropReason {
            /// All reasons, ordered by number.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name,)*];

            /// Label in metrics and messages.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(DropReason::$name => $text,)*
                }
            }
        }
    };
}

drop_reasons! {
    /// The frame was received on an interface that is not a known port: the pod is being set up or
    /// torn down.
    UnknownPort = 1, "unknown-port";
    /// The port or the tunnel names a network that this node does not have.
    UnknownSegment = 2, "unknown-segment";
    /// The frame is shorter than its headers claim, or a pod has left a checksum to the kernel in a
    /// place among them.
    Malformed = 3, "malformed";
    /// A pod sent an 802.1Q or 802.1ad tag; pods do not choose their network.
    TaggedByPod = 4, "tagged-by-pod";
    /// The source Ethernet address is a multicast address.
    GroupSource = 5, "group-source";
    /// The destination is a link-local multicast address (01:80:c2:00:00:0x: spanning tree, pause,
    /// LACP).
    LinkLocalGroup = 6, "link-local-group";
    /// The destination is on the port that the frame was received on.
    Hairpin = 7, "hairpin";
    /// A frame on the tunnel device has no tunnel key.
    NoTunnelKey = 8, "no-tunnel-key";
    /// A tunnelled frame from a node that is not in the cluster.
    UnknownPeer = 9, "unknown-peer";
    /// A frame from another node for an address that is not on this node.
    NotLocal = 10, "not-local";
    /// There is no interface to other nodes (no VLAN uplink, no VXLAN device).
    NoUplink = 11, "no-uplink";
    /// One copy of a flooded frame could not be sent.
    CloneFailed = 12, "clone-failed";
    /// The kernel refused to rewrite the frame (out of memory, or an unsupported layout).
    RewriteFailed = 13, "rewrite-failed";
    /// A pod sent from an Ethernet address that is not its own.
    SpoofedMac = 14, "spoofed-mac";
    /// A pod sent from an IP address that is not its own, or claimed one by ARP or ND.
    SpoofedIp = 15, "spoofed-ip";
    /// The policy denies the connection.
    Policy = 16, "policy";
    /// The rate limit of the group is exceeded.
    RateLimit = 17, "rate-limit";
    /// A later fragment of a packet whose first fragment was not seen, so that its connection and
    /// ports are unknown.
    UnknownFragment = 18, "unknown-fragment";
    /// The service has no ready backend; the sender gets an error.
    NoBackend = 19, "no-backend";
    /// The address is a service's, but the port is not; the sender gets an error.
    NoService = 20, "no-service";
    /// The backend is not an endpoint of the service's network; or the packet is from the wire, for the address of a service,
    /// in a frame for an endpoint that is no backend of its port.
    StrangeBackend = 21, "strange-backend";
    /// The flow could not be inserted (the kernel had no memory) although its translation needs it;
    /// or the packet is a reply to a connection that another backend has answered.
    NotTracked = 22, "not-tracked";
    /// All source ports that were tried for a connection to this backend are in use.
    NoPort = 23, "no-port";
    /// The packet has more extension headers than the programs parse.
    TooManyHeaders = 24, "too-many-headers";
    /// A unicast IP packet in a multicast or broadcast frame, which would bypass the rules of its
    /// receiver (RFC 1122 3.3.6).
    UnicastInMulticast = 25, "unicast-in-multicast";
    /// A frame from outside has more tags than one below that of the network: a pod's kernel would
    /// look behind them, rules do not.
    TaggedTwice = 26, "tagged-twice";
    /// The flow belongs to an endpoint whose address now belongs to one of another group, or that
    /// was elsewhere: the flow is removed, and later packets are evaluated with the rules of the
    /// current endpoint.
    StaleFlow = 27, "stale-flow";
    /// ARP or neighbour discovery that is not well formed: other hardware types, wrong lengths,
    /// unknown options, extension headers (RFC 826, RFC 4861 7.1, RFC 6980).
    InvalidNeighbour = 28, "invalid-neighbour";
    /// A router advertisement or redirect. Gateways are configured, not discovered (RFC 6105).
    RouterDiscovery = 29, "router-discovery";
    /// A frame that is neither IP nor ARP, from or to an endpoint with rules.
    UnknownEtherType = 30, "unknown-ethertype";
    /// The source is inside a network of the cluster but not a known endpoint, and the rules of the
    /// destination name groups.
    UnknownSource = 31, "unknown-source";
    /// A frame from outside with a source address that belongs to an endpoint elsewhere: on this
    /// node, behind another VTEP, or with another Ethernet address.
    ForeignSource = 32, "foreign-source";
    /// The destination Ethernet address is not that of the endpoint with the destination IP
    /// address.
    AddressMismatch = 33, "address-mismatch";
    /// The port has exceeded its rate of broadcast, unknown unicast and multicast frames.
    StormControl = 34, "storm-control";
    /// A pod sent a packet to the tunnel port of a node.
    TunnelFromPod = 35, "tunnel-from-pod";
    /// A datagram to the port of DHCP clients, as a server sends it: addresses are assigned by netmaster.
    DhcpServer = 36, "dhcp-server";
    /// An ICMP error about no known flow, from an endpoint that is not on the flow's path, or to
    /// another endpoint than that for which the flow was evaluated.
    UnrelatedIcmpError = 37, "unrelated-icmp-error";
    /// The program that continues with the frame is missing from `ctv_stages`.
    NoStage = 38, "no-stage";
    /// A frame arrived on a standby uplink: the active one receives it too.
    StandbyUplink = 39, "standby-uplink";
    /// A packet without a flow, while flows are imported from another flow table: it may belong to
    /// one of them. For some milliseconds after an upgrade.
    FlowImport = 40, "flow-import";
    /// A packet to the gateway for an address that no endpoint of the tenant has, or that the gateway
    /// does not accept itself; or from a link-local address to another network, also by a service.
    NoRoute = 41, "no-route";
    /// The TTL or hop limit of the packet has expired at the gateway, which has sent "time exceeded" to its sender.
    TtlExceeded = 42, "ttl-exceeded";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_find_all_reasons() {
        let page = include_str!("../../../docs/src/troubleshoot.md");
        let is_explained = |reason: &&DropReason| {
            let rows = page.lines().filter(|line| line.starts_with("| `"));
            rows.flat_map(|row| row.split('`')).any(|word| word == reason.as_str())
        };
        let missing = DropReason::ALL.iter().find(|reason| !is_explained(reason));
        assert_eq!(missing, None);
    }

    #[test]
    fn numbers_are_dense_from_one_and_fit_the_map() {
        for (index, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index + 1);
        }
        assert!(DropReason::ALL.len() < crate::maps::DROP_REASONS);
    }
}
