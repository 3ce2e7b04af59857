//! Frames whose headers a pod can still change: they lie in pages of a process.

use std::{
    mem::size_of_val,
    net::UdpSocket,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    path::Path,
    ptr,
    sync::atomic::{AtomicBool, AtomicU16, Ordering::Relaxed},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use aya::programs::{SchedClassifier, TcAttachType, tc};
use contiv_model::policy::{Action, Direction, PortRange, Rule, UDP};
use netplugin::datapath::{Local, Object};
use nix::errno::Errno;
use testkit::{capture::Tap, needs};

use crate::{
    node::{Endpoint, Node, network, vxlan},
    policy::{group, number, rule},
};

const ALLOWED: u16 = 0x1111;
const DENIED: u16 = 0x2222;
const PACKETS: usize = 5000;
/// Length of the Ethernet header, and of the longest header of IPv4, behind which the programs look for the ports.
const TRANSPORT: usize = 14 + 60;
/// Length of the headers that the kernel makes.
const SENT_HEADERS: usize = 14 + 20 + 8;

/// An instruction of BPF: code, registers, offset and constant.
type Instruction = (u8, u8, i16, i32);

/// Makes the header of IPv4 as long as it can be: it ends in the data of the datagram then.
const MOVE_HEADERS: [Instruction; 9] = [
    (0x72, 10, -8, 0x4f),
    // bpf_skb_store_bytes(context, 14, stack, 1, 0)
    (0xb7, 2, 0, 14),
    (0xbf, 0xa3, 0, 0),
    (0x07, 3, 0, -8),
    (0xb7, 4, 0, 1),
    (0xb7, 5, 0, 0),
    (0x85, 0, 0, 9),
    // TC_ACT_UNSPEC
    (0xb7, 0, 0, -1),
    (0x95, 0, 0, 0),
];

fn bpf<T>(command: libc::c_long, attributes: &T) -> Result<i32> {
    // SAFETY: the attributes are alive, and this is their size.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_ref(attributes), size_of_val(attributes)) };
    Ok(i32::try_from(Errno::result(result)?)?)
}

/// Loads the program, and pins it.
fn load(pin: &Path) -> Result<()> {
    const PROGRAM_LOAD: libc::c_long = 5;
    const OBJECT_PIN: libc::c_long = 6;
    const SCHED_CLS: u64 = 3;
    let code: Vec<u8> = MOVE_HEADERS
        .iter()
        .flat_map(|(code, registers, offset, constant)| {
            [&[*code, *registers][..], &offset.to_ne_bytes(), &constant.to_ne_bytes()].concat()
        })
        .collect();
    let kind = SCHED_CLS | (MOVE_HEADERS.len() as u64) << 32;
    // Type and number of instructions, instructions, licence, and no log.
    let attributes = [kind, code.as_ptr() as u64, c"GPL".as_ptr() as u64, 0, 0, 0];
    let program = bpf(PROGRAM_LOAD, &attributes).context("load the program")?;
    // SAFETY: a descriptor that the kernel has just returned.
    let program = unsafe { OwnedFd::from_raw_fd(program) };
    let path = std::ffi::CString::new(pin.as_os_str().as_encoded_bytes())?;
    let attributes = [path.as_ptr() as u64, u64::from(program.as_raw_fd().cast_unsigned())];
    bpf(OBJECT_PIN, &attributes).context("pin the program")?;
    Ok(())
}

fn set_option(socket: &UdpSocket, name: libc::c_int) -> Result<()> {
    let value: libc::c_int = 1;
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the pointer is to a live number of this size.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, (&raw const value).cast(), len)
    };
    Errno::result(result).with_context(|| format!("set the option {name}"))?;
    Ok(())
}

/// Reads what the kernel tells of datagrams that it needs no more.
fn forget_sent(socket: &UdpSocket) {
    let mut control = [0_u64; 32];
    loop {
        // SAFETY: a message is plain numbers and pointers, for which all zeros is a value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: the message refers to a live buffer.
        let result = unsafe {
            libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT)
        };
        if result < 0 {
            return;
        }
    }
}

/// The pod moves the ports of its datagrams into a page that it writes to all the time.
#[test]
fn ports_do_not_change_after_the_rules() -> Result<()> {
    needs!(root());
    let mut node = Node::new("user-pages")?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1);
    let sender = node.pod(&n1, Endpoint(1))?;
    let mut receiver = node.pod(&n1, Endpoint(2))?;
    receiver.local = Local { identity: Some(number(2)), ..receiver.local };
    let denied = Rule {
        protocol: Some(UDP),
        ports: PortRange::new(DENIED, DENIED),
        ..rule("deny", Direction::In, Action::Deny, 1)
    };
    node.want(Object::Group(group(2, vec![denied]))).want(Object::Local(receiver.local.clone()));
    node.converge()?;
    sender.ns.ip("neigh replace 10.1.1.2 lladdr 02:02:0a:01:01:02 dev eth0 nud permanent")?;
    let pin = node.options.bpf_root.join("moves-headers");
    load(&pin)?;
    let mut program = SchedClassifier::from_pin(&pin)?;
    std::fs::remove_file(&pin)?;
    let program = sender.ns.run(|| {
        // Needed before Linux 6.6.
        let _exists = tc::qdisc_add_clsact("eth0");
        program.attach("eth0", TcAttachType::Egress)?;
        Ok(program)
    })?;

    let tap = Tap::open(&receiver.ns, "eth0")?;
    let socket = sender.ns.run(|| Ok(UdpSocket::bind((sender.ip(), 4000))?))?;
    socket.connect((receiver.ip(), 4000))?;
    set_option(&socket, libc::SO_ZEROCOPY)?;
    set_option(&socket, libc::SO_NO_CHECK)?;
    // Options that say nothing, and from there on the ports.
    let words: Vec<AtomicU16> = (0..200).map(|_| AtomicU16::new(0x0101)).collect();
    let port = &words[(TRANSPORT + 2 - SENT_HEADERS) / 2];
    let (is_done, [allowed, denied]) = (AtomicBool::new(false), [ALLOWED, DENIED].map(u16::to_be));
    port.store(allowed, Relaxed);
    let mut arrived = [0; 2];
    thread::scope(|scope| -> Result<()> {
        scope.spawn(|| {
            while !is_done.load(Relaxed) {
                port.store(denied, Relaxed);
                port.store(allowed, Relaxed);
            }
        });
        let outcome = send(&socket, &words, &tap, &mut arrived);
        is_done.store(true, Relaxed);
        outcome
    })?;
    drop(program);
    let [allowed, denied] = arrived;
    ensure!(allowed > PACKETS / 100, "only {allowed} of {PACKETS} arrived");
    ensure!(denied == 0, "{denied} datagrams to a denied port arrived, {allowed} to an allowed one");
    Ok(())
}

/// Sends the words again and again, and counts what arrives with the allowed port and with the denied one.
fn send(socket: &UdpSocket, words: &[AtomicU16], tap: &Tap, arrived: &mut [usize; 2]) -> Result<()> {
    for _ in 0..PACKETS {
        // SAFETY: a live buffer of this size.
        let sent = unsafe {
            libc::send(socket.as_raw_fd(), words.as_ptr().cast(), size_of_val(words), libc::MSG_ZEROCOPY)
        };
        Errno::result(sent).context("send a datagram")?;
        forget_sent(socket);
        while let Some(frame) = tap.receive(Duration::ZERO)? {
            let port = frame.bytes.get(TRANSPORT + 2..TRANSPORT + 4).filter(|_| frame.bytes[14] == 0x4f);
            match port.map(|port| u16::from_be_bytes([port[0], port[1]])) {
                Some(ALLOWED) => arrived[0] += 1,
                Some(DENIED) => arrived[1] += 1,
                _ => {}
            }
        }
    }
    Ok(())
}
