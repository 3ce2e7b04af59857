//! Contents of the bridges' flow and group tables.
//!
//! * [`cookie`]: OpenFlow cookies that identify the object that owns a flow.
//! * [`edit`]: the tables of one bridge, and the changes to them.
//! * [`index`]: installed objects and the flow index.

pub(crate) mod cookie;
pub(crate) mod edit;
pub(crate) mod index;
