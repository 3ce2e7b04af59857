//! Bytes of this crate's encoder against those of Open vSwitch's encoder.
//!
//! `ovs-ofctl add-flows` and `add-groups` encode text for a switch: the test is the switch. `golden/messages.txt` has one message of
//! each kind with the text of `ovs-ofctl ofp-print`; `BLESS=1` writes it.

use std::{
    fmt::Write as _,
    fs,
    io::{Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    process::{Command, Stdio},
    thread,
};

use openflow_rs::{
    Action, Body, Field, FlowMod, Group, GroupMod, Masked, Match, Message,
    multipart::{MultipartReply, Parts},
    switch::Hello,
};
use testkit::needs;

use crate::{arbitrary, every, ofctl::sample};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digits).collect()
}

/// Output of `ovs-ofctl` with this standard input.
fn ofctl(arguments: &[&str], input: String) -> String {
    let mut command = Command::new("ovs-ofctl");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Reads one message; `None` at the end.
fn receive(stream: &mut UnixStream) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 8];
    stream.read_exact(&mut bytes).ok()?;
    let length = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
    bytes.resize(length, 0);
    stream.read_exact(&mut bytes[8..]).ok()?;
    Some(bytes)
}

/// Messages that `ovs-ofctl` sends to a switch when it reads `lines`, without its questions.
fn sent_by_ofctl(command: &str, lines: &[String]) -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let (socket, file) = (folder.path().join("switch"), folder.path().join("lines"));
    fs::write(&file, lines.join("\n") + "\n").unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    let switch = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let answer = |xid, body| Message::new(xid, body).to_bytes().unwrap();
        let mut changes = vec![];
        stream.write_all(&answer(1, Body::Hello(Hello::openflow13()))).unwrap();
        while let Some(bytes) = receive(&mut stream) {
            let message = Message::decode(&bytes).unwrap();
            let reply = match message.body {
                Body::FlowMod(_) | Body::GroupMod(_) => {
                    changes.push(bytes);
                    continue;
                }
                Body::Hello(_) => continue,
                Body::BarrierRequest => Body::BarrierReply,
                Body::EchoRequest(data) => Body::EchoReply(data),
                Body::MultipartRequest(_) => {
                    Body::MultipartReply(MultipartReply { more: false, parts: Parts::Ports(vec![]) })
                }
                other => panic!("ovs-ofctl asks {other:?}"),
            };
            stream.write_all(&answer(message.xid, reply)).unwrap();
        }
        changes
    });
    let target = format!("unix:{}", socket.display());
    let file = file.display().to_string();
    ofctl(&["--timeout=60", "--no-names", "-O", "OpenFlow13", command, &target, &file], String::new());
    switch.join().unwrap()
}

/// Open vSwitch writes the fields of `learn` with the older of their two numbers, and a masked `set_field` as one `load` for each
/// run of bits. It reads both forms.
fn has_other_form(action: &Action) -> bool {
    matches!(action, Action::Learn(_) | Action::SetMasked { .. })
}

/// `ovs-ofctl` reads the mask of an IPv6 address as the length of a prefix if it begins with a digit, and prints 2/2 and
/// 0/1 of the fragment flags as `later` and `no`, which it reads as 3/3 and 0/3.
fn has_text((field, masked): (Field, Masked)) -> bool {
    if field == Field::IpFragment && matches!((masked.value, masked.mask), (2, 2) | (0, 1)) {
        return false;
    }
    field.bits() < 128
        || (!masked.mask & field.mask()).wrapping_add(1).is_power_of_two()
        || masked.mask == field.mask()
}

/// `ovs-ofctl` refuses actions that do not fit the match, as the switch does: changes of a VLAN tag, connection tracking of what is not
/// IP, commits of what may be invalid, translations of another protocol.
fn fits(action: &Action, matching: &Match) -> bool {
    let ip = matching.exact(Field::EthType).is_some_and(|kind| [0x800, 0x86dd].contains(&kind));
    match action {
        Action::PushVlan(_) | Action::PopVlan => false,
        Action::Ct(ct) => {
            let valid = !ct.commit || matching.get(Field::CtState).is_none();
            let translates = |action: &Action| matches!(action, Action::Nat(nat) if nat.kind.is_some());
            ip && valid && !ct.exec.iter().any(translates)
        }
        _ => true,
    }
}

fn without_xid(bytes: &[u8]) -> String {
    hex(&[&bytes[..4], &[0; 4], &bytes[8..]].concat())
}

/// The match of a flow modification with its padding, and what is before and after it.
fn parts(bytes: &[u8]) -> (&[u8], String) {
    const START: usize = 48;
    let length = usize::from(u16::from_be_bytes([bytes[START + 2], bytes[START + 3]])).next_multiple_of(8);
    let (head, rest) = bytes.split_at(START);
    let (matching, instructions) = rest.split_at(length);
    (matching, without_xid(head) + &hex(instructions))
}

#[test]
fn open_vswitch_encodes_the_same_flows() {
    needs!(binary("ovs-ofctl"));
    let mut flows = sample(arbitrary::flow(), 3000);
    flows.retain(|flow| {
        flow.instructions.apply.iter().all(|action| fits(action, &flow.matching) && !has_other_form(action))
            && flow.matching.iter().all(has_text)
    });
    assert!(flows.len() > 1000, "{}", flows.len());
    let texts: Vec<_> = flows.iter().map(|flow| format!("{flow:#}")).collect();
    let sent = sent_by_ofctl("add-flows", &texts);
    assert_eq!(sent.len(), flows.len());
    for ((flow, text), theirs) in flows.iter().zip(texts).zip(sent) {
        let ours = Message::new(0, Body::FlowMod(FlowMod::add(flow.clone()))).to_bytes().unwrap();
        // Open vSwitch writes the fields of a match in another order.
        let (our_match, our_rest) = parts(&ours);
        let (their_match, their_rest) = parts(&theirs);
        assert_eq!((our_rest, our_match.len()), (their_rest, their_match.len()), "{text}");
        assert_eq!(
            Message::decode(&theirs).unwrap().body,
            Body::FlowMod(FlowMod::add(flow.clone())),
            "{text}"
        );
    }
}

#[test]
fn open_vswitch_encodes_the_same_groups() {
    needs!(binary("ovs-ofctl"));
    let mut groups: Vec<Group> = sample(arbitrary::group(), 1000);
    groups.retain(|group| !group.buckets.iter().any(|bucket| bucket.actions.iter().any(has_other_form)));
    assert!(groups.len() > 300, "{}", groups.len());
    let texts: Vec<_> = groups.iter().map(ToString::to_string).collect();
    let sent = sent_by_ofctl("add-groups", &texts);
    assert_eq!(sent.len(), groups.len());
    for ((group, text), theirs) in groups.iter().zip(texts).zip(sent) {
        let ours = Message::new(0, Body::GroupMod(GroupMod::add(group.clone()))).to_bytes().unwrap();
        assert_eq!(hex(&ours), without_xid(&theirs), "{text}");
    }
}

#[test]
fn every_message_has_its_golden_bytes() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openflow/golden/messages.txt");
    let messages = every::messages();
    let bytes = |message: &Message| message.to_bytes().unwrap();
    if std::env::var_os("BLESS").is_some() {
        let entry = |message: &Message| {
            let bytes = hex(&bytes(message));
            let text = ofctl(&["ofp-print", &bytes], String::new());
            let text: String = text.lines().map(|line| format!("  {}\n", line.trim_end())).collect();
            format!("{bytes}\n{text}")
        };
        fs::write(&file, messages.iter().map(entry).collect::<String>()).unwrap();
    }
    let golden = fs::read_to_string(&file).unwrap();
    let entries: Vec<_> = golden.lines().filter(|line| !line.starts_with(' ')).collect();
    assert_eq!(entries.len(), messages.len());
    for (message, entry) in messages.iter().zip(entries) {
        assert_eq!(hex(&bytes(message)), entry, "{message:?}");
        assert_eq!(Message::decode(&unhex(entry)).as_ref(), Ok(message));
    }
}

#[test]
fn ovs_ofctl_prints_the_golden_bytes_as_before() {
    needs!(binary("ovs-ofctl"));
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openflow/golden/messages.txt");
    let golden = fs::read_to_string(file).unwrap();
    let mut lines = golden.lines().peekable();
    while let Some(bytes) = lines.next() {
        let mut expected = String::new();
        while let Some(line) = lines.next_if(|line| line.starts_with(' ')) {
            expected += &format!("{}\n", line[2..].trim_end());
        }
        let printed = ofctl(&["ofp-print", bytes], String::new());
        let printed: String = printed.lines().map(|line| format!("{}\n", line.trim_end())).collect();
        assert_eq!(printed, expected, "{bytes}");
        assert!(!printed.contains("***"), "{printed}");
    }
}
