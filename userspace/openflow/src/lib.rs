//! OpenFlow 1.3 and the extensions of Open vSwitch that go with it: a codec and an async connection.
//!
//! * [`Message`] encodes and decodes; decoders check every length and never panic.
//! * [`Match`], [`Action`], [`Flow`], [`Group`] build flows from typed values and write them as
//!   `ovs-ofctl` does.
//! * [`Connection`] speaks with a switch: requests and replies, dumps, and bundles of changes that take
//!   effect all at once or not at all.
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

pub mod action;
pub mod bundle;
pub mod codec;
pub mod connection;
mod field;
pub mod flow;
pub mod group;
pub mod matching;
pub mod message;
pub mod multipart;
pub mod nicira;
pub mod packet;
pub mod port;
mod rejection;
pub mod switch;
mod text;
mod wire;

pub use action::{Action, Instructions};
pub use connection::{Change, Connection};
pub use field::Field;
pub use flow::{Flow, FlowFilter, FlowMod, FlowStats};
pub use group::{Bucket, Group, GroupKind, GroupMod};
pub use matching::{Masked, Match, ct_state};
pub use message::{Body, Message};
pub use nicira::{Ct, Nat, NatKind, NatRange, Slice, Zone};
pub use port::Port;
pub use rejection::Rejection;
pub use wire::{DecodeError, TooLong};
