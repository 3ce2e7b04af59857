use std::{net::SocketAddr, path::PathBuf};

use anyhow::{Context as _, Result};
use tempfile::TempDir;
use testkit::{Netns, etcd::Etcd, scratch_dir};

use super::shape::{Encap, StoreKind, management_address};
use crate::master::{Master, Options, Store};

const BRIDGE: &str = "mgmt";
const HOST: u8 = 1;
const MASTER_PORT: u16 = 9999;
const STORE_PORT: u16 = 2379;

/// Management network: a bridge, and on it the host of store and master.
#[derive(Debug)]
pub struct Fabric {
    netns: Netns,
    kind: StoreKind,
    /// Runs until the fabric is dropped.
    _etcd: Option<Etcd>,
    folder: TempDir,
}

impl Fabric {
    pub(super) fn new(kind: StoreKind) -> Result<Fabric> {
        let netns = Netns::new("fabric")?;
        netns.ip(&format!("link add {BRIDGE} type bridge")).context("create the management bridge")?;
        netns.address(BRIDGE, &format!("{}/24", management_address(HOST)))?;
        netns.up(BRIDGE)?;
        let etcd = match kind {
            StoreKind::Embedded => None,
            StoreKind::Etcd => Some(
                Etcd::options().in_netns(&netns, management_address(HOST)).client_port(STORE_PORT).start()?,
            ),
        };
        Ok(Fabric { netns, kind, _etcd: etcd, folder: scratch_dir("store")? })
    }

    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        vec![self.netns.path().to_owned(), self.folder.path().to_owned()]
    }

    pub fn master_url(&self) -> String {
        format!("http://{}:{MASTER_PORT}", management_address(HOST))
    }

    pub fn store_endpoint(&self) -> String {
        self.store().endpoint()
    }

    /// Connects `link` of a node to the bridge.
    pub(super) fn connect(&self, node: &Netns, link: &str, port: &str) -> Result<()> {
        self.netns.veth(port, node, link)?;
        self.netns.ip(&format!("link set {port} master {BRIDGE} up")).map(drop)
    }

    pub(super) fn start_master(&self, encap: Encap) -> Result<Master> {
        Master::start(Options {
            mode: "cni",
            netmode: encap.name(),
            store: self.store(),
            location: Some((self.netns.clone(), management_address(HOST))),
            port: MASTER_PORT,
            failover_after: None,
        })
    }

    fn store(&self) -> Store {
        let listen = SocketAddr::from((management_address(HOST), STORE_PORT));
        match self.kind {
            StoreKind::Embedded => Store::Embedded { folder: self.folder.path().join("state"), listen },
            StoreKind::Etcd => Store::Etcd { endpoint: format!("http://{listen}") },
        }
    }
}
