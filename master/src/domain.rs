//! Domain rules shared by objects and plugin calls. They read and change a staged transaction.

pub mod allocation;
pub mod attachment;
pub mod fabric;
pub mod network_addresses;
pub mod network_record;
pub mod services;
pub mod tag_pools;

use std::fmt;

/// `<tenant>:<name>`, the key of most objects.
pub fn object_key(tenant: impl fmt::Display, name: impl fmt::Display) -> String {
    format!("{tenant}:{name}")
}
