//! OpenFlow 1.3 with the Nicira extensions of Open vSwitch: a codec and an asynchronous connection.
//!
//! * [`Message`] encodes and decodes messages. Decoders check every length and do not panic.
//! * [`Match`], [`Action`], [`Flow`] and [`Group`] describe table contents with typed values. Their `Display` form is the
//!   syntax of `ovs-ofctl`.
//! * [`Connection`] sends requests to a switch, dumps its tables, and applies bundles of changes atomically.
//!
//! Section numbers refer to the OpenFlow Switch Specification 1.3.5, `nx_*` names to the headers and sources of Open
//! vSwitch. Integers are in host byte order; the codec converts them.
//!
//! ```no_run
//! # async fn example() -> Result<(), openflow_rs::connection::Error> {
//! use openflow_rs::{Action, Change, Connection, Flow, FlowFilter, FlowMod, Match};
//!
//! let (switch, _notifications) = Connection::connect(&"unix:/run/openvswitch/br0.mgmt".parse()?).await?;
//! let flow = Flow::new(0, 100, Match::new().in_port(1.into())).apply([Action::output(2)]);
//! switch.apply_bundle(vec![Change::Flow(FlowMod::add(flow))]).await?;
//! for flow in switch.dump_flows(FlowFilter::default()).await? {
//!     println!("{flow}");
//! }
//! # Ok(())
//! # }
//! ```

#![deny(missing_docs)]
#![deny(clippy::missing_errors_doc)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod action;
pub mod bundle;
pub mod codec;
pub mod connection;
mod error_message;
mod field;
pub mod flow;
pub mod group;
pub mod matching;
pub mod message;
pub mod meter;
pub mod multipart;
pub mod packed;
pub mod packet;
pub mod port;
pub mod switch;
mod text;
mod wire;

pub use action::{Action, Instructions, nicira};
pub use connection::{Change, Connection};
pub use error_message::ErrorMessage;
pub use field::Field;
pub use flow::{Flow, FlowFilter, FlowMod, FlowStats};
pub use group::{Bucket, Group, GroupKind, GroupMod};
pub use matching::{Masked, Match, ct_state};
pub use message::{Body, Message};
pub use meter::{DropBand, Meter, MeterMod, MeterUnit};
pub use nicira::{Ct, Nat, NatKind, NatRange, Slice, Zone};
pub use packed::{PackedFlow, PackedMod};
pub use port::Port;
pub use wire::{DecodeError, EncodeError};
