//! Parts shared by the daemons netmaster and netplugin: flags, logging, TLS, secrets, sockets, connections of clients and signals.

pub mod client;
pub mod clients;
pub mod etcd;
pub mod flags;
pub mod logging;
pub mod metrics_page;
pub mod modes;
pub mod notify;
pub mod reload;
pub mod secret;
pub mod signals;
pub mod socket;
pub mod subject;
pub mod tls;
