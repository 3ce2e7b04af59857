//! Raw frames on an interface: capture and injection.

use std::{
    ffi::CString,
    io::{self, IoSlice, IoSliceMut},
    mem,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        socket::{AddressFamily, SockFlag, SockProtocol, SockType, setsockopt, socket, sockopt},
        uio::writev,
    },
};

use crate::{
    resource::netns::Netns,
    wait::{patience, wait_until},
};

const LONGEST_FRAME: usize = 65_536 + 18;
/// Receive buffer in bytes; large enough for all frames between two reads.
const BUFFER: libc::c_int = 4 << 20;
const CARRIER_TIMEOUT: Duration = Duration::from_secs(30);

/// A frame on an interface, including its VLAN tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub bytes: Vec<u8>,
    /// Sent by this interface; otherwise received.
    pub outgoing: bool,
    /// False if the sender left the L4 checksum to checksum offload.
    pub checksum_ready: bool,
}

/// A packet socket on one interface.
#[derive(Debug)]
pub struct Tap {
    socket: OwnedFd,
    link: String,
    /// Set once the link transmits.
    transmits: AtomicBool,
}

impl Tap {
    /// Opens a socket on the interface `link` of `namespace`, which must be up. Frames are queued from now on.
    pub fn open(namespace: &Netns, link: &str) -> Result<Tap> {
        namespace.run(|| Tap::here(link))
    }

    fn here(link: &str) -> Result<Tap> {
        let socket =
            socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None::<SockProtocol>)
                .context("open a packet socket")?;
        // The kernel reports a stripped VLAN tag in the auxiliary data.
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
        set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER)?;
        bind(&socket, link).with_context(|| format!("listen on {link}"))?;
        Ok(Tap { socket, link: link.to_owned(), transmits: AtomicBool::new(false) })
    }

    /// Sends a frame. The first call waits until the link transmits.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        self.wait_for_carrier()?;
        let sent = match writev(&self.socket, &[IoSlice::new(frame)]) {
            // The other end of the veth pair is down, and has dropped the frame (`veth_xmit` in drivers/net/veth.c).
            Err(Errno::ENOBUFS) => return Ok(()),
            sent => sent.with_context(|| format!("send {} bytes on {}", frame.len(), self.link))?,
        };
        if sent != frame.len() {
            bail!("sent {sent} of {} bytes on {}", frame.len(), self.link);
        }
        Ok(())
    }

    /// Waits until the link transmits for the first time.
    pub fn wait_for_carrier(&self) -> Result<()> {
        if !self.transmits.load(Relaxed) {
            self.wait_until_transmitting()?;
            self.transmits.store(true, Relaxed);
        }
        Ok(())
    }

    /// Waits until the kernel has activated the link's queue, which it does after it noticed the carrier. Until then it
    /// drops frames without an error (`noop_qdisc` in net/sched/sch_generic.c).
    fn wait_until_transmitting(&self) -> Result<()> {
        wait_until(CARRIER_TIMEOUT, &format!("the carrier of {}", self.link), || {
            let flags = link_flags(&self.socket, &self.link)?;
            Ok((flags & libc::IFF_RUNNING != 0).then_some(()))
        })?;
        // `linkwatch_do_dev` sets the state that IFF_RUNNING shows and then activates the queue, both under the RTNL
        // lock. This request takes the same lock.
        take_link_lock(&self.socket, &self.link)
    }

    /// Returns the next received frame, or none after `deadline`.
    pub fn receive(&self, deadline: Duration) -> Result<Option<Frame>> {
        let start = Instant::now();
        while let Some(frame) = self.next(deadline.saturating_sub(start.elapsed()))? {
            if !frame.outgoing {
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    /// Returns the next received or sent frame.
    pub fn next(&self, deadline: Duration) -> Result<Option<Frame>> {
        let timeout = PollTimeout::try_from(deadline)?;
        let mut wanted = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut wanted, timeout) {
            Ok(0) | Err(Errno::EINTR) => Ok(None),
            Ok(_) => read_frame(&self.socket).with_context(|| format!("read from {}", self.link)).map(Some),
            Err(error) => Err(error).context("poll"),
        }
    }

    /// Waits for a received frame for which `pick` returns a value, as long as [`wait_until`] would. Other frames are skipped; the error has their number.
    pub fn expect<T>(
        &self,
        deadline: Duration,
        what: &str,
        mut pick: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<T> {
        let (start, deadline) = (Instant::now(), deadline * patience());
        let mut others = 0;
        while let Some(frame) = self.receive(deadline.saturating_sub(start.elapsed()))? {
            if let Some(found) = pick(&frame.bytes) {
                return Ok(found);
            }
            others += 1;
        }
        bail!("waited {deadline:?} on {} for {what}; {others} other frames arrived", self.link)
    }

    /// Returns all queued received frames.
    pub fn drain(&self) -> Result<Vec<Frame>> {
        let mut frames = vec![];
        while let Some(frame) = self.receive(Duration::ZERO)? {
            frames.push(frame);
        }
        Ok(frames)
    }
}

/// A packet socket whose frames leave their checksums to the kernel.
#[derive(Debug)]
pub struct OffloadSender(Tap);

impl OffloadSender {
    /// Opens a socket on the interface `link` of `namespace`, which must be up.
    pub fn open(namespace: &Netns, link: &str) -> Result<OffloadSender> {
        let tap = Tap::open(namespace, link)?;
        set_option(&tap.socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        Ok(OffloadSender(tap))
    }

    /// Sends a frame into which the kernel is to write, `offset` bytes behind `start`, the checksum of what follows `start`.
    pub fn send(&self, frame: &[u8], start: u16, offset: u16) -> Result<()> {
        // `struct virtio_net_hdr`: flags, type and sizes of segments, and the checksum.
        const NEEDS_CSUM: u8 = 1;
        let numbers = [0, 0, start, offset].map(u16::to_ne_bytes);
        self.0.send(&[&[NEEDS_CSUM, 0][..], numbers.as_flattened(), frame].concat())
    }
}

/// Lets a socket hold what arrives while its reader gets no processor.
pub fn enlarge_buffer(socket: &impl AsFd) -> Result<()> {
    let size = usize::try_from(BUFFER)?;
    setsockopt(socket, sockopt::RcvBufForce, &size).context("enlarge the buffer of a socket")
}

fn set_option(socket: &OwnedFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> Result<()> {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer is to a live c_int and `size` is its size.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), size) };
    Errno::result(result).with_context(|| format!("set option {name} of a packet socket"))?;
    Ok(())
}

fn request(link: &str) -> Result<libc::ifreq> {
    // SAFETY: ifreq is plain numbers and pointers, for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if link.len() >= request.ifr_name.len() {
        bail!("the name {link} is longer than that of an interface");
    }
    for (to, from) in request.ifr_name.iter_mut().zip(link.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    Ok(request)
}

fn link_flags(socket: &OwnedFd, link: &str) -> Result<libc::c_int> {
    let mut request = request(link)?;
    // SAFETY: the pointer is to a live ifreq, which the kernel fills.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) };
    Errno::result(result).with_context(|| format!("read the flags of {link}"))?;
    // SAFETY: SIOCGIFFLAGS fills this member.
    Ok(libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags }))
}

/// Asks for the state of the link, for which the kernel takes the lock of its interfaces.
fn take_link_lock(socket: &OwnedFd, link: &str) -> Result<()> {
    // `ETHTOOL_GLINK` and room for its answer (`struct ethtool_value`, linux/ethtool.h).
    let mut value: [u32; 2] = [0xa, 0];
    let mut request = request(link)?;
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the pointer is to a live ifreq, whose data points to a live `value` of the size that the kernel fills.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    match Errno::result(result) {
        Ok(_) | Err(Errno::EOPNOTSUPP) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("read the state of {link}")),
    }
}

fn bind(socket: &OwnedFd, link: &str) -> Result<()> {
    let index = nix::net::if_::if_nametoindex(CString::new(link)?.as_c_str()).context("find the link")?;
    // SAFETY: sockaddr_ll is plain numbers, for which all zeros is a value.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET)?;
    address.sll_protocol = u16::try_from(libc::ETH_P_ALL)?.to_be();
    address.sll_ifindex = i32::try_from(index)?;
    let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the pointer is to a live sockaddr_ll and `size` is its size.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) };
    Errno::result(result)?;
    Ok(())
}

/// Buffer for one control message with a `tpacket_auxdata`, aligned as `cmsghdr` must be.
#[repr(C, align(8))]
struct Control([u8; 64]);

fn read_frame(socket: &OwnedFd) -> io::Result<Frame> {
    let mut bytes = vec![0; LONGEST_FRAME];
    let mut control = Control([0; 64]);
    // SAFETY: sockaddr_ll and msghdr are plain numbers and pointers, for which all zeros is a value.
    let (mut from, mut message): (libc::sockaddr_ll, libc::msghdr) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    let mut slices = [IoSliceMut::new(&mut bytes)];
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    message.msg_iov = slices.as_mut_ptr().cast();
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    // SAFETY: every pointer in `message` is to a live local of the length given beside it; IoSliceMut has the layout
    // of iovec.
    let length = Errno::result(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) })?;
    bytes.truncate(usize::try_from(length).map_err(io::Error::other)?);
    // Those that are kept would have the room of the longest one each.
    bytes.shrink_to_fit();
    let mut frame =
        Frame { bytes, outgoing: from.sll_pkttype == libc::PACKET_OUTGOING, checksum_ready: true };
    if let Some(auxiliary) = auxiliary(&message) {
        frame.checksum_ready = auxiliary.tp_status & libc::TP_STATUS_CSUMNOTREADY == 0;
        if auxiliary.tp_status & libc::TP_STATUS_VLAN_VALID != 0 {
            restore_tag(&mut frame.bytes, auxiliary.tp_vlan_tpid, auxiliary.tp_vlan_tci);
        }
    }
    Ok(frame)
}

fn auxiliary(message: &libc::msghdr) -> Option<libc::tpacket_auxdata> {
    // SAFETY: recvmsg filled msg_control and msg_controllen, and the buffer is still alive.
    let header = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
        return None;
    }
    // SAFETY: for this type the kernel wrote a whole tpacket_auxdata after the header; it may be unaligned.
    Some(unsafe { libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>().read_unaligned() })
}

/// Inserts the VLAN tag, which the kernel strips, after the MAC addresses.
fn restore_tag(bytes: &mut Vec<u8>, protocol: u16, tag: u16) {
    const ADDRESSES: usize = 12;
    if bytes.len() >= ADDRESSES {
        let header = [protocol.to_be_bytes(), tag.to_be_bytes()].concat();
        bytes.splice(ADDRESSES..ADDRESSES, header);
    }
}
