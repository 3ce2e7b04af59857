//! What both daemons are made with, and has nothing to do with what they are for.

pub mod client;
pub mod etcd;
pub mod flags;
pub mod logging;
pub mod metrics_page;
pub mod modes;
pub mod notify;
pub mod reload;
pub mod secret;
pub mod signals;
pub mod tls;
