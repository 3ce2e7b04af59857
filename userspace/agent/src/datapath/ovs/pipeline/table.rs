//! Table numbers and priorities. Tables 2 (host DNAT), 7 (IP) and 8 (host SNAT) are reserved for routing mode.

/// Rejects invalid frames.
pub(super) const INPUT: u8 = 0;
/// Assigns the network of a frame.
pub(super) const SOURCE: u8 = 1;
pub(super) const SERVICE_DNAT: u8 = 3;
pub(super) const DESTINATION_GROUP: u8 = 4;
pub(super) const POLICY: u8 = 5;
pub(super) const SERVICE_SNAT: u8 = 6;
/// Forwards by destination address.
pub(super) const DESTINATION: u8 = 9;
/// Looks up the target address of an ARP or ND request. Tables 10 to 12 do not exist in the original, which sent
/// requests to its controller.
pub(super) const NEIGHBOUR: u8 = 10;
/// Turns a request into its reply.
pub(super) const REPLY: u8 = 11;
/// Sets the link-layer address option of an ND reply, which Open vSwitch accepts only in a separate table.
pub(super) const ND_OPTION: u8 = 12;

/// Priorities within the tables.
pub(super) mod priority {
    pub(crate) const MISS: u16 = 1;
    pub(crate) const FLOOD: u16 = 10;
    pub(crate) const LOCAL_POD: u16 = 10;
    pub(crate) const MATCH: u16 = 100;
    /// Requests of a pod for its own address, and duplicate address detection.
    pub(crate) const OWN_ADDRESS: u16 = 110;
    /// Invalid frames, and requests that leave the pipeline for the neighbour tables.
    pub(crate) const INTERCEPT: u16 = 300;
}
