//! Table numbers and priorities. Tables 2 (host DNAT), 7 (IP) and 8 (host SNAT) are reserved for routing mode. Tables from 10
//! on do not exist in the original, which sent requests to its controller and had no checks.

/// Rejects invalid frames.
pub(super) const INPUT: u8 = 0;
/// Assigns the network of a frame.
pub(super) const SOURCE: u8 = 1;
/// Where frames enter that have passed the checks.
pub(super) const SERVICE_DNAT: u8 = 3;
pub(super) const DESTINATION_GROUP: u8 = 4;
pub(super) const POLICY: u8 = 5;
pub(super) const SERVICE_SNAT: u8 = 6;
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
/// Checks what ARP and ND messages contain.
pub(super) const LINK: u8 = 17;

/// Priorities within the tables.
pub(super) mod priority {
    pub(crate) const MISS: u16 = 1;
    pub(crate) const FLOOD: u16 = 10;
    pub(crate) const LOCAL_POD: u16 = 10;
    /// Requests for unknown addresses that must not be forwarded.
    pub(crate) const PROBE: u16 = 50;
    pub(crate) const MATCH: u16 = 100;
    /// Requests of a pod for its own address, and duplicate address detection.
    pub(crate) const OWN_ADDRESS: u16 = 110;
    /// Invalid frames, and requests that leave the pipeline for the neighbour tables.
    pub(crate) const INTERCEPT: u16 = 300;

    /// Priorities of the checks: a frame is dropped unless a flow of a higher priority accepts it.
    pub(crate) mod check {
        /// Frames that no other flow of the table matches.
        pub(crate) const OTHER: u16 = 10;
        /// Unknown addresses.
        pub(crate) const UNKNOWN: u16 = 20;
        /// Ranges of addresses that are no sources.
        pub(crate) const RESERVED: u16 = 50;
        /// Exceptions from the ranges.
        pub(crate) const UNSPECIFIED: u16 = 60;
        /// An Ethernet address of an endpoint in the message of another one.
        pub(crate) const NAMED: u16 = 70;
        pub(crate) const NAMED_BY_OWNER: u16 = 80;
        /// An IP address of an endpoint, claimed by another one.
        pub(crate) const CLAIMED: u16 = 90;
        pub(crate) const CLAIMED_BY_OWNER: u16 = 100;
        /// Forms that no address makes valid.
        pub(crate) const FORM: u16 = 200;
        /// Exceptions from the forms.
        pub(crate) const VALID_FORM: u16 = 210;
    }
}
