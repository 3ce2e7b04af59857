//! Throughput between two namespaces, in bits of frames per second.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};

use crate::resource::netns::Netns;

/// Header bytes of a frame without frame check sequence: Ethernet, IPv4, and UDP or TCP with timestamps.
const UDP_HEADERS: usize = 14 + 20 + 8;
const TCP_HEADERS: usize = 14 + 20 + 20 + 12;
const IO_TIMEOUT: Duration = Duration::from_secs(10);
/// Rate in bits per second from which a sender passes `BATCH` datagrams per system call (UDP GSO).
const FAST: u64 = 500_000_000;
const BATCH: usize = 16;
/// The send buffer holds the datagrams of this fraction of a second.
const PARTS: u64 = 20;
/// Minimum sleep of the datagram sender.
const STEP: Duration = Duration::from_millis(1);
const CHUNK: usize = 64 << 10;

/// Traffic to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// One connection at full speed.
    Tcp,
    /// Datagrams that fill frames of an MTU, at a constant rate.
    Udp {
        /// Bits of frames per second.
        offered: u64,
        /// MTU of the interfaces, in bytes.
        mtu: usize,
    },
}

/// Measures the rate that `eth0` of `to`, which has the IPv4 `address`, receives, in bits of frames per second. Starts
/// `before` after the sender and takes `measured`. Traffic of other senders is included.
pub fn throughput(
    from: &Netns,
    to: &Netns,
    address: IpAddr,
    load: Load,
    before: Duration,
    measured: Duration,
) -> Result<f64> {
    let over = AtomicBool::new(false);
    let count = || {
        let result = to.run(|| {
            thread::sleep(before);
            let start = Count::read("eth0")?;
            thread::sleep(measured);
            Ok((start, Count::read("eth0")?))
        });
        over.store(true, Ordering::Relaxed);
        result
    };
    let ended = || anyhow::anyhow!("a thread panicked");
    match load {
        Load::Tcp => {
            let listener = to.run(|| Ok(TcpListener::bind((address, 0))?))?;
            let server = listener.local_addr()?;
            thread::scope(|scope| {
                let sending = scope.spawn(|| from.run(|| stream(server, &over)));
                scope.spawn(|| discard(&listener));
                let counts = count();
                let mss = sending.join().map_err(|_| ended())??;
                let (start, end) = counts?;
                end.since(start, mss, TCP_HEADERS)
            })
        }
        Load::Udp { offered, mtu } => {
            let payload = mtu + 14 - UDP_HEADERS;
            // The datagrams are not read: the interface has counted them.
            let socket = to.run(|| Ok(UdpSocket::bind((address, 0))?))?;
            let server = socket.local_addr()?;
            thread::scope(|scope| {
                let sending = scope.spawn(|| from.run(|| datagrams(server, offered, payload, &over)));
                let counts = count();
                sending.join().map_err(|_| ended())??;
                let (start, end) = counts?;
                end.since(start, payload, UDP_HEADERS)
            })
        }
    }
}

/// Receive counters of an interface in the namespace of the calling thread.
#[derive(Clone, Copy)]
struct Count {
    at: Instant,
    bytes: u64,
    packets: u64,
}

impl Count {
    fn read(link: &str) -> Result<Count> {
        loop {
            let before = Instant::now();
            let text = fs::read_to_string("/proc/thread-self/net/dev")?;
            let at = Instant::now();
            // Retry if the thread was preempted: the time must match the counters.
            if at - before > STEP {
                continue;
            }
            let line = text.lines().find_map(|line| line.trim_start().strip_prefix(link)?.strip_prefix(':'));
            let line = line.with_context(|| format!("no interface {link} in {text}"))?;
            let mut numbers = line.split_whitespace().map(str::parse);
            let (bytes, packets) =
                (numbers.next().context("no bytes")??, numbers.next().context("no packets")??);
            return Ok(Count { at, bytes, packets });
        }
    }

    /// Rate in bits of frames per second, for frames of `payload` and `headers` bytes. Computed from bytes, because the
    /// kernel counts the frames of a GSO packet as one.
    fn since(self, start: Count, payload: usize, headers: usize) -> Result<f64> {
        let (bytes, packets) = (self.bytes - start.bytes, self.packets - start.packets);
        let data =
            bytes.checked_sub(packets * headers as u64).context("frames smaller than their headers")? as f64;
        ensure!(data > 0.0, "no data received");
        let frames = data * (payload + headers) as f64 / payload as f64;
        Ok(frames * 8.0 / (self.at - start.at).as_secs_f64())
    }
}

fn discard(listener: &TcpListener) -> Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    let mut buffer = vec![0; CHUNK];
    while stream.read(&mut buffer)? != 0 {}
    Ok(())
}

/// Sends until `over` is set; returns the payload of a full frame in bytes.
fn stream(server: SocketAddr, over: &AtomicBool) -> Result<usize> {
    let mut stream = TcpStream::connect_timeout(&server, IO_TIMEOUT).context("connect")?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let chunk = vec![0; CHUNK];
    while !over.load(Ordering::Relaxed) {
        stream.write_all(&chunk).context("send")?;
    }
    Ok(getsockopt(&stream, sockopt::TcpMaxSeg)?.try_into()?)
}

/// Sends at the offered rate until `over` is set. Datagrams that do not fit the send buffer are not sent later.
fn datagrams(server: SocketAddr, offered: u64, payload: usize, over: &AtomicBool) -> Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.connect(server)?;
    let batch = if offered < FAST { 1 } else { BATCH };
    if batch > 1 {
        setsockopt(&socket, sockopt::UdpGsoSegment, &payload.try_into()?)?;
        // The sender does not run all the time: with a smaller buffer the queue of the interface would run empty.
        setsockopt(&socket, sockopt::SndBufForce, &usize::try_from(offered / 8 / PARTS)?)
            .context("set the send buffer size")?;
    }
    let datagrams = vec![0; batch * payload];
    let bits = batch * (payload + UDP_HEADERS) * 8;
    let cost = Duration::from_secs_f64(bits as f64 / offered as f64);
    let mut due = Instant::now();
    while !over.load(Ordering::Relaxed) {
        let now = Instant::now();
        if now < due {
            thread::sleep(STEP.max(due - now).min(IO_TIMEOUT));
            continue;
        }
        // A sender that was delayed catches up on at most 100 ms.
        due = due.max(now.checked_sub(100 * STEP).unwrap_or(now)) + cost;
        socket.send(&datagrams).context("send datagrams")?;
    }
    Ok(())
}
