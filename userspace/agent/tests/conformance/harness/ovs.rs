//! What is particular to Open vSwitch.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use netplugin::datapath::ovs::{DatapathType, Options, Ovs};
use testkit::{Netns, ovs::Switch};

use super::{
    Damage, Difference,
    real::{Site, UNDERLAY, UPLINK},
};
use crate::topology::NODE;

/// The userspace switch sends tunnelled frames only by a bridge of its own, so the NIC is on this one.
const UNDERLAY_BRIDGE: &str = "br-phy";
/// Else its address changes when it gets its port, and the wire may have asked for it before.
const UNDERLAY_MAC: &str = "other_config:hwaddr=02:00:00:00:50:01";
const BRIDGES: [&str; 2] = ["contivVlanBridge", "contivVxlanBridge"];

pub(crate) struct OvsSite {
    switch: Switch,
}

impl Site for OvsSite {
    type Path = Ovs;

    /// `ovs-netdev` is the switch's own.
    const LINKS: &'static [&'static str] = &[UNDERLAY, UPLINK, UNDERLAY_BRIDGE, "ovs-netdev"];

    const DIFFERENCES: &'static [Difference] = &[
        // As the original: NORMAL where a VLAN's frames leave the tables.
        Difference::LearnsOnVlan,
        // As the original: its proxy ignored them.
        Difference::HidesAnnouncementsOnVxlan,
        Difference::LetsPodsAnswerOutside,
        Difference::FloodsStrayUnicast,
    ];

    fn missing() -> Option<String> {
        testkit::ovs::missing().or_else(|| testkit::skip::binary("ethtool"))
    }

    fn start(host: &Netns) -> Result<OvsSite> {
        let switch = Switch::start(host)?;
        let set = ["set", "bridge", UNDERLAY_BRIDGE, "datapath_type=netdev", UNDERLAY_MAC];
        let commands = [
            &["--timeout=20", "add-br", UNDERLAY_BRIDGE, "--"][..],
            &set,
            &["--", "add-port", UNDERLAY_BRIDGE, UNDERLAY],
        ];
        switch.vsctl(&commands.concat())?;
        // The kernel hears the NIC's frames too, and would answer ARP for the bridge's address with the NIC's own.
        host.ip(&format!("link set {UNDERLAY} arp off"))?;
        host.address(UNDERLAY_BRIDGE, &format!("{NODE}/24"))?;
        host.up(UNDERLAY_BRIDGE)?;
        Ok(OvsSite { switch })
    }

    async fn open(&self) -> Result<Ovs> {
        Ok(Ovs::new(Options {
            socket: self.switch.socket(),
            datapath_type: DatapathType::Netdev,
            uplinks: vec![UPLINK.to_owned()],
            vtep: Some(NODE.into()),
        }))
    }

    fn underlay(&self) -> &'static str {
        UNDERLAY_BRIDGE
    }

    /// The userspace switch drops the frame for which it has to ask.
    fn neighbour(&self, vtep: IpAddr, mac: &str) -> Result<()> {
        self.switch.appctl(&["tnl/arp/set", UNDERLAY_BRIDGE, &vtep.to_string(), mac]).map(drop)
    }

    /// The switch caches what its flow tables say, and mends the cache a moment after it has confirmed a change.
    fn settle(&self) -> Result<()> {
        // Empties the cache; to wait until it is mended (revalidator/wait) takes half a second each time.
        self.switch.appctl(&["revalidator/purge"]).map(drop)
    }

    fn damage(&self, _host: &Netns, damage: Damage) -> Result<()> {
        match damage {
            Damage::Forwarding => {
                for bridge in BRIDGES {
                    self.switch.ofctl("del-flows", bridge, &[])?;
                }
            }
            Damage::Port(port) => {
                self.switch.vsctl(&["--timeout=20", "del-port", port])?;
            }
            Damage::Litter => {
                let flow = "table=9,priority=77,dl_dst=02:00:00:00:00:77,actions=drop";
                for bridge in BRIDGES {
                    self.switch.ofctl("add-flow", bridge, &[flow]).context("add a flow of nobody's")?;
                }
            }
        }
        Ok(())
    }
}
