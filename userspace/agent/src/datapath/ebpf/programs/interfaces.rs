//! The VXLAN device, the uplink, the interfaces to the node's kernel, and the programs on them.

use std::{io, net::IpAddr};

use super::{
    kernel_port::KernelPort,
    load::Programs,
    stages,
    tc::{AttachMode, Role, TcHooks},
    xdp::{XdpHook, XdpPreference, XdpStatus},
};
use crate::{
    datapath::{
        Error,
        ebpf::{
            device::{self, Netlink},
            failure::failed,
            maps::{pins::Pins, rcu, writes::Writes},
        },
    },
    error::one_line,
};

/// Interfaces that the datapath uses, from the options of the node.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    /// Name of the VXLAN device.
    pub(crate) vxlan_device: String,
    /// UDP port of the tunnels.
    pub(crate) vxlan_port: u16,
    /// Tunnel address of this node.
    pub(crate) vtep: Option<IpAddr>,
    /// Interfaces that carry the VLAN networks, one at a time, in the order of preference.
    pub(crate) uplinks: Vec<String>,
}

/// Interfaces to which map entries refer by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Devices {
    /// Index of the VXLAN device.
    pub(crate) overlay: u32,
    /// UDP port of the VXLAN device.
    pub(crate) overlay_port: u16,
    /// Index of the datapath's end of the interface to the node's kernel for host access; zero if it does not exist.
    pub(crate) host: u32,
    /// The same for VLAN networks that the node routes.
    pub(crate) vlans: u32,
    /// Index of each VLAN uplink that exists, in the order of preference, and whether it has a carrier.
    pub(crate) uplinks: Vec<(u32, bool)>,
}

impl Devices {
    /// Whether an interface to the node's kernel exists.
    pub(crate) fn has(&self, port: KernelPort) -> bool {
        let ifindex = match port {
            KernelPort::HostAccess => self.host,
            KernelPort::Vlans => self.vlans,
        };
        ifindex != 0
    }

    fn kernel_port_mut(&mut self, port: KernelPort) -> &mut u32 {
        match port {
            KernelPort::HostAccess => &mut self.host,
            KernelPort::Vlans => &mut self.vlans,
        }
    }
}

/// The interfaces and the state of their hooks.
pub(crate) struct Interfaces {
    configuration: Configuration,
    pins: Pins,
    hooks: TcHooks,
    xdp: XdpHook,
    xdp_status: XdpStatus,
    devices: Devices,
    /// Configured uplinks that do not exist.
    missing_uplinks: Vec<String>,
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
            missing_uplinks: vec![],
            pins,
            writes,
        }
    }

    pub(crate) fn devices(&self) -> &Devices {
        &self.devices
    }

    pub(crate) fn missing_uplinks(&self) -> &[String] {
        &self.missing_uplinks
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
    /// and queues; `queue` is the index of the interface that the program of the queues belongs to. The interfaces to the
    /// node's kernel are only repaired: objects that need one create it
    /// ([`ensure_kernel_port`](Self::ensure_kernel_port)).
    ///
    /// If `yields_port` is set, the VXLAN device may be missing while the kernel datapath of Open vSwitch uses its UDP
    /// port.
    pub(crate) async fn ensure(
        &mut self,
        netlink: &Netlink,
        programs: &mut Programs,
        queue: Option<u32>,
        yields_port: bool,
    ) -> Result<(), Error> {
        let overlay = self.ensure_overlay(netlink, programs, yields_port).await?;
        let overlay_port = self.configuration.vxlan_port;
        let uplinks = self.ensure_uplinks(netlink, programs).await?;
        let mut devices = Devices { overlay, overlay_port, uplinks, ..Devices::default() };
        for port in KernelPort::ALL {
            if device::ifindex(port.peer()).is_none() {
                continue;
            }
            // Reverts manual changes. An object that needs the interface reports the error.
            match port.ensure(netlink, &self.writes).await {
                Ok(ifindex) => {
                    let program = programs.tc(Role::Kernel);
                    self.hooks.ensure(program, Role::Kernel, port.peer(), ifindex, netlink).await?;
                    *devices.kernel_port_mut(port) = ifindex;
                }
                Err(error) => tracing::warn!("{}", one_line(&error)),
            }
        }
        for (role, ifindex) in self.hooks.pinned()? {
            let in_use = match role {
                Role::Pod => true,
                Role::Queue => Some(ifindex) == queue,
                Role::Overlay => ifindex == devices.overlay,
                Role::Kernel => ifindex == devices.host || ifindex == devices.vlans,
                Role::Uplink => devices.uplinks.iter().any(|(uplink, _)| *uplink == ifindex),
            };
            if !in_use {
                self.hooks.detach(role, None, ifindex)?;
            }
        }
        self.devices = devices;
        Ok(())
    }

    /// Creates the VXLAN device with its program, unless it exists. Returns its index, or zero if it yields the UDP port
    /// to Open vSwitch.
    async fn ensure_overlay(
        &self,
        netlink: &Netlink,
        programs: &mut Programs,
        yields_port: bool,
    ) -> Result<u32, Error> {
        let Configuration { vxlan_device, vxlan_port, vtep, .. } = &self.configuration;
        let overlay = match netlink.ensure_vxlan(vxlan_device, *vxlan_port, &self.writes).await {
            Err(error) if yields_port && device::is_port_of_ovs(&error, *vxlan_port) => {
                tracing::debug!("no {vxlan_device} beside the other datapath: {}", one_line(&error));
                return Ok(0);
            }
            overlay => overlay?,
        };
        if let Some(underlay) = vtep.and_then(device::with_address)
            && device::is_veth(&underlay)
        {
            device::ensure_tx_checksum_off(vxlan_device, &self.writes)?;
        }
        self.hooks.ensure(programs.tc(Role::Overlay), Role::Overlay, vxlan_device, overlay, netlink).await?;
        Ok(overlay)
    }

    /// Creates an interface to the node's kernel, with its program, unless it exists.
    pub(crate) async fn ensure_kernel_port(
        &mut self,
        port: KernelPort,
        programs: &mut Programs,
    ) -> Result<(), Error> {
        let netlink = Netlink::open()?;
        let ifindex = port.ensure(&netlink, &self.writes).await?;
        let program = programs.tc(Role::Kernel);
        self.hooks.ensure(program, Role::Kernel, port.peer(), ifindex, &netlink).await?;
        *self.devices.kernel_port_mut(port) = ifindex;
        Ok(())
    }

    /// Deletes an interface to the node's kernel.
    pub(crate) async fn remove_kernel_port(&mut self, port: KernelPort) -> Result<(), Error> {
        let ifindex = std::mem::take(self.devices.kernel_port_mut(port));
        if ifindex != 0 {
            self.hooks.detach(Role::Kernel, Some(port.peer()), ifindex)?;
            port.remove(&Netlink::open()?, &self.writes).await?;
        }
        Ok(())
    }

    /// Fails if uplinks are configured and none of them exists.
    pub(crate) async fn check_uplinks(&self, netlink: &Netlink) -> Result<(), Error> {
        let uplinks = &self.configuration.uplinks;
        for name in uplinks {
            if netlink.link(name).await?.is_some() {
                return Ok(());
            }
        }
        if uplinks.is_empty() {
            return Ok(());
        }
        let operation = format!("find the VLAN uplink {}; check --vlan-uplinks", uplinks.join(", "));
        Err(failed(operation, io::Error::from_raw_os_error(libc::ENODEV)))
    }

    /// Attaches the programs to the uplinks that exist. Returns the index of each, and whether it has a carrier.
    async fn ensure_uplinks(
        &mut self,
        netlink: &Netlink,
        programs: &mut Programs,
    ) -> Result<Vec<(u32, bool)>, Error> {
        let (mut found, mut missing) = (vec![], vec![]);
        for name in &self.configuration.uplinks {
            match netlink.ensure_uplink(name, &self.writes).await? {
                Some((ifindex, has_carrier)) => found.push((name.clone(), ifindex, has_carrier)),
                None => missing.push(name.clone()),
            }
        }
        for (name, ifindex, _) in &found {
            if device::is_veth(name) {
                device::ensure_tx_checksum_off(name, &self.writes)?;
            }
            self.hooks.ensure(programs.tc(Role::Uplink), Role::Uplink, name, *ifindex, netlink).await?;
        }
        let uplinks: Vec<_> = found.iter().map(|(name, ifindex, _)| (name.as_str(), *ifindex)).collect();
        let status = self.xdp.ensure(programs.xdp(), netlink, &uplinks).await?;
        self.set_xdp_status(status);
        if !missing.is_empty() && self.missing_uplinks != missing {
            tracing::warn!(uplinks = missing.join(", "), "VLAN uplinks do not exist");
        }
        self.missing_uplinks = missing;
        Ok(found.iter().map(|(_, ifindex, has_carrier)| (*ifindex, *has_carrier)).collect())
    }

    /// Logs a change of the XDP status.
    fn set_xdp_status(&mut self, status: XdpStatus) {
        if self.xdp_status == status {
            return;
        }
        let uplinks = self.configuration.uplinks.join(", ");
        match &status {
            XdpStatus::Off => tracing::info!(uplinks, "XDP is off"),
            XdpStatus::Attached(mode) => {
                tracing::info!(
                    uplinks,
                    mode = mode.as_str(),
                    "XDP forwards service traffic to remote backends"
                );
                for uplink in &self.configuration.uplinks {
                    if !device::is_veth(uplink) && device::has_rx_vlan_offload(uplink) {
                        tracing::warn!(
                            uplink,
                            "RX VLAN offload removes the tags before XDP, so TC processes all frames; \
                             to use XDP, run `ethtool -K {uplink} rxvlan off`"
                        );
                    }
                }
            }
            XdpStatus::Unavailable(cause) => {
                tracing::warn!(uplinks, "XDP is unavailable, TC processes all frames: {cause}");
            }
        }
        self.xdp_status = status;
    }

    /// Moves the XDP links of an earlier ABI version to the current program: an interface has one XDP program.
    pub(crate) async fn take_over_xdp(&mut self, programs: &mut Programs) -> Result<(), Error> {
        let mut taken_over = false;
        for (uplink, _) in &self.devices.uplinks {
            taken_over |= self.xdp.take_over(programs.xdp(), *uplink)?;
        }
        if taken_over {
            // The previous link may have another mode than the preferred one.
            self.ensure_uplinks(&Netlink::open()?, programs).await?;
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
            // Must precede the removal of its program array.
            let detached = other.detach_links()?;
            rcu::synchronize();
            let removed = detached + other.remove_all()?;
            (0..removed).for_each(|_| self.writes.count());
        }
        Ok(())
    }

    /// Number of program arrays of earlier loads.
    pub(crate) fn superseded_stages(&self) -> Result<usize, Error> {
        Ok(stages::superseded(&self.pins)?.len())
    }

    /// Removes the program arrays of earlier loads. Every interface must have its current program.
    pub(crate) fn remove_superseded_stages(&self) -> Result<(), Error> {
        stages::remove_superseded(&self.pins, &self.writes)
    }

    /// Removes the programs from all interfaces, and ends the promiscuous mode of the uplinks unless another datapath
    /// needs it. Continues after an error and returns the first one.
    pub(crate) async fn detach(&self, netlink: &Netlink, needs_uplinks: bool) -> Result<(), Error> {
        let mut outcome = Ok(());
        for interface in netlink.names().await? {
            for role in Role::ALL {
                if self.hooks.mode() == AttachMode::Clsact {
                    outcome = outcome.and(self.hooks.detach(role, Some(&interface), 0));
                }
            }
        }
        // If no agent has used the uplink, an operator has set its promiscuous mode.
        let is_own = self.pins.maps().exists() || !self.pins.other_abi_versions().is_empty();
        if is_own && !needs_uplinks {
            for uplink in &self.configuration.uplinks {
                outcome = outcome.and(netlink.release_uplink(uplink, &self.writes).await);
            }
        }
        outcome.and(self.remove_other_abi_versions().await)
    }

    /// Deletes the VXLAN device, and the interfaces to the node's kernel.
    pub(crate) async fn delete_devices(&self, netlink: &Netlink) -> Result<(), Error> {
        for port in KernelPort::ALL {
            port.remove(netlink, &self.writes).await?;
        }
        let name = &self.configuration.vxlan_device;
        match netlink.link(name).await? {
            Some(link) => netlink.delete(name, link.header.index, &self.writes).await,
            None => Ok(()),
        }
    }
}
