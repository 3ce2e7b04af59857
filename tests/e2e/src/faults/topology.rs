//! Three etcd members and three netmasters, each in its own namespace, on one bridge.

use std::{
    net::Ipv4Addr,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context as _, Result};
use testkit::{Netns, etcd::Etcd};

use crate::{
    http,
    master::{Master, Options, Store},
};

const BRIDGE: &str = "star";
const LINK: &str = "eth0";
const PORT: u16 = 9999;
/// Number of members, and of netmasters.
pub(super) const EACH: usize = 3;

/// A program with its namespace and address.
pub(super) struct Site<P> {
    pub(super) name: String,
    pub(super) address: Ipv4Addr,
    netns: Netns,
    pub(super) program: Mutex<P>,
}

pub(super) struct Topology {
    // Fields are dropped in this order: netmasters stop before the members.
    pub(super) masters: Vec<Site<Master>>,
    pub(super) members: Vec<Site<Etcd>>,
    pub(super) hub: Netns,
}

impl Topology {
    pub(super) fn build(fsync: bool) -> Result<Topology> {
        let hub = Netns::new("star")?;
        hub.ip(&format!("link add {BRIDGE} type bridge"))?;
        hub.address(BRIDGE, "10.99.0.1/24")?;
        hub.up(BRIDGE)?;
        let namespace = |name: String, last: usize| -> Result<(String, Netns, Ipv4Addr)> {
            let address = Ipv4Addr::new(10, 99, 0, u8::try_from(last)?);
            let netns = Netns::new(&name)?;
            hub.veth(&name, &netns, LINK)?;
            hub.ip(&format!("link set {name} master {BRIDGE} up"))?;
            netns.address(LINK, &format!("{address}/24"))?;
            netns.up(LINK)?;
            Ok((name, netns, address))
        };
        let members = (0..EACH).map(|n| namespace(format!("etcd{n}"), 11 + n)).collect::<Result<Vec<_>>>()?;
        let hosts: Vec<_> = members.iter().map(|(_, netns, address)| (netns.clone(), *address)).collect();
        let etcds = Etcd::cluster(&hosts, fsync).context("start three etcd members")?;
        let endpoints: Vec<_> = etcds.iter().map(Etcd::endpoint).collect();
        let members = members.into_iter().zip(etcds).map(|((name, netns, address), etcd)| Site {
            name,
            address,
            netns,
            program: Mutex::new(etcd),
        });
        let masters = (0..EACH).map(|n| {
            let (name, netns, address) = namespace(format!("master{n}"), 21 + n)?;
            let master = Master::start(Options {
                mode: "test",
                netmode: "vlan",
                store: Store::Etcd { endpoint: endpoints.join(",") },
                location: Some((netns.clone(), address)),
                port: PORT,
            })?;
            Ok(Site { name, address, netns, program: Mutex::new(master) })
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

impl<P> Site<P> {
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
