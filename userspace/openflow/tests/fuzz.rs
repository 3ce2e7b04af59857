//! Random and mutated bytes: decoders do not panic, what they accept survives another round trip, and their memory is bounded by the
//! length of the input.
//!
//! `cargo xtask bench fuzz-openflow` runs a million inputs. The program has its own allocator, which counts, so these tests are not
//! among the others.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[path = "openflow/arbitrary.rs"]
mod arbitrary;
#[path = "openflow/every.rs"]
mod every;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    env,
    fmt::Write as _,
    thread,
    time::Instant,
};

use bytes::BytesMut;
use openflow_rs::{
    Action, Body, Bucket, Ct, Field, Flow, FlowMod, FlowStats, Group, GroupKind, Match, Message, Slice,
    codec::Codec,
    multipart::{MultipartReply, Parts},
    nicira::{Learn, LearnSpec},
};
use proptest::{
    strategy::{Strategy as _, ValueTree as _},
    test_runner::TestRunner,
};
use tokio_util::codec::Decoder as _;

const CASES: u64 = 40_000;
const SEEDS: usize = 1_000;
/// A decoder needs at most this much memory for a byte of input, growth of its vectors included, and this much besides.
const MEMORY_PER_BYTE: usize = 32;
const MEMORY: usize = 1024;
/// A small stack, so that unbounded recursion is found.
const STACK: usize = 256 << 10;
/// Levels of actions inside actions that are decoded.
const DECODED_LEVELS: usize = 16;

/// Counts the bytes that the thread has allocated and not freed.
struct Counting;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every request goes to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.get().wrapping_add(layout.size());
        LIVE.set(live);
        // Memory that another thread allocated can be freed here: then the count is below zero.
        if live < usize::MAX / 2 {
            PEAK.set(PEAK.get().max(live));
        }
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get().wrapping_sub(layout.size()));
        // SAFETY: `pointer` is from `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Calls `work` and returns the most memory that it had at a time.
fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let value = work();
    (value, PEAK.get().saturating_sub(before))
}

/// SplitMix64: the same inputs for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.roll() % end.max(1) as u64) as usize
    }

    /// An input: random bytes after a header, or a message that was changed in a few places.
    fn input(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = if self.below(16) == 0 {
            let length = 8 + self.below(200);
            (0..length).map(|_| self.roll() as u8).collect()
        } else {
            corpus[self.below(corpus.len())].clone()
        };
        for _ in 0..self.below(5) {
            self.mutate(&mut bytes, corpus);
        }
        bytes.truncate(usize::from(u16::MAX));
        // Most inputs get past the header, whose kinds end at 29.
        if self.below(16) > 0 && bytes.len() >= 8 {
            bytes[0] = 4;
            bytes[1] %= 32;
            let length = bytes.len() as u16;
            bytes[2..4].copy_from_slice(&length.to_be_bytes());
        }
        bytes
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        const ODD: [u8; 10] = [0, 1, 4, 7, 8, 0x10, 0x7f, 0x80, 0xfe, 0xff];
        let at = self.below(bytes.len());
        match self.below(8) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            2 | 3 if at < bytes.len() => bytes[at] = ODD[self.below(ODD.len())],
            4 if at < bytes.len() => bytes[at] = self.roll() as u8,
            // Structures are aligned to eight bytes: moves and copies keep that more often than not.
            5 => bytes.truncate(at & !7),
            6 => {
                let other = &corpus[self.below(corpus.len())];
                let from = self.below(other.len()) & !7;
                bytes.truncate(at & !7);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => {
                let part = bytes[at & !7..].to_vec();
                for _ in 0..self.below(4) {
                    bytes.extend_from_slice(&part);
                }
            }
        }
    }
}

fn corpus() -> Vec<Vec<u8>> {
    let mut runner = TestRunner::deterministic();
    let strategy = arbitrary::message();
    let random = (0..SEEDS).map(|_| strategy.new_tree(&mut runner).unwrap().current());
    random.chain(every::messages()).map(|message| message.to_bytes().unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// Decodes the bytes and checks what holds for all; returns whether they are a message.
fn check(bytes: &[u8]) -> bool {
    let (decoded, memory) = peak(|| Message::decode(bytes));
    let bound = MEMORY + MEMORY_PER_BYTE * bytes.len();
    assert!(memory <= bound, "{memory} bytes of memory for {}: {}", bytes.len(), hex(bytes));
    let Ok(message) = decoded else { return false };
    display(&message);
    let again = message.to_bytes().unwrap_or_else(|error| panic!("{error}: {}", hex(bytes)));
    let second = Message::decode(&again);
    assert!(
        second.as_ref() == Ok(&message),
        "{}\nis {message:?}\nwhich becomes {}\nwhich is {second:?}",
        hex(bytes),
        hex(&again)
    );
    true
}

/// Text forms must not panic either.
fn display(message: &Message) {
    let text = match &message.body {
        Body::FlowMod(change) => change.to_string(),
        Body::GroupMod(change) => change.to_string(),
        Body::MeterMod(change) => change.to_string(),
        Body::Error(error) => error.to_string(),
        Body::MultipartReply(reply) => match &reply.parts {
            Parts::Flows(flows) => flows.known.iter().map(ToString::to_string).collect(),
            Parts::Groups(groups) => groups.known.iter().map(ToString::to_string).collect(),
            _ => String::new(),
        },
        _ => String::new(),
    };
    assert!(text.len() < 16 << 20);
}

/// The frames of a stream are the messages that it was made of, wherever the stream is cut.
fn check_stream(dice: &mut Dice, messages: &[Vec<u8>]) {
    let stream = messages.concat();
    let mut buffer = BytesMut::new();
    let (mut rest, mut found) = (&stream[..], 0);
    while !rest.is_empty() {
        let (now, later) = rest.split_at(1 + dice.below(rest.len()));
        buffer.extend_from_slice(now);
        rest = later;
        while let Some(frame) = Codec.decode(&mut buffer).unwrap() {
            assert_eq!(frame.message, Message::decode(&messages[found]));
            found += 1;
        }
        assert!(buffer.capacity() <= 4 * stream.len() + (128 << 10), "{} bytes", buffer.capacity());
    }
    assert_eq!(found, messages.len());
}

fn setting(name: &str, default: u64) -> u64 {
    env::var(format!("CONTIV_FUZZ_OPENFLOW_{name}"))
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} {text}: not a number")))
}

#[test]
fn inputs_decode_to_what_encodes_to_the_same() {
    let (cases, seed) = (setting("CASES", CASES), setting("SEED", 1));
    let corpus = corpus();
    let fuzz = move || {
        let (start, mut dice) = (Instant::now(), Dice(seed));
        let mut accepted = 0_u64;
        for case in 0..cases {
            accepted += u64::from(check(&dice.input(&corpus)));
            if case % 64 == 0 {
                let messages: Vec<_> = (0..3).map(|_| corpus[dice.below(corpus.len())].clone()).collect();
                check_stream(&mut dice, &messages);
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{cases} inputs (seed {seed}) in {seconds:.1} s: {accepted} decoded, {} rejected",
            cases - accepted
        );
        assert!(accepted > cases / 10 && accepted < cases, "{accepted} of {cases} decoded");
    };
    thread::Builder::new().stack_size(STACK).spawn(fuzz).unwrap().join().unwrap();
}

/// Long messages of the shortest structures, of which a message has the most.
#[test]
fn memory_is_bounded_by_the_length() {
    let (port, matching) = (Slice::bits(Field::Reg0, 0, 16), Match::new());
    let learn = Learn { specs: vec![LearnSpec::Output { from: port }; 8_000], ..Learn::default() };
    let flow = |action: Action, count| Flow::new(0, 1, matching.clone()).apply(vec![action; count]);
    let flows = [flow(Action::PopVlan, 8_000), flow(Action::Learn(learn), 1)];
    let stats =
        FlowStats { flow: flow(Action::PopVlan, 0), seconds: 0, nanoseconds: 0, packets: 0, bytes: 0 };
    let group = Group { id: 1, kind: GroupKind::All, buckets: vec![Bucket::new([]); 4_000] };
    let empty = Group { buckets: vec![], ..group.clone() };
    let flow_stats = vec![stats; 1_100];
    let replies = [
        Parts::Flows(flow_stats.into()),
        Parts::Groups(vec![group].into()),
        Parts::Groups(vec![empty; 8_000].into()),
    ];
    let replies = replies.map(|parts| Body::MultipartReply(MultipartReply { more: false, parts }));
    for body in flows.map(|flow| Body::FlowMod(FlowMod::add(flow))).into_iter().chain(replies) {
        let bytes = Message::new(1, body).to_bytes().unwrap();
        assert!(bytes.len() > 60_000 && check(&bytes), "{} bytes", bytes.len());
    }
}

/// As many actions inside actions as a message has room for.
#[test]
fn nesting_is_bounded() {
    let deepest = |levels: usize| {
        let nested = (0..levels).fold(vec![], |exec, _| vec![Action::Ct(Ct { exec, ..Ct::default() })]);
        Message::new(1, Body::FlowMod(FlowMod::add(Flow::new(0, 1, Match::new()).apply(nested)))).to_bytes()
    };
    // The builders do not bound it, and dropping an action inside an action needs stack, too.
    let bytes = thread::Builder::new().stack_size(64 << 20).spawn(move || deepest(2_500).unwrap()).unwrap();
    let bytes = bytes.join().unwrap();
    let decode = move || {
        assert!(!check(&bytes));
        assert!(check(&deepest(DECODED_LEVELS).unwrap()) && !check(&deepest(DECODED_LEVELS + 1).unwrap()));
    };
    thread::Builder::new().stack_size(STACK).spawn(decode).unwrap().join().unwrap();
}
