//! A BGP-4 speaker (RFC 4271) for one neighbor, the leaf switch of a node.
//!
//! * [`Session`] is the finite state machine of RFC 4271 section 8, and [`Peer`] adds the routing tables and graceful
//!   restart to it. Both are pure: events in, actions out.
//! * [`Speaker`] executes the actions with tokio, and publishes learnt routes and status through a [`Handle`].
//!
//! The speaker dials the neighbor and does not listen: connections from the neighbor are refused, so connection
//! collisions (RFC 4271 section 6.8) do not occur. It announces host routes of its own and does not pass on what it learns.
//!
//! Supported: IPv4 and IPv6 unicast (RFC 4760), 4-octet AS numbers (RFC 6793), route refresh (RFC 2918), graceful restart in
//! both roles (RFC 4724), and revised error handling of UPDATE messages (RFC 7606). Messages are encoded and decoded by
//! `rustbgpd-wire`.

#![deny(missing_docs)]
#![deny(clippy::missing_errors_doc)]

mod config;
mod connection;
mod failure;
mod family;
mod open;
mod peer;
mod rib;
mod route;
mod session;
mod speaker;
mod status;
mod update;
mod warnings;

pub use config::{Config, ConfigError, parse_as};
pub use failure::Failure;
pub use family::Family;
pub use open::{GracefulRestart, Negotiated};
pub use peer::Peer;
pub use rib::selection::{Path, Source, best};
pub use route::{Attributes, Learnt, Origin, Route};
pub use session::{Action, Event, Session, State, Stop, Timer};
pub use speaker::{Announcement, Handle, Speaker};
pub use status::{Counters, Status};
