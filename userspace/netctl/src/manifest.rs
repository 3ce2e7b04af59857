//! Objects in files: `get`, `apply`, `delete`, `diff`, `edit`; their fields: `explain`; their state: `wait`.

pub mod apply;
pub mod change;
pub mod document;
pub mod edit;
pub mod explain;
pub mod get;
pub mod plan;
pub mod removal;
pub mod snapshot;
pub mod trial;
pub mod wait;
