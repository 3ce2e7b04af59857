//! Limits as the kernel's queueing disciplines have them: `tbf` in front of one interface, a class of `htb` for each of
//! several senders. The messages are those of `linux/pkt_sched.h`.

use std::collections::BTreeMap;

use contiv_abi::Port;
use futures::{StreamExt as _, TryStreamExt as _};
use rtnetlink::{
    packet_core::{
        DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
        Nla as _, NlasIterator,
    },
    packet_route::{
        RouteNetlinkMessage,
        tc::{TcAttribute, TcHandle, TcHeader, TcMessage, TcOption},
    },
};

use crate::datapath::{
    Error,
    ebpf::{
        device::Netlink,
        failure::{errno, failed},
        maps::writes::Writes,
    },
};

const TBF: &str = "tbf";
const HTB: &str = "htb";
const FIFO: &str = "bfifo";

/// `TCA_OPTIONS`.
const OPTIONS: u16 = 2;

/// Ours, on whatever interface. Classes are below it.
const ROOT: TcHandle = TcHandle { major: Port::QUEUE, minor: 0 };

/// How much may pass; how much may wait follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Bytes in a second.
    rate: u64,
    /// What the bucket holds, as the time in which so much passes, in [`Limit::TICK`]s.
    burst: u32,
}

impl Limit {
    /// Nanoseconds (`PSCHED_SHIFT`).
    const TICK: u64 = 64;
    const SECOND: u64 = 1_000_000_000;
    /// More than the largest packet that a pod's kernel leaves to others to cut up.
    const PACKET: u64 = 68 << 10;
    /// What passes in a jiffy at 250 Hz: timers may be so late.
    const JIFFIES: u64 = 250;
    /// No more bytes may wait than this.
    const ROOM: u64 = 4 << 20;
    /// Below this rate, in bytes, a large packet would take so long that TCP takes it for lost.
    const SLOW: u64 = 50_000_000 / 8;
    /// So `tbf` cuts up what is longer than this, at a slow rate: no MTU is larger. What passes at once does so at
    /// [`Limit::PEAK`], because it is to what there is of a peak's burst that the kernel cuts.
    const PIECE: u64 = 16 << 10;
    /// Bytes in a second.
    const PEAK: u64 = 1 << 30;

    /// As good as none: what waits goes at once.
    pub(crate) const OPEN: Limit = Limit { rate: 1 << 36, burst: 1 << 16 };
    /// One that is not as ours are.
    const STRANGE: Limit = Limit { rate: 0, burst: 0 };

    /// Of bits in a second, and of a burst in bytes, which is raised to what can be kept to.
    pub(crate) fn new(bits: u64, burst: u32) -> Option<Limit> {
        let rate = bits / 8;
        if rate == 0 {
            return None;
        }
        let burst = u64::from(burst).max(Limit::PACKET).max(rate / Limit::JIFFIES);
        let ticks = u128::from(burst) * u128::from(Limit::SECOND / Limit::TICK) / u128::from(rate) + 1;
        Some(Limit { rate, burst: u32::try_from(ticks).unwrap_or(u32::MAX) })
    }

    /// Bytes that may wait in front of an interface: a tenth of a second, or what is as good as a few packets.
    fn end_room(&self) -> u32 {
        (self.rate / 10).clamp(24 << 10, Limit::ROOM) as u32
    }

    /// Bytes that may wait in a class, where nothing is cut up: room for two large packets at least. Whose they are waits
    /// with them.
    fn class_room(&self) -> u32 {
        (self.rate / 10).clamp(2 * Limit::PACKET, Limit::ROOM) as u32
    }

    /// `struct tc_ratespec`: of Ethernet, so that no table is wanted.
    fn spec(&self) -> [u8; 12] {
        const ETHERNET: u8 = 1;
        let mut spec = [0; 12];
        spec[1] = ETHERNET;
        spec[8..].copy_from_slice(&u32::try_from(self.rate).unwrap_or(u32::MAX).to_ne_bytes());
        spec
    }

    /// `struct tc_tbf_qopt`.
    fn bucket_parameters(&self) -> Vec<u8> {
        let (peak, piece) = if self.rate < Limit::SLOW {
            let ticks = Limit::PIECE * (Limit::SECOND / Limit::TICK) / Limit::PEAK + 1;
            (Limit { rate: Limit::PEAK, burst: 0 }.spec(), ticks as u32)
        } else {
            ([0; 12], 0)
        };
        let numbers = [self.end_room(), self.burst, piece].map(u32::to_ne_bytes);
        [&self.spec()[..], &peak, numbers.as_flattened()].concat()
    }

    /// The options of `tbf`.
    fn bucket(&self) -> Vec<TcOption> {
        vec![
            option(tbf::PARAMETERS, &self.bucket_parameters()),
            option(tbf::RATE64, &self.rate.to_ne_bytes()),
        ]
    }

    /// The options of a class of `htb`.
    fn class(&self) -> Vec<TcOption> {
        // Of classes that are all within their rate, each sends so much in its turn.
        const QUANTUM: u32 = 60_000;
        let parameters = [
            &self.spec()[..],
            &self.spec(),
            &self.burst.to_ne_bytes(),
            &self.burst.to_ne_bytes(),
            &QUANTUM.to_ne_bytes(),
            &[0; 8],
        ];
        vec![
            option(htb::PARAMETERS, &parameters.concat()),
            option(htb::RATE64, &self.rate.to_ne_bytes()),
            option(htb::CEIL64, &self.rate.to_ne_bytes()),
        ]
    }

    /// From the options of `tbf`.
    fn of_bucket(options: &[u8]) -> Option<Limit> {
        let Parameters { rate, bytes } = Parameters::read(options, tbf::PARAMETERS, tbf::RATE64)?;
        let limit = Limit { rate, burst: number(&bytes, 28)? };
        Some(if bytes == limit.bucket_parameters() { limit } else { Limit::STRANGE })
    }

    /// From the options of a class of `htb`. What may wait is not part of them.
    fn of_class(options: &[u8]) -> Option<Limit> {
        let Parameters { rate, bytes } = Parameters::read(options, htb::PARAMETERS, htb::RATE64)?;
        Some(Limit { rate, burst: number(&bytes, 24)? })
    }
}

mod tbf {
    pub(crate) const PARAMETERS: u16 = 1;
    pub(crate) const RATE64: u16 = 4;
}

mod htb {
    pub(crate) const PARAMETERS: u16 = 1;
    pub(crate) const INIT: u16 = 2;
    pub(crate) const RATE64: u16 = 6;
    pub(crate) const CEIL64: u16 = 7;
    /// `struct tc_htb_glob`: version, bytes in a second for a byte of quantum, and what has no class goes at once.
    pub(crate) const GLOBAL: [u32; 5] = [3, 10, 0, 0, 0];
}

/// What both kinds begin with.
struct Parameters {
    rate: u64,
    bytes: Vec<u8>,
}

impl Parameters {
    fn read(options: &[u8], parameters: u16, rate64: u16) -> Option<Parameters> {
        let (mut bytes, mut rate) = (None, None);
        for attribute in NlasIterator::new(options) {
            let attribute = attribute.ok()?;
            if attribute.kind() == parameters {
                bytes = Some(attribute.value().to_vec());
            } else if attribute.kind() == rate64 {
                rate = Some(u64::from_ne_bytes(attribute.value().try_into().ok()?));
            }
        }
        let bytes = bytes?;
        // The larger number is told only of what the smaller one has no room for.
        let rate = rate.or_else(|| number(&bytes, 8).map(u64::from))?;
        Some(Parameters { rate, bytes })
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn option(kind: u16, value: &[u8]) -> TcOption {
    TcOption::Other(DefaultNla::new(kind, value.to_vec()))
}

/// The bytes of the options, of a kind that the library does not read.
fn options(message: &TcMessage) -> Option<Vec<u8>> {
    message.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Options(options) => options.iter().find_map(|option| match option {
            TcOption::Other(attribute) => {
                let mut bytes = vec![0; attribute.value_len()];
                attribute.emit_value(&mut bytes);
                Some(bytes)
            }
            _ => None,
        }),
        _ => None,
    })
}

fn is(message: &TcMessage, kind: &str) -> bool {
    message.attributes.iter().any(|attribute| matches!(attribute, TcAttribute::Kind(name) if name == kind))
}

/// What is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Whether classes can be made.
    pub(crate) root: bool,
    /// Of the interface that was asked about.
    pub(crate) classes: BTreeMap<u16, Limit>,
    /// In front of interfaces, by index.
    pub(crate) ends: BTreeMap<u32, Limit>,
}

/// From the lists of all qdiscs, and of the classes of an interface.
fn found(device: u32, qdiscs: &[TcMessage], classes: &[TcMessage]) -> Found {
    let mut found = Found::default();
    let mut rooms: BTreeMap<u16, u32> = BTreeMap::new();
    for class in classes.iter().filter(|class| is(class, HTB) && class.header.handle.major == ROOT.major) {
        if let Some(limit) = options(class).and_then(|options| Limit::of_class(&options)) {
            found.classes.insert(class.header.handle.minor, limit);
        }
    }
    for qdisc in qdiscs {
        let Ok(index) = u32::try_from(qdisc.header.index) else { continue };
        let TcHeader { handle, parent, .. } = qdisc.header;
        if handle == ROOT && is(qdisc, TBF) {
            if let Some(limit) = options(qdisc).and_then(|options| Limit::of_bucket(&options)) {
                found.ends.insert(index, limit);
            }
        } else if handle == ROOT && index == device && is(qdisc, HTB) {
            found.root = true;
        } else if index == device
            && parent.major == ROOT.major
            && is(qdisc, FIFO)
            && let Some(room) = options(qdisc).and_then(|options| number(&options, 0))
        {
            rooms.insert(parent.minor, room);
        }
    }
    for (class, limit) in &mut found.classes {
        if rooms.get(class) != Some(&limit.class_room()) {
            *limit = Limit::STRANGE;
        }
    }
    found
}

impl Netlink {
    /// The limits that are there; classes only of one interface, zero for none.
    pub(crate) async fn limits(&self, device: u32) -> Result<Found, Error> {
        let what = || "list the queueing disciplines";
        let qdiscs: Vec<TcMessage> = self
            .handle()
            .qdisc()
            .get()
            .execute()
            .try_collect()
            .await
            .map_err(|error| failed(what(), error))?;
        let index = i32::try_from(device).map_err(|error| failed(what(), error))?;
        let classes: Vec<TcMessage> = match device {
            0 => vec![],
            _ => self
                .handle()
                .traffic_class(index)
                .get()
                .execute()
                .try_collect()
                .await
                .map_err(|error| failed(what(), error))?,
        };
        Ok(found(device, &qdiscs, &classes))
    }

    /// Makes classes possible in front of an interface.
    pub(crate) async fn make_root(&self, device: u32, writes: &Writes) -> Result<(), Error> {
        let global: Vec<u8> = htb::GLOBAL.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let options = TcAttribute::Options(vec![option(htb::INIT, &global)]);
        let message = message(device, TcHandle::ROOT, ROOT, vec![kind(HTB), options])?;
        writes.count();
        self.ask(RouteNetlinkMessage::NewQueueDiscipline(message), NLM_F_CREATE | NLM_F_REPLACE)
            .await
            .map_err(|error| failed("make a queue (does the kernel have sch_htb?)", error))
    }

    /// Makes a class be there just so. What waits in it stays.
    pub(crate) async fn set_class(
        &self,
        device: u32,
        class: u16,
        limit: &Limit,
        writes: &Writes,
    ) -> Result<(), Error> {
        let what = |error| failed(format!("set the class {class} of the queue"), error);
        let id = TcHandle { minor: class, ..ROOT };
        let options = TcAttribute::Options(limit.class());
        let class = message(device, ROOT, id, vec![kind(HTB), options])?;
        let room = TcAttribute::Other(DefaultNla::new(OPTIONS, limit.class_room().to_ne_bytes().to_vec()));
        let leaf = message(device, id, TcHandle::UNSPEC, vec![kind(FIFO), room])?;
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        writes.count();
        self.ask(RouteNetlinkMessage::NewTrafficClass(class), flags).await.map_err(what)?;
        self.ask(RouteNetlinkMessage::NewQueueDiscipline(leaf), flags).await.map_err(what)
    }

    /// Removes a class, with what waits in it.
    pub(crate) async fn delete_class(&self, device: u32, class: u16, writes: &Writes) -> Result<(), Error> {
        let gone = message(device, ROOT, TcHandle { minor: class, ..ROOT }, vec![])?;
        writes.count();
        gone_is_well(self.ask(RouteNetlinkMessage::DelTrafficClass(gone), 0).await)
            .map_err(|error| failed(format!("remove the class {class} of the queue"), error))
    }

    /// Makes a limit in front of an interface be there just so. What waits stays.
    pub(crate) async fn set_end(&self, ifindex: u32, limit: &Limit, writes: &Writes) -> Result<(), Error> {
        let options = TcAttribute::Options(limit.bucket());
        let message = message(ifindex, TcHandle::ROOT, ROOT, vec![kind(TBF), options])?;
        writes.count();
        self.ask(RouteNetlinkMessage::NewQueueDiscipline(message), NLM_F_CREATE | NLM_F_REPLACE)
            .await
            .map_err(|error| {
                failed(format!("limit interface {ifindex} (does the kernel have sch_tbf?)"), error)
            })
    }

    /// Removes the limit, with what waits.
    pub(crate) async fn delete_end(&self, ifindex: u32, writes: &Writes) -> Result<(), Error> {
        let gone = message(ifindex, TcHandle::ROOT, ROOT, vec![])?;
        writes.count();
        gone_is_well(self.ask(RouteNetlinkMessage::DelQueueDiscipline(gone), 0).await)
            .map_err(|error| failed(format!("remove the limit of interface {ifindex}"), error))
    }

    async fn ask(&self, message: RouteNetlinkMessage, flags: u16) -> Result<(), rtnetlink::Error> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut answers = self.handle().clone().request(request)?;
        while let Some(answer) = answers.next().await {
            if let NetlinkPayload::Error(error) = answer.payload {
                return Err(rtnetlink::Error::NetlinkError(error));
            }
        }
        Ok(())
    }
}

fn kind(name: &str) -> TcAttribute {
    TcAttribute::Kind(name.to_owned())
}

fn message(
    device: u32,
    parent: TcHandle,
    handle: TcHandle,
    attributes: Vec<TcAttribute>,
) -> Result<TcMessage, Error> {
    let index = i32::try_from(device).map_err(|error| failed(format!("find interface {device}"), error))?;
    let header = TcHeader { index, parent, handle, ..TcHeader::default() };
    Ok(TcMessage::from_parts(header, attributes))
}

/// What goes with its interface, or is not there, need not be removed.
fn gone_is_well(result: Result<(), rtnetlink::Error>) -> Result<(), rtnetlink::Error> {
    match result {
        Err(error) if matches!(errno(&error), Some(libc::ENOENT | libc::ENODEV | libc::EINVAL)) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_core::Emitable as _;

    use super::*;

    /// As the kernel tells it.
    fn told(options: &[TcOption]) -> Vec<u8> {
        let mut bytes = vec![0; options.buffer_len()];
        options.emit(&mut bytes);
        bytes
    }

    #[test]
    fn limits_are_read_back() {
        for (bits, burst) in
            [(8, 0), (1_048_000, 12_500), (10_485_000, 1_000_000), (80_000_000_000, u32::MAX)]
        {
            let limit = Limit::new(bits, burst).unwrap();
            assert_eq!(limit.rate, bits / 8);
            assert_eq!(Limit::of_bucket(&told(&limit.bucket())), Some(limit));
            assert_eq!(Limit::of_class(&told(&limit.class())), Some(limit));
        }
        let limit = Limit::new(8_000_000, 0).unwrap();
        let mut other = limit.bucket_parameters();
        other[24] ^= 1;
        assert_eq!(Limit::of_bucket(&told(&[option(tbf::PARAMETERS, &other)])), Some(Limit::STRANGE));
        assert_eq!(Limit::new(7, 1), None);
    }

    #[test]
    fn a_burst_is_what_was_asked_for_or_what_can_be_kept_to() {
        let bytes = |bits, burst| {
            let limit = Limit::new(bits, burst).unwrap();
            u128::from(limit.burst) * u128::from(Limit::TICK * limit.rate) / u128::from(Limit::SECOND)
        };
        // To the tick.
        assert_eq!(bytes(8_000_000, 1_000_000), 1_000_000);
        assert_eq!(bytes(1_000_000_000, 1_000_000), 1_000_008);
        assert_eq!(bytes(8_000_000, 100), u128::from(Limit::PACKET));
        assert_eq!(bytes(8_000_000_000, 100), 4_000_064);
    }

    #[test]
    fn what_others_made_is_not_ours() {
        let limit = Limit::new(8_000_000, 0).unwrap();
        let tbf = |index, handle| {
            let told =
                TcAttribute::Options(vec![TcOption::Other(DefaultNla::new(OPTIONS, told(&limit.bucket())))]);
            message(index, TcHandle::ROOT, handle, vec![kind(TBF), told]).unwrap()
        };
        let theirs = TcHandle { major: 1, minor: 0 };
        let found = found(0, &[tbf(3, ROOT), tbf(4, theirs)], &[]);
        assert_eq!(found.ends, [(3, limit)].into());
        assert!(!found.root && found.classes.is_empty());
    }
}
