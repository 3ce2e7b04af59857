//! Table numbers and priorities. Tables from 10 on do not exist in the original Contiv, which sent requests and the first
//! packets of services to its controller and had no checks.

/// Rejects invalid frames.
pub(super) const INPUT: u8 = 0;
/// Assigns the network of a frame.
pub(super) const SOURCE: u8 = 1;
/// Replaces the private destination address of packets from the node's kernel with that of the endpoint.
pub(super) const HOST_DNAT: u8 = 2;
/// Entry for frames that have passed the checks. Recognises packets to services.
pub(super) const SERVICE_DNAT: u8 = 3;
/// Decides whether and how rules apply to a frame.
pub(super) const DESTINATION_GROUP: u8 = 4;
/// Egress rules of endpoints of this node.
pub(super) const POLICY: u8 = 5;
/// Gives the replies of backends the address of the service.
pub(super) const SERVICE_SNAT: u8 = 6;
/// Finds the endpoint of an IP address: its Ethernet address, and its network if that is routed to the sender's.
pub(super) const IP: u8 = 7;
/// Replaces the source address of packets to the node's kernel with one of the private subnet.
pub(super) const HOST_SNAT: u8 = 8;
/// Forwards by destination address.
pub(super) const DESTINATION: u8 = 9;
/// Looks up the target address of an ARP or ND request.
pub(super) const NEIGHBOUR: u8 = 10;
/// Turns a request into its reply.
pub(super) const REPLY: u8 = 11;
/// Sets the link-layer address option of an ND reply, which Open vSwitch accepts only in a separate table.
pub(super) const ND_OPTION: u8 = 12;
/// Checks the source addresses of pods.
pub(super) const GUARD: u8 = 13;
/// Checks the Ethernet source of frames from outside.
pub(super) const STATION: u8 = 14;
/// Checks the addresses that frames from outside claim.
pub(super) const CLAIM: u8 = 15;
/// Checks the destination of IP packets.
pub(super) const TARGET: u8 = 16;
/// Checks the contents of ARP and ND messages.
pub(super) const LINK: u8 = 17;
/// Reads the connection of a packet.
pub(super) const STATE: u8 = 18;
/// Checks that an ICMP error is about a connection of its sender.
pub(super) const ON_PATH: u8 = 19;
/// Finds the identity of the endpoint that did not open the connection.
pub(super) const DESTINATION_IDENTITY: u8 = 20;
/// Finds the identity of the endpoint that opened the connection.
pub(super) const SOURCE_IDENTITY: u8 = 21;
/// Sets the DSCP.
pub(super) const DSCP: u8 = 22;
/// Ingress rules of endpoints of this node.
pub(super) const POLICY_IN: u8 = 23;
/// Handles frames that rules accept.
pub(super) const ACCEPT: u8 = 24;
/// Reads the connection of a client to a service.
pub(super) const SERVICE_STATE: u8 = 25;
/// Learned flows: the backends of clients with session affinity.
pub(super) const AFFINITY: u8 = 26;
/// Checks that the service has the backend, otherwise chooses one.
pub(super) const BACKEND: u8 = 27;
/// Records the backend of a new connection.
pub(super) const CHOSEN: u8 = 28;
/// Gives packets to a service the address and the port of the backend.
pub(super) const TRANSLATE: u8 = 29;
/// The backends of a service by their index.
pub(super) const INDEX: u8 = 30;
/// Packets that the agent answers.
pub(super) const ANSWER: u8 = 31;

/// Reads the connection of a client outside the cluster.
pub(super) const EXTERNAL: u8 = 32;
/// Finds the backend on this node that another node has selected.
pub(super) const NAMED: u8 = 33;
/// Decides whether the backend of a client outside the cluster is on this node.
pub(super) const PLACE: u8 = 34;

/// Finds the endpoint that has an IP address.
pub(super) const OWNER: u8 = 35;
/// Recognises the Ethernet address of an endpoint in two registers.
pub(super) const SAME: u8 = 36;
/// Finds the endpoint that has an Ethernet address.
pub(super) const STATIONS: u8 = 37;
/// Decides about the Ethernet source of frames from outside.
pub(super) const STATION_CHECK: u8 = 38;
/// Decides about the addresses that frames from outside claim.
pub(super) const CLAIM_CHECK: u8 = 39;
/// Decides about the destination of IP packets.
pub(super) const TARGET_CHECK: u8 = 40;
/// Decides about ND advertisements from outside.
pub(super) const ADVERTISED_CHECK: u8 = 41;
/// Decides about the Ethernet addresses in ARP and ND messages from outside that do not belong to an endpoint.
pub(super) const NAME: u8 = 42;
/// Decides about those that belong to an endpoint.
pub(super) const NAME_CHECK: u8 = 43;

/// Loads the record of the destination that was found by IP address.
pub(super) const DESTINATION_OWNER: u8 = 44;
/// Finds the destination by its Ethernet address.
pub(super) const DESTINATION_STATION: u8 = 45;
/// Loads the record of the destination that was found by Ethernet address.
pub(super) const DESTINATION_KNOWN: u8 = 46;
/// Loads the record of the source that was found by IP address.
pub(super) const SOURCE_OWNER: u8 = 47;
/// Finds the source by its Ethernet address.
pub(super) const SOURCE_STATION: u8 = 48;
/// Loads the record of the source that was found by Ethernet address.
pub(super) const SOURCE_KNOWN: u8 = 49;
/// Decides about sources without a record.
pub(super) const SOURCE_SUBNET: u8 = 50;
/// Decides about ICMP errors from an address with a record.
pub(super) const ON_PATH_OWNER: u8 = 51;
/// Decides about ICMP errors from an address without a record.
pub(super) const ON_PATH_SUBNET: u8 = 52;

/// Decides about expired packets for the node's kernel.
pub(super) const EXPIRED: u8 = 53;

/// Keeps the backend port of an established connection.
pub(super) const TARGET_PORT: u8 = 54;

/// Tables that rewrite packets to a service for their backend.
pub(crate) const TRANSLATION_TABLES: [u8; 2] = [TRANSLATE, TARGET_PORT];

/// Compares the opener of a connection with the endpoint that sends its packets or receives its replies.
pub(super) const OPENER: u8 = 55;
/// Packets with the addresses of a connection that another endpoint has opened.
pub(super) const ANEW: u8 = 56;
/// Decides whether the connection of a packet from outside is recorded: only if its receiver is on this node.
pub(super) const LOCAL_RECEIVER: u8 = 57;

/// Limits the rate of packets that the agent answers.
pub(super) const LIMIT: u8 = 58;

/// Compares the service of a packet with that of its connection.
pub(super) const OPENED_SERVICE: u8 = 59;

/// Learned flows that no packet matches: their expiry is a change of the tables.
pub(super) const EXPIRING: u8 = 60;

/// Fragments to a service that connection tracking has reassembled.
pub(super) const REASSEMBLED: u8 = 61;
/// Replies of backends that have been translated to the address of the service.
pub(super) const TRANSLATED: u8 = 62;
/// Fragments whose connection has been recorded.
pub(super) const RECORDED: u8 = 63;

/// High bits of the cookies of learned flows, followed by the number of the service.
pub(super) const LEARNED: u64 = 0xce << 56;

/// Priorities within the tables.
pub(super) mod priority {
    pub(crate) const MISS: u16 = 1;
    pub(crate) const FLOOD: u16 = 10;
    pub(crate) const LOCAL_POD: u16 = 10;
    /// Requests for unknown addresses that must not be forwarded.
    pub(crate) const PROBE: u16 = 50;
    /// Requests for addresses of other networks.
    pub(crate) const OTHER_NETWORK: u16 = 90;
    pub(crate) const MATCH: u16 = 100;
    /// Packets of link-local addresses to other networks.
    pub(crate) const LINK_LOCAL: u16 = 102;
    /// Packets within a network that is routed to others.
    pub(crate) const SAME_NETWORK: u16 = 105;
    /// Requests of a pod for its own address, and duplicate address detection.
    pub(crate) const OWN_ADDRESS: u16 = 110;
    /// Invalid frames, and requests that leave the pipeline for the neighbour tables.
    pub(crate) const INTERCEPT: u16 = 300;
    /// Packets that ovs-vswitchd parses differently from the kernel.
    pub(crate) const MISREAD: u16 = 65_000;

    /// Priorities of the router's flows.
    pub(crate) mod router {
        /// Packets to the router that are not for a service.
        pub(crate) const RECEIVED: u16 = 20;
        /// Packets to addresses that no flow matches, which go to the node's kernel.
        pub(crate) const OUTSIDE: u16 = 10;
        /// Packets to subnets that do not go to the kernel, and exceptions.
        pub(crate) const OTHER_VRF: u16 = 20;
        pub(crate) const SAME_VRF: u16 = 21;
        /// Packets whose TTL expires.
        pub(crate) const EXPIRED: u16 = 150;
        /// Packets to addresses that are not host addresses, which do not go to the kernel.
        pub(crate) const NO_HOST: u16 = 153;
        /// Packets for a gateway that it does not answer.
        pub(crate) const GATEWAY: u16 = 155;
        /// Pings of gateways, before and after the rules.
        pub(crate) const PING: u16 = 160;
        pub(crate) const ACCEPTED_PING: u16 = 210;
        /// Packets that leave the router.
        pub(crate) const SENT: u16 = 200;
    }

    /// Priorities of the tables of services.
    pub(crate) mod service {
        /// Packets to a service's address that no other flow of the table matches, and the choice of a backend.
        pub(crate) const ANY: u16 = 50;
        pub(crate) const PORT: u16 = 100;
        /// Fragments, which have no ports, and packets of established connections.
        pub(crate) const FIRST: u16 = 200;
    }

    /// Priorities of the policy tables.
    pub(crate) mod policy {
        /// Frames that no rule applies to.
        pub(crate) const EXEMPT: u16 = 200;
        /// Packets to groups, and packets whose connection is invalid; up to 3 more for ports and fragments.
        pub(crate) const GROUPS: u16 = 100;
        /// ICMP errors about a connection.
        pub(crate) const RELATED: u16 = 150;
        pub(crate) const TRACKED: u16 = 90;
        pub(crate) const UNTRACKED: u16 = 50;
        /// Addresses with a record.
        pub(crate) const KNOWN: u16 = 100;
        pub(crate) const GATEWAY: u16 = 65;
        /// Connections between addresses of one link, which have no router on their path.
        pub(crate) const ON_LINK: u16 = 70;
        /// Addresses of unknown endpoints.
        pub(crate) const UNKNOWN: u16 = 60;
        /// Lowest priority of a rule.
        pub(crate) const RULES: u16 = 1000;
        /// Frames that no rule can evaluate.
        pub(crate) const FIRST: u16 = 60_000;
        /// The copy of a replicated frame for one receiver.
        pub(crate) const RECEIVER: u16 = 200;
        /// Packets that a pod sends to itself through a service.
        pub(crate) const RETURNING: u16 = 190;
        /// The copy of a replicated frame for other nodes.
        pub(crate) const FAR: u16 = 180;
    }

    /// Priorities of the checks: a frame is dropped unless a flow of a higher priority accepts it.
    pub(crate) mod check {
        /// Frames that no other flow of the table matches.
        pub(crate) const OTHER: u16 = 10;
        /// Unknown addresses.
        pub(crate) const UNKNOWN: u16 = 20;
        /// Address ranges that may not be sources.
        pub(crate) const RESERVED: u16 = 50;
        /// Exceptions from the ranges.
        pub(crate) const UNSPECIFIED: u16 = 60;
        /// Packets that the node's kernel sends from a subnet of a VRF, and from the VRF of the receiver.
        pub(crate) const FROM_KERNEL: u16 = 70;
        pub(crate) const FROM_KERNEL_IN_VRF: u16 = 80;
        /// An IP address of an endpoint that another sender claims.
        pub(crate) const CLAIMED: u16 = 90;
        pub(crate) const CLAIMED_BY_OWNER: u16 = 100;
        /// Forms that are invalid for every address.
        pub(crate) const FORM: u16 = 200;
        /// Exceptions from the forms.
        pub(crate) const VALID_FORM: u16 = 210;
    }
}
