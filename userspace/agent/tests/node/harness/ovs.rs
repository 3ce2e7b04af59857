//! Site of the OVS datapath, on the userspace datapath or on the kernel's ([`on_kernel`]).

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use contiv_abi::Timeouts;
use netplugin::datapath::ovs::{DatapathType, Options, Ovs};
use testkit::{
    Netns,
    ovs::{Switch, on_kernel},
};

use super::{
    Damage, Difference,
    real::{Site, UNDERLAY, UPLINK},
};
use crate::node::topology::NODE;

/// Bridge with the NIC: the userspace datapath sends tunnelled frames only through a bridge.
const UNDERLAY_BRIDGE: &str = "br-phy";
/// Fixed Ethernet address: otherwise it changes with the first port, after the wire may have resolved it.
const UNDERLAY_MAC: &str = "other_config:hwaddr=02:00:00:00:50:01";
const BRIDGES: [&str; 2] = ["contivVlanBridge", "contivVxlanBridge"];

/// Removals of the datapath flows until there are none.
const PURGES: usize = 5;

const LENGTHS: &str = "OpenFlow matches neither lengths nor options of ARP and ND";
/// What the switch drops, because its kernel reads false extension headers in the same way.
const NO_NEXT_HEADER: (&str, &str) = ("no next header", "OVS nodes drop packets of IPv6 without one");
const SMALL: &str = "userspace connection tracking drops fragments of less than 1200 bytes";

pub(crate) struct OvsSite {
    switch: Switch,
    host: Netns,
}

impl Site for OvsSite {
    type Path = Ovs;

    /// `ovs-netdev` and `ovs-system` belong to the switch.
    const LINKS: &'static [&'static str] = &[UNDERLAY, UPLINK, UNDERLAY_BRIDGE, "ovs-netdev", "ovs-system"];

    const DIFFERENCES: &'static [Difference] = &[
        // As in the original: frames of VLAN networks leave the tables by NORMAL.
        Difference::LearnsOnVlan,
        Difference::LetsPodsAnswerOutside,
        Difference::FloodsStrayUnicast,
        // Flows cannot put one packet into another.
        Difference::AnswersByAgent,
        Difference::TracksNoOtherProtocols,
        Difference::RemembersDeniedConnections,
        // OpenFlow does not compare the source of an error with an end of the connection.
        Difference::DropsErrorsOfStrangers,
        Difference::FloodsNoReplies,
    ];

    const REORDERS: bool = true;

    const OPEN_ATTACKS: &'static [(&'static str, &'static str)] = &[
        ("another tag protocol from the wire", "OpenFlow does not match the protocol of a tag"),
        ("IPv4 as IPv6", "the switch does not check the version of IPv6; the kernel of a pod does"),
        (
            "NA in two fragments",
            "the last fragment, of which the switch reads no protocol; not the first one",
        ),
        ("ARP: 400 bytes of data", LENGTHS),
        ("bytes that are no options", LENGTHS),
        ("a long unknown option", LENGTHS),
        ("data behind the packet", LENGTHS),
        ("half an option", LENGTHS),
        ("option beyond the end", LENGTHS),
        ("option of length 0", LENGTHS),
        ("ICMPv6 type 135: for another than it is sent to", "OpenFlow does not compare two fields"),
        ("error about a segment that is not on the way", "OpenFlow does not match TCP sequence numbers"),
        (
            "of a denied group takes an address, and answers",
            "a connection does not know that its peer was replaced",
        ),
    ];

    fn joins_fragments() -> bool {
        on_kernel()
    }

    fn open_controls() -> &'static [(&'static str, &'static str)] {
        match on_kernel() {
            true => &[NO_NEXT_HEADER],
            false => {
                &[NO_NEXT_HEADER, ("ragment", SMALL), ("whole packet under an allowed identification", SMALL)]
            }
        }
    }

    fn missing() -> Option<String> {
        testkit::ovs::missing().or_else(|| testkit::skip::binary("ethtool"))
    }

    fn start(host: &Netns) -> Result<OvsSite> {
        let switch = Switch::start(host)?;
        let site = OvsSite { switch, host: host.clone() };
        if on_kernel() {
            host.address(UNDERLAY, &format!("{NODE}/24"))?;
            return Ok(site);
        }
        let set = ["set", "bridge", UNDERLAY_BRIDGE, "datapath_type=netdev", UNDERLAY_MAC];
        let commands = [
            &["--timeout=20", "add-br", UNDERLAY_BRIDGE, "--"][..],
            &set,
            &["--", "add-port", UNDERLAY_BRIDGE, UNDERLAY],
        ];
        site.switch.vsctl(&commands.concat())?;
        // The kernel also receives the frames of the NIC and would answer ARP requests for the bridge with the NIC's address.
        host.ip(&format!("link set {UNDERLAY} arp off"))?;
        host.address(UNDERLAY_BRIDGE, &format!("{NODE}/24"))?;
        host.up(UNDERLAY_BRIDGE)?;
        Ok(site)
    }

    async fn open(&self) -> Result<Ovs> {
        Ok(Ovs::new(Options {
            socket: self.switch.socket(),
            datapath_type: if on_kernel() { DatapathType::System } else { DatapathType::Netdev },
            uplinks: vec![UPLINK.to_owned()],
            vtep: Some(NODE.into()),
            control: None,
            // The scenarios compare all frames.
            announce: false,
            timeouts: Timeouts::default(),
            connections: Options::CONNECTIONS,
        }))
    }

    fn underlay(&self) -> &'static str {
        if on_kernel() { UNDERLAY } else { UNDERLAY_BRIDGE }
    }

    /// The userspace datapath drops the frame that starts next-hop resolution.
    fn neighbour(&self, vtep: IpAddr, mac: &str) -> Result<()> {
        if on_kernel() {
            return self.host.ip(&format!("neigh replace {vtep} lladdr {mac} dev {UNDERLAY}")).map(drop);
        }
        self.switch.appctl(&["tnl/arp/set", UNDERLAY_BRIDGE, &vtep.to_string(), mac]).map(drop)
    }

    fn forward(&self) -> Result<()> {
        if on_kernel() { self.switch.wait_for_upcalls() } else { Ok(()) }
    }

    /// The switch revalidates its datapath flows some time after it has confirmed a change of the tables. Waiting for that
    /// (revalidator/wait) takes 0.5 s each time; so they are removed. The switch passes over those that one of its threads is
    /// at work on: on a busy machine some stay, or packets of kernels make new ones, and only waiting helps.
    fn settle(&self) -> Result<()> {
        let datapath = if on_kernel() { "system@ovs-system" } else { "netdev@ovs-netdev" };
        if on_kernel() && !self.switch.appctl(&["dpctl/dump-dps"])?.lines().any(|line| line == datapath) {
            // The kernel has none without bridges.
            return Ok(());
        }
        for _ in 0..PURGES {
            self.switch.appctl(&["revalidator/purge"])?;
            if self.switch.appctl(&["dpctl/dump-flows", datapath])?.trim().is_empty() {
                return Ok(());
            }
        }
        self.switch.appctl(&["revalidator/wait"]).map(drop)
    }

    fn forget(&self) -> Result<()> {
        self.switch.appctl(&["dpctl/flush-conntrack"]).map(drop)
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
            Damage::ForeignItem => {
                // The cookie is that of a remote endpoint: flows of other programs stay.
                let flow =
                    "cookie=0xc300000000000077,table=9,priority=77,dl_dst=02:00:00:00:00:77,actions=drop";
                for bridge in BRIDGES {
                    self.switch.ofctl("add-flow", bridge, &[flow]).context("add a flow of no object")?;
                }
            }
        }
        Ok(())
    }
}
