use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use tempfile::TempDir;
use testkit::{free_port, scratch_dir};

use crate::master::{Master, Options, Store};

/// Starts netmaster with an empty store, which exists until the folder is dropped.
pub(super) fn start_master() -> Result<(TempDir, Master)> {
    let folder = scratch_dir("replay")?;
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
    let store = Store::Embedded { folder: folder.path().join("store"), listen };
    Ok((folder, Master::start(Options::alone(store)?)?))
}
