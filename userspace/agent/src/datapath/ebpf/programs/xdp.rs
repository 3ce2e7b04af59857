//! The program that sees the uplink's frames first: in the driver, or, where the driver has no place for programs, between
//! it and the kernel's stack.

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
            programs::tc::{ASK_AGAIN_AFTER, LET_GO_WITHIN},
        },
    },
    error::one_line,
};

/// Where the operator wants XDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum XdpWish {
    /// In the driver where it can, else in front of the stack.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// In front of the stack.
    Generic,
    /// Nowhere: the program on the ingress does it all.
    Off,
}

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Native,
    Generic,
}

impl Place {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Place::Native => "native",
            Place::Generic => "generic",
        }
    }

    fn mode(self) -> XdpMode {
        match self {
            Place::Native => XdpMode::Driver,
            Place::Generic => XdpMode::Skb,
        }
    }
}

/// What came of the wish.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// There is no uplink, or XDP is off.
    #[default]
    Nowhere,
    /// It runs.
    At(Place),
    /// It was to run wherever it could, and can nowhere; why not.
    Refused(String),
}

impl Outcome {
    /// For people and scripts.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Outcome::Nowhere | Outcome::Refused(_) => "off",
            Outcome::At(place) => place.as_str(),
        }
    }
}

/// The names of its pins begin so; the interface's index follows.
const PREFIX: &str = "xdp-";

/// Puts the program where it is wanted.
#[derive(Clone, Debug)]
pub(crate) struct XdpHook {
    wish: XdpWish,
    pins: Pins,
    writes: Writes,
}

impl XdpHook {
    pub(crate) fn new(wish: XdpWish, pins: Pins, writes: Writes) -> Self {
        XdpHook { wish, pins, writes }
    }

    pub(crate) fn wish(&self) -> XdpWish {
        self.wish
    }

    fn places(&self, interface: &str) -> &'static [Place] {
        match self.wish {
            XdpWish::Off => &[],
            XdpWish::Native => &[Place::Native],
            XdpWish::Generic => &[Place::Generic],
            // The driver of veth pairs has a place for programs, but what one sends back stays lying there unless there is one
            // at the other end, too: nobody can know that.
            XdpWish::Auto if device::is_veth(interface) => &[Place::Generic],
            XdpWish::Auto => &[Place::Native, Place::Generic],
        }
    }

    /// Sees to it that this very program runs on the interface where it is wanted, and nowhere else. Where that of another
    /// layout of the maps runs, it goes on until [`take_over`](XdpHook::take_over): an interface has one place for them.
    pub(crate) async fn ensure(
        &self,
        program: &mut Xdp,
        netlink: &Netlink,
        interface: &str,
        ifindex: u32,
    ) -> Result<Outcome, Error> {
        let places = self.places(interface);
        let pin = format!("{PREFIX}{ifindex}");
        self.remove(|name| name != pin || places.is_empty())?;
        if places.is_empty() {
            return Ok(Outcome::Nowhere);
        }
        let what = || format!("attach {} to {interface} as XDP (see --xdp)", contiv_abi::maps::XDP);
        let id = program.info().map_err(|error| failed(what(), error))?.id();
        let path = self.pins.link(&pin);
        if let Some((place, running)) = netlink.link(interface).await?.as_ref().and_then(running) {
            let is_ours = path.exists() && running == id && places.contains(&place);
            let is_older = !path.exists() && self.link_of_another_layout(&pin).is_some();
            if is_ours || is_older {
                return Ok(Outcome::At(place));
            }
        }
        // A link that is elsewhere, or not on the interface any more.
        let was_there = self.pins.unpin(&path)?;
        let mut last = None;
        for place in places {
            self.writes.count();
            match attach(program, ifindex, *place, was_there).await.and_then(|link| Ok(link.pin(&path)?)) {
                // Our handle goes; the pin keeps the link.
                Ok(_pinned) => return Ok(Outcome::At(*place)),
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) if self.wish == XdpWish::Auto => Ok(Outcome::Refused(one_line(&*error))),
            Some(error) => Err(failed(what(), error)),
            None => Ok(Outcome::Nowhere),
        }
    }

    /// Puts this program into the link that another layout of the maps has on the interface, and makes the link ours: no
    /// frame finds the interface without a program. True if there was one.
    pub(crate) fn take_over(&self, program: &mut Xdp, ifindex: u32) -> Result<bool, Error> {
        let pin = format!("{PREFIX}{ifindex}");
        let Some(theirs) = self.link_of_another_layout(&pin) else { return Ok(false) };
        let ours = self.pins.link(&pin);
        // Where XDP is off, or where a link of ours is, theirs goes with their other pins.
        if self.wish == XdpWish::Off || ours.exists() {
            return Ok(false);
        }
        let what = || format!("take over the link {}", theirs.display());
        self.writes.count();
        match replace_link(program, &theirs) {
            Ok(()) => fs::rename(&theirs, &ours).map_err(|error| failed(what(), error))?,
            // It is on no interface any more.
            Err(error) if errno(&*error) == Some(libc::ENOLINK) => drop(self.pins.unpin(&theirs)?),
            Err(error) => return Err(failed(what(), error)),
        }
        Ok(true)
    }

    fn link_of_another_layout(&self, pin: &str) -> Option<PathBuf> {
        self.pins.of_other_layouts().iter().map(|other| other.link(pin)).find(|path| path.exists())
    }

    /// Takes the program off every interface.
    pub(crate) fn remove_all(&self) -> Result<(), Error> {
        self.remove(|_| true)
    }

    fn remove(&self, is_stray: impl Fn(&str) -> bool) -> Result<(), Error> {
        for name in self.pinned()?.into_iter().filter(|name| is_stray(name)) {
            if self.pins.unpin(&self.pins.link(&name))? {
                self.writes.count();
            }
        }
        Ok(())
    }

    fn pinned(&self) -> Result<Vec<String>, Error> {
        Ok(self.pins.link_names()?.into_iter().filter(|name| name.starts_with(PREFIX)).collect())
    }

    /// Puts a new version of the program in the place of the old one without a gap.
    pub(crate) fn replace(&self, program: &mut Xdp) -> Result<(), Error> {
        for name in self.pinned()? {
            let path = self.pins.link(&name);
            self.writes.count();
            if let Err(error) = replace_link(program, &path) {
                if errno(&*error) != Some(libc::ENOLINK) {
                    return Err(failed(format!("replace {} at {name}", contiv_abi::maps::XDP), error));
                }
                // Its interface has gone.
                self.pins.unpin(&path)?;
            }
        }
        Ok(())
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A link whose pin is gone keeps its place until the kernel has let go of it.
async fn attach(program: &mut Xdp, ifindex: u32, place: Place, was_there: bool) -> Result<FdLink, Failure> {
    let deadline = Instant::now() + LET_GO_WITHIN;
    let id = loop {
        match program.attach_to_if_index(ifindex, place.mode()) {
            Err(error) if was_there && is_taken(&error) && Instant::now() < deadline => {
                tokio::time::sleep(ASK_AGAIN_AFTER).await;
            }
            result => break result?,
        }
    };
    Ok(FdLink::try_from(program.take_link(id)?)?)
}

fn is_taken(error: &ProgramError) -> bool {
    matches!(errno(error), Some(libc::EBUSY | libc::EEXIST))
}

fn replace_link(program: &mut Xdp, path: &Path) -> Result<(), Failure> {
    let link = FdLink::from(PinnedLink::from_pin(path)?);
    let id = program.attach_to_link(XdpLink::try_from(link)?)?;
    // Only our handle of it goes; the pin keeps the link.
    drop(program.take_link(id)?);
    Ok(())
}

/// Which program runs on an interface, and where.
fn running(link: &LinkMessage) -> Option<(Place, u32)> {
    let about = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Xdp(about) => Some(about),
        _ => None,
    })?;
    let place = about.iter().find_map(|part| match part {
        LinkXdp::Attached(XdpAttached::Driver) => Some(Place::Native),
        LinkXdp::Attached(XdpAttached::SocketBuffer) => Some(Place::Generic),
        _ => None,
    })?;
    let id = about.iter().find_map(|part| match part {
        LinkXdp::ProgId(id) => Some(*id),
        _ => None,
    })?;
    Some((place, id))
}
