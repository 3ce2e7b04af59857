//! Command lines of `netmaster backup` and `netmaster restore`.

use std::path::PathBuf;

use clap::{Args, Parser};
use contiv_store::Config;

use super::{DEFAULT_STORE, EmbeddedDir, EtcdFlags, LogFlags};

/// Write the state of the cluster to a file; netmasters and agents may run
#[derive(Clone, Debug, Parser)]
#[command(name = "netmaster backup", bin_name = "netmaster backup", max_term_width = 100)]
pub struct Backup {
    /// File to write, mode 0600; an older one is replaced
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    #[command(flatten)]
    pub store: StoreAccess,

    #[command(flatten)]
    pub log: LogFlags,
}

/// Write a backup to a store; no netmaster may run, and agents must accept the store afterwards
#[derive(Clone, Debug, Parser)]
#[command(name = "netmaster restore", bin_name = "netmaster restore", max_term_width = 100)]
pub struct Restore {
    /// File written by `netmaster backup`
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Delete the state that the store has
    #[arg(long)]
    pub replace: bool,

    #[command(flatten)]
    pub store: StoreAccess,

    #[command(flatten)]
    pub log: LogFlags,
}

#[derive(Clone, Debug, Args)]
pub struct StoreAccess {
    /// etcd endpoints, separated by commas; the embedded store of a running netmaster has the address
    /// of its --store-listen
    #[arg(
        long,
        env = "CONTIV_NETMASTER_ETCD_ENDPOINTS",
        value_name = "URL[,URL]",
        default_value = DEFAULT_STORE
    )]
    pub etcd: String,

    /// Embedded store of a netmaster that does not run, used instead of etcd: embedded:DIR
    #[arg(long, value_name = "embedded:DIR")]
    pub store: Option<EmbeddedDir>,

    #[command(flatten)]
    pub access: EtcdFlags,
}

impl StoreAccess {
    /// Configuration of the client.
    pub fn config(&self) -> Result<Config, contiv_daemon::etcd::Error> {
        self.access.access().config(&self.etcd)
    }
}
