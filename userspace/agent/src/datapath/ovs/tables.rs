//! Contents of the flow and group tables.
//!
//! * [`cookie`]: OpenFlow cookies that identify the object that owns a flow.
//! * [`edit`]: the tables of one bridge, and changes to them.
//! * [`ids`]: numbers of objects in the switch.
//! * [`index`]: the index of installed objects.

pub(crate) mod cookie;
pub(crate) mod edit;
pub(crate) mod ids;
pub(crate) mod index;
