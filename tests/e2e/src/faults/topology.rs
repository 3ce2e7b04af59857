//! Three etcd members and three netmasters, each in its own namespace, on one bridge.

use std::{
    net::Ipv4Addr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use testkit::{Disk, Netns, etcd::Etcd};

use super::slow_link::SlowLink;
use crate::{
    http,
    master::{Master, Options, Store},
};

const BRIDGE: &str = "star";
const LINK: &str = "eth0";
const PORT: u16 = 9999;
/// Size of a member's disk; its file has holes.
const DISK_MEGABYTES: u64 = 2048;
/// Number of members, and of netmasters.
pub(super) const EACH: usize = 3;

/// A program with its namespace and address.
pub(super) struct Site<P> {
    pub(super) name: String,
    pub(super) address: Ipv4Addr,
    netns: Netns,
    pub(super) program: Mutex<P>,
    /// Disk of the program's data, if it has one of its own. Dropped after the program.
    pub(super) disk: Option<Disk>,
    link: Option<SlowLink>,
}

/// What faults need beside processes and links.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Equipment {
    /// Run etcd with fsync.
    pub(super) fsync: bool,
    /// Each member has its data on a disk of its own.
    pub(super) disks: bool,
    /// The links of netmasters can have a delay.
    pub(super) slow_links: bool,
    /// See [`Options::failover_after`].
    pub(super) failover_after: Option<u32>,
}

pub(super) struct Topology {
    // Fields are dropped in this order: netmasters stop before the members.
    pub(super) masters: Vec<Site<Master>>,
    pub(super) members: Vec<Site<Etcd>>,
    pub(super) hub: Netns,
}

impl Topology {
    pub(super) fn build(equipment: Equipment) -> Result<Topology> {
        let hub = Netns::new("star")?;
        hub.ip(&format!("link add {BRIDGE} type bridge"))?;
        hub.address(BRIDGE, "10.99.0.1/24")?;
        hub.up(BRIDGE)?;
        let members =
            (0..EACH).map(|n| attach(&hub, format!("etcd{n}"), 11 + n, false)).collect::<Result<Vec<_>>>()?;
        let disk = |_| equipment.disks.then(|| Disk::mount("disk", DISK_MEGABYTES)).transpose();
        let disks = (0..EACH).map(disk).collect::<Result<Vec<_>>>()?;
        let path = |disk: &Option<Disk>| disk.as_ref().map(|disk| disk.path().to_owned());
        let hosts: Vec<_> = members
            .iter()
            .zip(&disks)
            .map(|((_, netns, address, _), disk)| (netns.clone(), *address, path(disk)))
            .collect();
        let etcds = Etcd::cluster(&hosts, equipment.fsync).context("start three etcd members")?;
        let endpoints: Vec<_> = etcds.iter().map(Etcd::endpoint).collect();
        let members =
            members.into_iter().zip(etcds).zip(disks).map(|(((name, netns, address, link), etcd), disk)| {
                Site { name, address, netns, program: Mutex::new(etcd), disk, link }
            });
        let masters = (0..EACH).map(|n| {
            let (name, netns, address, link) =
                attach(&hub, format!("master{n}"), 21 + n, equipment.slow_links)?;
            let master = Master::start(Options {
                mode: "test",
                netmode: "vlan",
                store: Store::Etcd { endpoint: endpoints.join(",") },
                location: Some((netns.clone(), address)),
                port: PORT,
                failover_after: equipment.failover_after,
            })?;
            Ok(Site { name, address, netns, program: Mutex::new(master), disk: None, link })
        });
        let (masters, members) = (masters.collect::<Result<Vec<_>>>()?, members.collect());
        Ok(Topology { masters, members, hub })
    }

    /// Client URLs of the members.
    pub(super) fn endpoints(&self) -> Vec<String> {
        let programs = self.members.iter().map(|member| &member.program);
        programs.map(|program| program.lock().unwrap_or_else(PoisonError::into_inner).endpoint()).collect()
    }

    /// A client of the first netmaster, for the hub.
    pub(super) fn client(&self) -> Result<http::Client> {
        Ok(http::Client::new(self.masters.first().context("no netmaster")?.server()))
    }

    /// Disconnects a site from all others.
    pub(super) fn disconnect<P>(&self, site: &Site<P>) -> Result<()> {
        self.hub.ip(&format!("link set {} down", site.name)).map(drop)
    }

    /// Reconnects a site.
    pub(super) fn reconnect<P>(&self, site: &Site<P>) -> Result<()> {
        self.hub.ip(&format!("link set {} up", site.name)).map(drop)
    }
}

/// Creates a namespace and connects it to the bridge.
fn attach(
    hub: &Netns,
    name: String,
    last: usize,
    slow_link: bool,
) -> Result<(String, Netns, Ipv4Addr, Option<SlowLink>)> {
    let address = Ipv4Addr::new(10, 99, 0, u8::try_from(last)?);
    let netns = Netns::new(&name)?;
    hub.veth(&name, &netns, LINK)?;
    netns.address(LINK, &format!("{address}/24"))?;
    netns.up(LINK)?;
    if !slow_link {
        hub.ip(&format!("link set {name} master {BRIDGE} up"))?;
        return Ok((name, netns, address, None));
    }
    let (near, far) = (format!("{name}-a"), format!("{name}-b"));
    hub.veth(&near, hub, &far)?;
    hub.ip(&format!("link set {far} master {BRIDGE} up"))?;
    hub.up(&near)?;
    hub.up(&name)?;
    netns.tx_checksum_off(LINK)?;
    hub.tx_checksum_off(&far)?;
    let link = SlowLink::new(hub, [&name, &near])?;
    Ok((name, netns, address, Some(link)))
}

impl<P> Site<P> {
    /// Delays packets in each direction, if the site has a slow link.
    pub(super) fn delay(&self, delay: Duration) {
        if let Some(link) = &self.link {
            link.set(delay);
        }
    }

    /// Drops all packets to `other`.
    pub(super) fn block(&self, other: Ipv4Addr) -> Result<()> {
        self.netns.ip(&format!("route add blackhole {other}/32")).map(drop)
    }

    /// Reverts [`Site::block`].
    pub(super) fn unblock(&self, other: Ipv4Addr) -> Result<()> {
        self.netns.ip(&format!("route del blackhole {other}/32")).map(drop)
    }
}

impl Site<Master> {
    pub(super) fn server(&self) -> std::net::SocketAddr {
        (self.address, PORT).into()
    }
}
