//! The VXLAN device, the uplink, and the programs on them.

use std::net::Ipv4Addr;

use super::{
    load::Programs,
    tc::{AttachMode, Role, TcHooks},
    xdp::{XdpHook, XdpPreference, XdpStatus},
};
use crate::datapath::{
    Error,
    ebpf::{
        device::{self, Netlink},
        maps::{pins::Pins, writes::Writes},
    },
};

/// Interfaces that the datapath uses, from the options of the node.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    /// Name of the VXLAN device.
    pub(crate) vxlan_device: String,
    /// UDP port of the tunnels.
    pub(crate) vxlan_port: u16,
    /// Tunnel address of this node.
    pub(crate) vtep: Option<Ipv4Addr>,
    /// Interface that carries the VLAN networks.
    pub(crate) uplink: Option<String>,
}

/// Interfaces to which map entries refer by index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Devices {
    /// Index of the VXLAN device.
    pub(crate) overlay: u32,
    /// UDP port of the VXLAN device.
    pub(crate) overlay_port: u16,
    /// Index of the VLAN uplink; zero if there is none.
    pub(crate) uplink: u32,
}

/// The interfaces and the state of their hooks.
pub(crate) struct Interfaces {
    configuration: Configuration,
    pins: Pins,
    hooks: TcHooks,
    xdp: XdpHook,
    xdp_status: XdpStatus,
    devices: Devices,
    writes: Writes,
}

impl Interfaces {
    pub(crate) fn new(
        configuration: Configuration,
        mode: AttachMode,
        xdp: XdpPreference,
        pins: Pins,
        writes: Writes,
    ) -> Self {
        Interfaces {
            configuration,
            hooks: TcHooks::new(mode, pins.clone(), writes.clone()),
            xdp: XdpHook::new(xdp, pins.clone(), writes.clone()),
            xdp_status: XdpStatus::default(),
            devices: Devices::default(),
            pins,
            writes,
        }
    }

    pub(crate) fn devices(&self) -> &Devices {
        &self.devices
    }

    pub(crate) fn pins(&self) -> &Pins {
        &self.pins
    }

    pub(crate) fn hooks(&self) -> &TcHooks {
        &self.hooks
    }

    pub(crate) fn xdp(&self) -> &XdpHook {
        &self.xdp
    }

    pub(crate) fn xdp_status(&self) -> &XdpStatus {
        &self.xdp_status
    }

    /// Creates the devices, and attaches the programs to them. Detaches the programs from former uplinks, VXLAN devices
    /// and queues; `queue` is the index of the interface that the program of the queues belongs to.
    pub(crate) async fn ensure(
        &mut self,
        netlink: &Netlink,
        programs: &mut Programs,
        queue: Option<u32>,
    ) -> Result<(), Error> {
        let Configuration { vxlan_device, vxlan_port, vtep, uplink } = &self.configuration;
        let overlay = netlink.ensure_vxlan(vxlan_device, *vxlan_port, &self.writes).await?;
        if let Some(underlay) = vtep.and_then(device::with_address)
            && device::is_veth(&underlay)
        {
            device::ensure_tx_checksum_off(vxlan_device, &self.writes)?;
        }
        self.hooks.ensure(programs.tc(Role::Overlay), Role::Overlay, vxlan_device, overlay, netlink).await?;
        let mut devices = Devices { overlay, overlay_port: *vxlan_port, uplink: 0 };
        if let Some(uplink) = uplink {
            devices.uplink = netlink.ensure_uplink(uplink, &self.writes).await?;
            if device::is_veth(uplink) {
                device::ensure_tx_checksum_off(uplink, &self.writes)?;
            }
            self.hooks
                .ensure(programs.tc(Role::Uplink), Role::Uplink, uplink, devices.uplink, netlink)
                .await?;
            let status = self.xdp.ensure(programs.xdp(), netlink, uplink, devices.uplink).await?;
            self.set_xdp_status(status);
        } else {
            self.xdp.remove_all()?;
        }
        self.devices = devices;
        for (role, ifindex) in self.hooks.pinned()? {
            let in_use = match role {
                Role::Pod => true,
                Role::Queue => Some(ifindex) == queue,
                Role::Overlay => ifindex == devices.overlay,
                Role::Uplink => ifindex == devices.uplink,
            };
            if !in_use {
                self.hooks.detach(role, None, ifindex)?;
            }
        }
        Ok(())
    }

    /// Logs a change of the XDP status.
    fn set_xdp_status(&mut self, status: XdpStatus) {
        if self.xdp_status == status {
            return;
        }
        let uplink = self.configuration.uplink.as_deref().unwrap_or_default();
        match &status {
            XdpStatus::Off => tracing::info!(uplink, "XDP is off"),
            XdpStatus::Attached(mode) => {
                tracing::info!(
                    uplink,
                    mode = mode.as_str(),
                    "XDP forwards service traffic to remote backends"
                );
                if !device::is_veth(uplink) && device::has_rx_vlan_offload(uplink) {
                    tracing::warn!(
                        uplink,
                        "RX VLAN offload removes the tags before XDP, so TC processes all frames; \
                         to use XDP, run `ethtool -K {uplink} rxvlan off`"
                    );
                }
            }
            XdpStatus::Unavailable(cause) => {
                tracing::warn!(uplink, "XDP is unavailable, TC processes all frames: {cause}");
            }
        }
        self.xdp_status = status;
    }

    /// Moves the XDP link of an earlier ABI version to the current program: an interface has one XDP program.
    pub(crate) async fn take_over_xdp(&mut self, programs: &mut Programs) -> Result<(), Error> {
        let Some(uplink) = &self.configuration.uplink else { return Ok(()) };
        if self.xdp.take_over(programs.xdp(), self.devices.uplink)? {
            // The previous link may have another mode than the preferred one.
            let netlink = Netlink::open()?;
            let status = self.xdp.ensure(programs.xdp(), &netlink, uplink, self.devices.uplink).await?;
            self.set_xdp_status(status);
        }
        Ok(())
    }

    /// Detaches the filters of other ABI versions.
    pub(crate) async fn detach_other_filters(&self) -> Result<(), Error> {
        self.hooks.detach_other_abi_versions(&Netlink::open()?).await
    }

    /// Removes the programs, links and maps of other ABI versions. Until then their programs process the frames first;
    /// afterwards the current programs do.
    pub(crate) async fn remove_other_abi_versions(&self) -> Result<(), Error> {
        let others = self.pins.other_abi_versions();
        if others.is_empty() {
            return Ok(());
        }
        // The filters go before the pins, which record that another version exists.
        self.detach_other_filters().await?;
        for other in others {
            let removed = other.remove_all()?;
            (0..removed).for_each(|_| self.writes.count());
        }
        Ok(())
    }

    /// Removes the programs from all interfaces, the VXLAN device, and the uplink's promiscuous mode. Continues after an
    /// error; returns the first one.
    pub(crate) async fn cleanup(&self, netlink: &Netlink) -> Result<(), Error> {
        let mut outcome = Ok(());
        for interface in netlink.names().await? {
            for role in Role::ALL {
                if self.hooks.mode() == AttachMode::Clsact {
                    outcome = outcome.and(self.hooks.detach(role, Some(&interface), 0));
                }
            }
        }
        // If no agent has used the uplink, an operator has set its promiscuous mode.
        if let Some(uplink) = &self.configuration.uplink
            && (self.pins.maps().exists() || !self.pins.other_abi_versions().is_empty())
        {
            outcome = outcome.and(netlink.release_uplink(uplink, &self.writes).await);
        }
        outcome.and(self.remove_other_abi_versions().await)
    }

    /// Deletes the VXLAN device.
    pub(crate) async fn delete_vxlan(&self, netlink: &Netlink) -> Result<(), Error> {
        let name = &self.configuration.vxlan_device;
        match netlink.link(name).await? {
            Some(link) => netlink.delete(name, link.header.index, &self.writes).await,
            None => Ok(()),
        }
    }
}
