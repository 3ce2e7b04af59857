//! Programs on the ingress of interfaces: by TCX links where the kernel has them, else by clsact.

use std::{
    io,
    path::Path,
    time::{Duration, Instant},
};

use aya::{
    programs::{
        LinkOrder, ProgramError, SchedClassifier, TcAttachType,
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

/// How programs are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attachment {
    /// TCX from Linux 6.6 on, clsact before.
    #[default]
    Auto,
    /// Links that are pinned and replaced in one step.
    Tcx,
    /// Filters of the clsact qdisc, which stay by themselves.
    Clsact,
}

impl Attachment {
    pub(crate) fn resolve(self) -> Attachment {
        match self {
            Attachment::Auto => {
                // A kernel that will not say what it is gets what every kernel has.
                let tcx = KernelVersion::current().is_ok_and(|kernel| kernel >= KernelVersion::new(6, 6, 0));
                if tcx { Attachment::Tcx } else { Attachment::Clsact }
            }
            other => other,
        }
    }
}

/// Which program an interface gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Pod,
    Queue,
    Overlay,
    Uplink,
}

impl Role {
    pub(crate) const ALL: [Role; 4] = [Role::Pod, Role::Queue, Role::Overlay, Role::Uplink];

    pub(crate) fn program(self) -> &'static str {
        match self {
            Role::Pod => maps::FROM_POD,
            Role::Queue => maps::FROM_QUEUE,
            Role::Overlay => maps::FROM_OVERLAY,
            Role::Uplink => maps::FROM_UPLINK,
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Role::Pod => "pod-",
            Role::Queue => "queue-",
            Role::Overlay => "overlay-",
            Role::Uplink => "uplink-",
        }
    }

    /// The name of the pin. By index: a dot, which bpffs does not take, may be in an interface's name.
    pub(crate) fn pin(self, ifindex: u32) -> String {
        format!("{}{ifindex}", self.prefix())
    }

    pub(crate) fn of_pin(pin: &str) -> Option<(Role, u32)> {
        Role::ALL.iter().find_map(|role| Some((*role, pin.strip_prefix(role.prefix())?.parse().ok()?)))
    }
}

/// How long the kernel may take to let go of a link.
pub(crate) const LET_GO_WITHIN: Duration = Duration::from_secs(2);
pub(crate) const ASK_AGAIN_AFTER: Duration = Duration::from_millis(2);

/// Attaches and detaches, one way or the other.
#[derive(Clone, Debug)]
pub(crate) struct Hooks {
    attachment: Attachment,
    pins: Pins,
    writes: Writes,
}

impl Hooks {
    pub(crate) fn new(attachment: Attachment, pins: Pins, writes: Writes) -> Self {
        Hooks { attachment: attachment.resolve(), pins, writes }
    }

    pub(crate) fn attachment(&self) -> Attachment {
        self.attachment
    }

    /// Whether this very program runs on the interface.
    pub(crate) async fn is_attached(
        &self,
        program: &SchedClassifier,
        role: Role,
        interface: &str,
        ifindex: u32,
        netlink: &Netlink,
    ) -> Result<bool, Error> {
        let what = || format!("ask for the programs on {interface}");
        let id = program.info().map_err(|error| failed(what(), error))?.id();
        match self.attachment {
            Attachment::Tcx | Attachment::Auto => {
                // A link without a pin is one that the kernel is about to take down.
                if !self.pins.link(&role.pin(ifindex)).exists() {
                    return Ok(false);
                }
                let asked = SchedClassifier::query_tcx(interface, TcAttachType::Ingress);
                let programs = match asked {
                    Ok((_, programs)) => programs,
                    // Gone meanwhile.
                    Err(error) if errno(&error) == Some(libc::ENODEV) => return Ok(false),
                    Err(error) => return Err(failed(what(), error)),
                };
                Ok(programs.iter().any(|program| program.id() == id))
            }
            Attachment::Clsact => Ok(clsact::on(netlink, ifindex).await?.iter().any(|is| is.program == id)),
        }
    }

    /// Puts the program on the interface, in place of an older one of ours.
    pub(crate) async fn attach(
        &self,
        program: &mut SchedClassifier,
        role: Role,
        interface: &str,
        ifindex: u32,
    ) -> Result<(), Error> {
        let what = || format!("attach {} to {interface}", role.program());
        self.writes.count();
        match self.attachment {
            Attachment::Tcx | Attachment::Auto => {
                let path = self.pins.link(&role.pin(ifindex));
                // A link that is not on the interface any more is of no use.
                self.pins.unpin(&path)?;
                let id = attach_tcx(program, interface).await.map_err(|error| failed(what(), error))?;
                let link = program.take_link(id).map_err(|error| failed(what(), error))?;
                let link = FdLink::try_from(link).map_err(|error| failed(what(), error))?;
                link.pin(&path).map_err(|error| failed(what(), error))?;
                Ok(())
            }
            Attachment::Clsact => {
                let there = clsact::on(&Netlink::open()?, ifindex).await?;
                clsact::attach(program, interface, &there).map_err(|error| failed(what(), error))
            }
        }
    }

    /// Takes the program off the interface, which may be gone already.
    pub(crate) fn detach(&self, role: Role, interface: Option<&str>, ifindex: u32) -> Result<(), Error> {
        match (self.attachment, interface) {
            (Attachment::Tcx | Attachment::Auto, _) => {
                if self.pins.unpin(&self.pins.link(&role.pin(ifindex)))? {
                    self.writes.count();
                }
                Ok(())
            }
            (Attachment::Clsact, None) => Ok(()),
            (Attachment::Clsact, Some(interface)) => {
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

    /// Takes the filters of other layouts of the maps off every interface.
    pub(crate) async fn retire(&self, netlink: &Netlink) -> Result<(), Error> {
        if self.attachment != Attachment::Clsact {
            return Ok(());
        }
        for interface in netlink.names().await? {
            let Some(ifindex) = device::ifindex(&interface) else { continue };
            for old in
                clsact::on(netlink, ifindex).await?.iter().filter(|filter| filter.is_of_another_layout())
            {
                self.writes.count();
                old.detach(&interface)
                    .map_err(|error| failed(format!("take an older program off {interface}"), error))?;
            }
        }
        Ok(())
    }

    /// The pinned links, by role and interface index.
    pub(crate) fn pinned(&self) -> Result<Vec<(Role, u32)>, Error> {
        Ok(self.pins.link_names()?.iter().filter_map(|name| Role::of_pin(name)).collect())
    }

    /// Puts a new version of a program in the place of the old one, on every interface, without a gap.
    pub(crate) fn replace(&self, role: Role, program: &mut SchedClassifier) -> Result<(), Error> {
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
                // Its interface has gone.
                self.pins.unpin(&path)?;
            }
        }
        Ok(())
    }
}

/// A link whose pin is gone keeps its place on the interface until the kernel has let go of it, after an
/// RCU grace period; until then the same program is refused there.
async fn attach_tcx(
    program: &mut SchedClassifier,
    interface: &str,
) -> Result<SchedClassifierLinkId, ProgramError> {
    let deadline = Instant::now() + LET_GO_WITHIN;
    loop {
        let options = TcAttachOptions::TcxOrder(LinkOrder::last());
        match program.attach_with_options(interface, TcAttachType::Ingress, options) {
            Err(error) if errno(&error) == Some(libc::EEXIST) && Instant::now() < deadline => {
                tokio::time::sleep(ASK_AGAIN_AFTER).await;
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
    // Only our handle of it goes; the pin keeps the link.
    drop(program.take_link(id)?);
    Ok(())
}

fn is_absent(error: &TcError) -> bool {
    let not_found = matches!(error, TcError::IoError(error) if error.kind() == io::ErrorKind::NotFound);
    not_found || matches!(errno(error), Some(libc::ENODEV | libc::ENOENT | libc::EINVAL))
}
