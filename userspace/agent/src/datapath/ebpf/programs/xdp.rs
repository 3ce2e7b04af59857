//! Attachment of the XDP program to the uplink: native in the driver, or generic if the driver does not support XDP.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use aya::programs::{
    ProgramError, Xdp, XdpMode,
    links::{FdLink, PinnedLink},
    xdp::XdpLink,
};
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage, LinkXdp, XdpAttached};

use crate::{
    datapath::{
        Error,
        ebpf::{
            device::{self, Netlink},
            failure::{errno, failed},
            maps::{pins::Pins, writes::Writes},
            programs::tc::{DETACH_POLL_INTERVAL, DETACH_TIMEOUT},
        },
    },
    error::one_line,
};

/// Configured XDP mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum XdpPreference {
    /// Native if the driver supports it, otherwise generic, otherwise off.
    #[default]
    Auto,
    /// Native: in the driver.
    Native,
    /// Generic: after the driver, before the network stack.
    Generic,
    /// Off: the TC program processes all frames.
    Off,
}

/// Mode of an attached program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachedMode {
    Native,
    Generic,
}

impl AttachedMode {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            AttachedMode::Native => "native",
            AttachedMode::Generic => "generic",
        }
    }

    fn flag(self) -> XdpMode {
        match self {
            AttachedMode::Native => XdpMode::Driver,
            AttachedMode::Generic => XdpMode::Skb,
        }
    }
}

/// Result of the attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum XdpStatus {
    /// There is no uplink, or XDP is configured off.
    #[default]
    Off,
    /// The program is attached.
    Attached(AttachedMode),
    /// The kernel rejected every mode; contains the cause.
    Unavailable(String),
}

impl XdpStatus {
    /// Name in the debug dump and in metrics.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            XdpStatus::Off | XdpStatus::Unavailable(_) => "off",
            XdpStatus::Attached(mode) => mode.as_str(),
        }
    }
}

/// Prefix of the pin, before the interface index.
const PREFIX: &str = "xdp-";

/// Attaches and detaches the XDP program.
#[derive(Clone, Debug)]
pub(crate) struct XdpHook {
    preference: XdpPreference,
    pins: Pins,
    writes: Writes,
}

impl XdpHook {
    pub(crate) fn new(preference: XdpPreference, pins: Pins, writes: Writes) -> Self {
        XdpHook { preference, pins, writes }
    }

    pub(crate) fn preference(&self) -> XdpPreference {
        self.preference
    }

    fn modes(&self, interface: &str) -> &'static [AttachedMode] {
        match self.preference {
            XdpPreference::Off => &[],
            XdpPreference::Native => &[AttachedMode::Native],
            XdpPreference::Generic => &[AttachedMode::Generic],
            // The veth driver supports native XDP, but XDP_TX on one end needs an XDP program on the other end as well.
            XdpPreference::Auto if device::is_veth(interface) => &[AttachedMode::Generic],
            XdpPreference::Auto => &[AttachedMode::Native, AttachedMode::Generic],
        }
    }

    /// Attaches this program to the interfaces, given by name and index, in the preferred mode, and detaches it from all
    /// others. Returns the status of the interface where it is worst.
    pub(crate) async fn ensure(
        &self,
        program: &mut Xdp,
        netlink: &Netlink,
        interfaces: &[(&str, u32)],
    ) -> Result<XdpStatus, Error> {
        let pins: Vec<_> = interfaces.iter().map(|(_, ifindex)| format!("{PREFIX}{ifindex}")).collect();
        self.remove(|name| !pins.iter().any(|pin| name == pin) || self.preference == XdpPreference::Off)?;
        let mut status = XdpStatus::Off;
        for (interface, ifindex) in interfaces {
            match (self.ensure_one(program, netlink, interface, *ifindex).await?, &status) {
                (_, XdpStatus::Unavailable(_)) => {}
                (XdpStatus::Unavailable(cause), _) if interfaces.len() > 1 => {
                    status = XdpStatus::Unavailable(format!("{interface}: {cause}"));
                }
                (XdpStatus::Attached(AttachedMode::Native), XdpStatus::Attached(_)) => {}
                (new, _) => status = new,
            }
        }
        Ok(status)
    }

    /// Attaches this program to an interface in the preferred mode. A program of another ABI version stays attached until
    /// [`take_over`](XdpHook::take_over), because an interface has only one XDP program.
    async fn ensure_one(
        &self,
        program: &mut Xdp,
        netlink: &Netlink,
        interface: &str,
        ifindex: u32,
    ) -> Result<XdpStatus, Error> {
        let modes = self.modes(interface);
        let pin = format!("{PREFIX}{ifindex}");
        if modes.is_empty() {
            return Ok(XdpStatus::Off);
        }
        let what = || format!("attach {} to {interface} as XDP (see --xdp)", contiv_abi::maps::XDP);
        let id = program.info().map_err(|error| failed(what(), error))?.id();
        let path = self.pins.link(&pin);
        if let Some((mode, running)) = netlink.link(interface).await?.as_ref().and_then(attached) {
            let is_current = path.exists() && running == id && modes.contains(&mode);
            let is_other_version = !path.exists() && self.link_of_other_abi_version(&pin).is_some();
            if is_current || is_other_version {
                return Ok(XdpStatus::Attached(mode));
            }
        }
        // The existing link has another mode, or is no longer attached to this interface.
        let was_pinned = self.pins.unpin(&path)?;
        let mut last = None;
        for mode in modes {
            self.writes.count();
            match attach(program, ifindex, *mode, was_pinned).await.and_then(|link| Ok(link.pin(&path)?)) {
                // Closes the descriptor; the pin keeps the link.
                Ok(_pinned) => return Ok(XdpStatus::Attached(*mode)),
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) if self.preference == XdpPreference::Auto => {
                Ok(XdpStatus::Unavailable(one_line(&*error)))
            }
            Some(error) => Err(failed(what(), error)),
            None => Ok(XdpStatus::Off),
        }
    }

    /// Replaces the program in the link of another ABI version, and adopts the link, so that the interface always has a
    /// program. False if there is no such link.
    pub(crate) fn take_over(&self, program: &mut Xdp, ifindex: u32) -> Result<bool, Error> {
        let pin = format!("{PREFIX}{ifindex}");
        let Some(other) = self.link_of_other_abi_version(&pin) else { return Ok(false) };
        let own = self.pins.link(&pin);
        // If XDP is off, or the current version has a link, the link is removed with the other pins of its version.
        if self.preference == XdpPreference::Off || own.exists() {
            return Ok(false);
        }
        let what = || format!("take over the link {}", other.display());
        self.writes.count();
        match replace_link(program, &other) {
            Ok(()) => fs::rename(&other, &own).map_err(|error| failed(what(), error))?,
            // Its interface has been deleted.
            Err(error) if errno(&*error) == Some(libc::ENOLINK) => drop(self.pins.unpin(&other)?),
            Err(error) => return Err(failed(what(), error)),
        }
        Ok(true)
    }

    fn link_of_other_abi_version(&self, pin: &str) -> Option<PathBuf> {
        self.pins.other_abi_versions().iter().map(|other| other.link(pin)).find(|path| path.exists())
    }

    fn remove(&self, selected: impl Fn(&str) -> bool) -> Result<(), Error> {
        for name in self.pinned()?.into_iter().filter(|name| selected(name)) {
            if self.pins.unpin(&self.pins.link(&name))? {
                self.writes.count();
            }
        }
        Ok(())
    }

    fn pinned(&self) -> Result<Vec<String>, Error> {
        Ok(self.pins.link_names()?.into_iter().filter(|name| name.starts_with(PREFIX)).collect())
    }

    /// Replaces the program of every pinned link atomically.
    pub(crate) fn replace(&self, program: &mut Xdp) -> Result<(), Error> {
        for name in self.pinned()? {
            let path = self.pins.link(&name);
            self.writes.count();
            if let Err(error) = replace_link(program, &path) {
                if errno(&*error) != Some(libc::ENOLINK) {
                    return Err(failed(format!("replace {} at {name}", contiv_abi::maps::XDP), error));
                }
                // The interface has been deleted.
                self.pins.unpin(&path)?;
            }
        }
        Ok(())
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Attaches the program. If an unpinned link is still attached, repeats the call until the kernel has released it.
async fn attach(
    program: &mut Xdp,
    ifindex: u32,
    mode: AttachedMode,
    was_pinned: bool,
) -> Result<FdLink, Failure> {
    let deadline = Instant::now() + DETACH_TIMEOUT;
    let id = loop {
        match program.attach_to_if_index(ifindex, mode.flag()) {
            Err(error) if was_pinned && is_busy(&error) && Instant::now() < deadline => {
                tokio::time::sleep(DETACH_POLL_INTERVAL).await;
            }
            result => break result?,
        }
    };
    Ok(FdLink::try_from(program.take_link(id)?)?)
}

fn is_busy(error: &ProgramError) -> bool {
    matches!(errno(error), Some(libc::EBUSY | libc::EEXIST))
}

fn replace_link(program: &mut Xdp, path: &Path) -> Result<(), Failure> {
    let link = FdLink::from(PinnedLink::from_pin(path)?);
    let id = program.attach_to_link(XdpLink::try_from(link)?)?;
    // Closes the descriptor; the pin keeps the link.
    drop(program.take_link(id)?);
    Ok(())
}

/// Mode and id of the program attached to an interface.
fn attached(link: &LinkMessage) -> Option<(AttachedMode, u32)> {
    let attributes = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Xdp(attributes) => Some(attributes),
        _ => None,
    })?;
    let mode = attributes.iter().find_map(|attribute| match attribute {
        LinkXdp::Attached(XdpAttached::Driver) => Some(AttachedMode::Native),
        LinkXdp::Attached(XdpAttached::SocketBuffer) => Some(AttachedMode::Generic),
        _ => None,
    })?;
    let id = attributes.iter().find_map(|attribute| match attribute {
        LinkXdp::ProgId(id) => Some(*id),
        _ => None,
    })?;
    Some((mode, id))
}
