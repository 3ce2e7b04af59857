//! Objects in files: `netctl get`, `netctl apply` and `netctl delete`.

pub mod apply;
pub mod document;
pub mod get;
pub mod plan;
