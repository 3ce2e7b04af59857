//! How much gets from one namespace to another, as bits of frames in a second.

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

use crate::Netns;

/// Bytes of a frame that are not payload, without its check sequence: Ethernet and IPv4, and UDP or TCP with its
/// timestamps.
const UDP_HEADERS: usize = 14 + 20 + 8;
const TCP_HEADERS: usize = 14 + 20 + 20 + 12;
const PATIENCE: Duration = Duration::from_secs(10);
/// From this many bits in a second on, a sender hands so many datagrams to its kernel at a time.
const FAST: u64 = 500_000_000;
const AT_ONCE: usize = 16;
/// And has room for what it offers in such a part of a second.
const PARTS: u64 = 20;
/// How long the sender of datagrams sleeps between two looks at what is due.
const STEP: Duration = Duration::from_millis(1);
const CHUNK: usize = 64 << 10;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// One connection, as much as it can.
    Tcp,
    /// Datagrams that fill frames of an MTU, so many bits of frames in a second.
    Udp {
        /// Bits in a second.
        offered: u64,
        /// Of the interfaces.
        mtu: usize,
    },
}

/// What arrives at an IPv4 address, that of `eth0` of `to`, in bits of frames in a second: during `measured`, after `before` has
/// passed since the sender began. Whoever else sends to it is counted, too.
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
            // Nobody reads what comes: it has been counted before.
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

/// What an interface of the calling thread's namespace has received.
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
            // Else the time is not that of the numbers.
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

    /// Bits of frames in a second, each with `payload` bytes and `headers`; the kernel counts several frames of a connection
    /// as one when it has not cut them up.
    fn since(self, start: Count, payload: usize, headers: usize) -> Result<f64> {
        let (bytes, packets) = (self.bytes - start.bytes, self.packets - start.packets);
        let data = bytes.checked_sub(packets * headers as u64).context("other frames came")? as f64;
        ensure!(data > 0.0, "nothing came");
        let frames = data * (payload + headers) as f64 / payload as f64;
        Ok(frames * 8.0 / (self.at - start.at).as_secs_f64())
    }
}

fn discard(listener: &TcpListener) -> Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut buffer = vec![0; CHUNK];
    while stream.read(&mut buffer)? != 0 {}
    Ok(())
}

/// Sends until it is over; the payload of a full frame.
fn stream(server: SocketAddr, over: &AtomicBool) -> Result<usize> {
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE).context("connect")?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let chunk = vec![0; CHUNK];
    while !over.load(Ordering::Relaxed) {
        stream.write_all(&chunk).context("send")?;
    }
    Ok(getsockopt(&stream, sockopt::TcpMaxSeg)?.try_into()?)
}

/// Sends what is due until it is over. What does not find room is not sent later.
fn datagrams(server: SocketAddr, offered: u64, payload: usize, over: &AtomicBool) -> Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.connect(server)?;
    let at_once = if offered < FAST { 1 } else { AT_ONCE };
    if at_once > 1 {
        setsockopt(&socket, sockopt::UdpGsoSegment, &payload.try_into()?)?;
        // What waits in a queue is the sender's, which is not on its processor all the time: with less, the queue would run empty.
        setsockopt(&socket, sockopt::SndBufForce, &usize::try_from(offered / 8 / PARTS)?)
            .context("make room for datagrams that wait")?;
    }
    let datagrams = vec![0; at_once * payload];
    let bits = at_once * (payload + UDP_HEADERS) * 8;
    let cost = Duration::from_secs_f64(bits as f64 / offered as f64);
    let mut due = Instant::now();
    while !over.load(Ordering::Relaxed) {
        let now = Instant::now();
        if now < due {
            thread::sleep(STEP.max(due - now).min(PATIENCE));
            continue;
        }
        // A sender that was held up does not make up for all of it.
        due = due.max(now.checked_sub(100 * STEP).unwrap_or(now)) + cost;
        socket.send(&datagrams).context("send datagrams")?;
    }
    Ok(())
}
