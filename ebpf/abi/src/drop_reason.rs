//! Why a frame went no further.

/// How often, and how many bytes, for one reason on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct DropCount {
    /// Frames.
    pub packets: u64,
    /// Their bytes.
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
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name,)*];

            /// The label of metrics and messages.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(DropReason::$name => $text,)*
                }
            }
        }
    };
}

drop_reasons! {
    /// A frame from an interface that is no port of ours: the pod is being set up or torn down.
    UnknownPort = 1, "unknown-port";
    /// The port or the tunnel names a network that this node does not have.
    UnknownSegment = 2, "unknown-segment";
    /// Too short for what its headers announce.
    Malformed = 3, "malformed";
    /// A pod sent an 802.1Q or 802.1ad tag; pods do not choose their network.
    TaggedByPod = 4, "tagged-by-pod";
    /// The source is a group address.
    GroupSource = 5, "group-source";
    /// Addressed to the bridge itself (01:80:c2:00:00:0x: spanning tree, pause, LACP).
    LinkLocalGroup = 6, "link-local-group";
    /// The destination is where the frame came from.
    Hairpin = 7, "hairpin";
    /// A frame on the tunnel device that did not come through a tunnel.
    NoTunnelKey = 8, "no-tunnel-key";
    /// A tunnelled frame from a node that is not in the cluster.
    UnknownPeer = 9, "unknown-peer";
    /// A frame from another node for an address that is not on this node.
    NotLocal = 10, "not-local";
    /// There is no interface towards other nodes (no VLAN uplink, no VXLAN device).
    NoUplink = 11, "no-uplink";
    /// One copy of a flooded frame could not be sent.
    CloneFailed = 12, "clone-failed";
    /// The kernel refused to rewrite the frame (out of memory, or a shape it cannot change).
    RewriteFailed = 13, "rewrite-failed";
    /// A pod sent from an Ethernet address that is not its own.
    SpoofedMac = 14, "spoofed-mac";
    /// A pod sent from a network-layer address that is not its own, or claimed one by ARP or ND.
    SpoofedIp = 15, "spoofed-ip";
    /// A rule, or the lack of one, forbids the connection.
    Policy = 16, "policy";
    /// More than the bandwidth of the group.
    RateLimit = 17, "rate-limit";
    /// A later fragment of a packet whose first we have not seen (or not seen yet), so that neither its
    /// connection nor its ports are known.
    UnknownFragment = 18, "unknown-fragment";
    /// To a service without ready backends; the sender was told.
    NoBackend = 19, "no-backend";
    /// To the address of a service, but not to a port of it; the sender was told.
    NoService = 20, "no-service";
    /// To a service whose backend is no endpoint of the service's network.
    StrangeBackend = 21, "strange-backend";
    /// The flow could not be noted (the kernel had no memory), and its translation needs that; or it is an answer to a connection
    /// that another backend has answered before.
    NotTracked = 22, "not-tracked";
    /// Every source port that was tried for a connection to this backend is in use.
    NoPort = 23, "no-port";
    /// More extension headers than we follow.
    TooManyHeaders = 24, "too-many-headers";
    /// A packet for one endpoint in a frame for many, which would go past the rules of a group.
    ForOneOnly = 25, "for-one-only";
    /// From outside, with more tags than one below that of the network: a pod's kernel would look behind them, rules do not.
    TaggedTwice = 26, "tagged-twice";
    /// Of a flow with an endpoint that has left its address to one of another group, or was elsewhere: the flow is forgotten,
    /// and what is sent next is judged by the rules of who is there now.
    StaleFlow = 27, "stale-flow";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_dense_from_one_and_fit_the_map() {
        for (index, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index + 1);
        }
        assert!(DropReason::ALL.len() < crate::maps::DROP_REASONS);
    }
}
