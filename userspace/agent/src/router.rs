//! What the agent adds to the routing of the node's kernel: between VLAN networks and the physical network, from the node itself
//! to networks of pods, and from pods of VXLAN networks to the rest of the world.
//!
//! ```text
//!  pod ─ switch ─ inb01 ─ rule "iif inb01" ─ routes that BGP has learnt ─ interface with the router IP ─ leaf switch
//!  leaf switch ─ interface with the router IP ─ host routes of the endpoints ─ inb01 ─ switch ─ pod
//! ```
//!
//! The datapath exchanges the packets of routed VLAN networks with the kernel at one interface. The kernel forwards them by two
//! routing tables of the agent; the node's own tables and the forwarding of its other interfaces stay as they are. Rules and
//! routes outlive the agent, which compares them with what it wants whenever the state or the kernel changes.
//!
//! * `desired`: what the kernel shall have.
//! * `host`: routes of the node itself.
//! * `access`: host access of pods.
//! * `overlap`: networks of the node that keep host access from beginning.
//! * `nat_table`: the table of host access.
//! * `quota`: connections that each pod may have by host access.
//! * `ruleset`: notifications about the table of host access.
//! * `interface`: the interfaces that forward.
//! * `firewall`: firewalls of other programs.
//! * `forwarding`: what the interface with the router IP forwards.
//! * `rules`, `routes`, `family`: netlink messages of both.
//! * `mtu`: the MTU of the routes to pods.
//! * `retention`: what an earlier process has put there.
//! * `task`: keeps the kernel in sync.

mod access;
mod desired;
mod error;
mod family;
mod firewall;
mod forwarding;
mod host;
mod interface;
mod kernel;
mod mtu;
mod nat_table;
mod overlap;
mod quota;
mod retention;
mod routes;
mod rules;
mod ruleset;
mod task;

pub use kernel::remove;
pub use task::Task;
