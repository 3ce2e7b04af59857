//! How programs are attached to the TC ingress hook: TCX links, or clsact filters on older kernels.

use std::{
    collections::BTreeSet,
    io,
    path::Path,
    time::{Duration, Instant},
};

use aya::{
    programs::{
        LinkOrder, ProgramError, ProgramInfo, SchedClassifier, TcAttachType,
        links::{FdLink, PinnedLink},
        tc::{self, SchedClassifierLink, SchedClassifierLinkId, TcAttachOptions, TcError},
    },
    util::KernelVersion,
};
use contiv_abi::maps;

use crate::datapath::{
    Error,
    ebpf::{
        device::{self, Netlink},
        failure::{errno, failed},
        maps::{pins::Pins, writes::Writes},
        programs::clsact,
    },
};

/// How TC programs are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachMode {
    /// TCX on Linux 6.6 and later, otherwise clsact.
    #[default]
    Auto,
    /// Pinned TCX links, which are replaced atomically.
    Tcx,
    /// Filters of the clsact qdisc, which outlive the agent without pins.
    Clsact,
}

impl AttachMode {
    pub(crate) fn resolve(self) -> AttachMode {
        match self {
            AttachMode::Auto => {
                // Clsact if the version is unknown: every kernel has it.
                let tcx = KernelVersion::current().is_ok_and(|kernel| kernel >= KernelVersion::new(6, 6, 0));
                if tcx { AttachMode::Tcx } else { AttachMode::Clsact }
            }
            other => other,
        }
    }
}

/// Kind of interface, which determines its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Pod,
    Queue,
    Overlay,
    Uplink,
    Kernel,
}

impl Role {
    pub(crate) const ALL: [Role; 5] = [Role::Pod, Role::Queue, Role::Overlay, Role::Uplink, Role::Kernel];

    pub(crate) fn program(self) -> &'static str {
        match self {
            Role::Pod => maps::FROM_POD,
            Role::Queue => maps::FROM_QUEUE,
            Role::Overlay => maps::FROM_OVERLAY,
            Role::Uplink => maps::FROM_UPLINK,
            Role::Kernel => maps::FROM_HOST,
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Role::Pod => "pod-",
            Role::Queue => "queue-",
            Role::Overlay => "overlay-",
            Role::Uplink => "uplink-",
            Role::Kernel => "kernel-",
        }
    }

    /// Name of the pin. It contains the index: bpffs refuses dots, which interface names may contain.
    pub(crate) fn pin(self, ifindex: u32) -> String {
        format!("{}{ifindex}", self.prefix())
    }

    pub(crate) fn from_pin(pin: &str) -> Option<(Role, u32)> {
        Role::ALL.iter().find_map(|role| Some((*role, pin.strip_prefix(role.prefix())?.parse().ok()?)))
    }
}

/// Time limit for the kernel to release an unpinned link. It does so in a worker thread, which may take seconds on a node
/// without an idle CPU.
pub(crate) const DETACH_TIMEOUT: Duration = Duration::from_secs(20);
pub(crate) const DETACH_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Attaches and detaches TC programs.
#[derive(Clone, Debug)]
pub(crate) struct TcHooks {
    mode: AttachMode,
    pins: Pins,
    writes: Writes,
}

impl TcHooks {
    pub(crate) fn new(mode: AttachMode, pins: Pins, writes: Writes) -> Self {
        TcHooks { mode: mode.resolve(), pins, writes }
    }

    pub(crate) fn mode(&self) -> AttachMode {
        self.mode
    }

    /// Whether exactly this program is attached to the interface.
    pub(crate) async fn is_attached(
        &self,
        program: &SchedClassifier,
        role: Role,
        interface: &str,
        ifindex: u32,
        netlink: &Netlink,
    ) -> Result<bool, Error> {
        let what = || format!("query the programs of {interface}");
        let id = program.info().map_err(|error| failed(what(), error))?.id();
        match self.mode {
            AttachMode::Tcx | AttachMode::Auto => {
                // The kernel is about to remove a link without a pin.
                if !self.pins.link(&role.pin(ifindex)).exists() {
                    return Ok(false);
                }
                let result = SchedClassifier::query_tcx(interface, TcAttachType::Ingress);
                let programs = match result {
                    Ok((_, programs)) => programs,
                    // The interface has been deleted.
                    Err(error) if errno(&error) == Some(libc::ENODEV) => return Ok(false),
                    Err(error) => return Err(failed(what(), error)),
                };
                Ok(programs.iter().any(|program| program.id() == id))
            }
            AttachMode::Clsact => {
                Ok(clsact::list(netlink, ifindex).await?.iter().any(|filter| filter.program == id))
            }
        }
    }

    /// Attaches the program to the interface unless it is attached.
    pub(crate) async fn ensure(
        &self,
        program: &mut SchedClassifier,
        role: Role,
        interface: &str,
        ifindex: u32,
        netlink: &Netlink,
    ) -> Result<(), Error> {
        if !self.is_attached(program, role, interface, ifindex, netlink).await? {
            self.attach(program, role, interface, ifindex).await?;
        }
        Ok(())
    }

    /// Attaches the program to the interface; replaces an earlier program of ours.
    pub(crate) async fn attach(
        &self,
        program: &mut SchedClassifier,
        role: Role,
        interface: &str,
        ifindex: u32,
    ) -> Result<(), Error> {
        let what = || format!("attach {} to {interface}", role.program());
        self.writes.count();
        match self.mode {
            AttachMode::Tcx | AttachMode::Auto => {
                let path = self.pins.link(&role.pin(ifindex));
                // The existing link is no longer attached to this interface.
                self.pins.unpin(&path)?;
                let id = attach_tcx(program, interface).await.map_err(|error| failed(what(), error))?;
                let link = program.take_link(id).map_err(|error| failed(what(), error))?;
                let link = FdLink::try_from(link).map_err(|error| failed(what(), error))?;
                link.pin(&path).map_err(|error| failed(what(), error))?;
                Ok(())
            }
            AttachMode::Clsact => {
                let existing = clsact::list(&Netlink::open()?, ifindex).await?;
                clsact::attach(program, interface, &existing, self.pins.version())
                    .map_err(|error| failed(what(), error))
            }
        }
    }

    /// Detaches the program. Succeeds if the interface does not exist.
    pub(crate) fn detach(&self, role: Role, interface: Option<&str>, ifindex: u32) -> Result<(), Error> {
        match (self.mode, interface) {
            (AttachMode::Tcx | AttachMode::Auto, _) => {
                if self.pins.unpin(&self.pins.link(&role.pin(ifindex)))? {
                    self.writes.count();
                }
                Ok(())
            }
            (AttachMode::Clsact, None) => Ok(()),
            (AttachMode::Clsact, Some(interface)) => {
                match tc::qdisc_detach_program(interface, TcAttachType::Ingress, role.program()) {
                    Ok(()) => self.writes.count(),
                    Err(error) if is_absent(&error) => {}
                    Err(error) => {
                        return Err(failed(format!("detach {} from {interface}", role.program()), error));
                    }
                }
                Ok(())
            }
        }
    }

    /// Removes the filters of other ABI versions from every interface.
    pub(crate) async fn detach_other_abi_versions(&self, netlink: &Netlink) -> Result<(), Error> {
        if self.mode != AttachMode::Clsact {
            return Ok(());
        }
        for interface in netlink.names().await? {
            let Some(ifindex) = device::ifindex(&interface) else { continue };
            let filters = clsact::list(netlink, ifindex).await?;
            for old in filters.iter().filter(|filter| !filter.is_of(self.pins.version())) {
                self.writes.count();
                old.detach(&interface).map_err(|error| {
                    failed(format!("detach the filter of another ABI version from {interface}"), error)
                })?;
            }
        }
        Ok(())
    }

    /// Pinned links: role and interface index.
    pub(crate) fn pinned(&self) -> Result<Vec<(Role, u32)>, Error> {
        Ok(self.pins.link_names()?.iter().filter_map(|name| Role::from_pin(name)).collect())
    }

    /// Interfaces with the program for pods, of any ABI version.
    pub(crate) async fn pods(&self, netlink: &Netlink) -> Result<BTreeSet<u32>, Error> {
        let mut pods = BTreeSet::new();
        if self.mode == AttachMode::Clsact {
            for interface in netlink.names().await? {
                let Some(ifindex) = device::ifindex(&interface) else { continue };
                if clsact::list(netlink, ifindex).await?.iter().any(|filter| filter.runs(Role::Pod.program()))
                {
                    pods.insert(ifindex);
                }
            }
        }
        for pins in self.pins.other_abi_versions().into_iter().chain([self.pins.clone()]) {
            let links = pins.link_names()?;
            let links = links.iter().filter_map(|name| Role::from_pin(name));
            pods.extend(links.filter(|(role, _)| *role == Role::Pod).map(|(_, ifindex)| ifindex));
        }
        Ok(pods)
    }

    /// Reports whether a filter of this ABI version (of any version, with `None`) is attached to an interface. TCX links
    /// have pins and are not considered.
    pub(crate) async fn has_filters(&self, version: Option<u32>, netlink: &Netlink) -> Result<bool, Error> {
        if self.mode != AttachMode::Clsact {
            return Ok(false);
        }
        for interface in netlink.names().await? {
            let Some(ifindex) = device::ifindex(&interface) else { continue };
            let filters = clsact::list(netlink, ifindex).await?;
            if filters.iter().any(|filter| version.is_none_or(|version| filter.is_of(version))) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Replaces the program of every link or filter of the role atomically.
    pub(crate) async fn replace(&self, role: Role, program: &mut SchedClassifier) -> Result<(), Error> {
        if self.mode == AttachMode::Clsact {
            return self.replace_filters(role, program).await;
        }
        for (pinned_role, ifindex) in self.pinned()? {
            if pinned_role != role {
                continue;
            }
            let path = self.pins.link(&role.pin(ifindex));
            self.writes.count();
            if let Err(error) = replace_link(program, &path) {
                if errno(&*error) != Some(libc::ENOLINK) {
                    return Err(failed(format!("replace {} on interface {ifindex}", role.program()), error));
                }
                // The interface has been deleted.
                self.pins.unpin(&path)?;
            }
        }
        Ok(())
    }
}

impl TcHooks {
    async fn replace_filters(&self, role: Role, program: &mut SchedClassifier) -> Result<(), Error> {
        let netlink = Netlink::open()?;
        let version = self.pins.version();
        for interface in netlink.names().await? {
            let Some(ifindex) = device::ifindex(&interface) else { continue };
            let filters = clsact::list(&netlink, ifindex).await?;
            if filters.iter().any(|filter| filter.is_of(version) && filter.runs(role.program())) {
                self.writes.count();
                clsact::attach(program, &interface, &filters, version)
                    .map_err(|error| failed(format!("replace {} on {interface}", role.program()), error))?;
            }
        }
        Ok(())
    }
}

/// Attaches with TCX. An unpinned link stays attached until an RCU grace period ends; until then the kernel rejects the
/// same program with EEXIST, so the call is repeated.
async fn attach_tcx(
    program: &mut SchedClassifier,
    interface: &str,
) -> Result<SchedClassifierLinkId, ProgramError> {
    let deadline = Instant::now() + DETACH_TIMEOUT;
    // Attaches after the programs of others, which may observe frames, but before the filter of a datapath with a switch,
    // which stays until this datapath takes over.
    let others = SchedClassifier::query_tcx(interface, TcAttachType::Ingress);
    let is_of_switch =
        |program: &ProgramInfo| program.name_as_str().is_some_and(|name| name.starts_with("ovs_"));
    // The query fails if one of the programs is released meanwhile.
    let is_alone = others.is_ok_and(|(_, others)| !others.iter().any(is_of_switch));
    loop {
        let order = if is_alone { LinkOrder::last() } else { LinkOrder::first() };
        let options = TcAttachOptions::TcxOrder(order);
        match program.attach_with_options(interface, TcAttachType::Ingress, options) {
            Err(error) if errno(&error) == Some(libc::EEXIST) && Instant::now() < deadline => {
                tokio::time::sleep(DETACH_POLL_INTERVAL).await;
            }
            result => return result,
        }
    }
}

fn replace_link(
    program: &mut SchedClassifier,
    path: &Path,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let link = FdLink::from(PinnedLink::from_pin(path)?);
    let id = program.attach_to_link(SchedClassifierLink::try_from(link)?)?;
    // Closes the descriptor; the pin keeps the link.
    drop(program.take_link(id)?);
    Ok(())
}

fn is_absent(error: &TcError) -> bool {
    let not_found = matches!(error, TcError::IoError(error) if error.kind() == io::ErrorKind::NotFound);
    not_found || matches!(errno(error), Some(libc::ENODEV | libc::ENOENT | libc::EINVAL))
}
