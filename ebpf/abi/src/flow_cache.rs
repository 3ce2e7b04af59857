//! The flow cache: per CPU, the result of the stages for the last packets of busy flows.

use crate::{Be16, FlowKey, Segment, Vtep};

/// Headers that identify the flow of a packet. All words are in network byte order, as they are in
/// the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Headers {
    /// Source and destination address: two words each; for IPv4 the two halves of the first word.
    pub addresses: [u64; 4],
    /// Destination Ethernet address, and the first two octets of the source address.
    pub ethernet: u64,
    /// The last four octets of the source Ethernet address.
    pub ethernet_rest: u32,
    /// Source and destination port.
    pub ports: u32,
    /// EtherType.
    pub kind: Be16,
    /// DSCP in the upper six bits, as in the TOS byte; the ECN bits are zero.
    pub class: u8,
    /// IP protocol number: TCP or UDP.
    pub protocol: u8,
    /// Zero.
    pub zero: u32,
}

impl Headers {
    /// Compares by words.
    #[inline(always)]
    pub const fn is(&self, other: &Headers) -> bool {
        let ([a, b, c, d], [e, f, g, h]) = (self.addresses, other.addresses);
        let addresses = (a ^ e) | (b ^ f) | (c ^ g) | (d ^ h);
        let numbers = (self.ports ^ other.ports) | (self.ethernet_rest ^ other.ethernet_rest);
        addresses | (self.ethernet ^ other.ethernet) | numbers as u64 == 0
            && self.kind.wire() == other.kind.wire()
            && self.class == other.class
            && self.protocol == other.protocol
    }

    /// A hash of the headers and the interface index. The two directions of a flow have different
    /// hashes.
    #[inline(always)]
    pub const fn hash(&self, ifindex: u32) -> u32 {
        Headers::place(self.addresses, self.ports, ifindex)
    }

    /// The same hash, of addresses and ports.
    #[inline(always)]
    pub const fn place(addresses: [u64; 4], ports: u32, ifindex: u32) -> u32 {
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let [a, b, c, d] = addresses;
        let ends = a ^ b.rotate_left(16) ^ c.rotate_left(32) ^ d.rotate_left(48);
        // The high bits of a product depend on all bits of the factor, also on ports in its upper
        // half.
        let rest = (ports as u64) << 32 | ifindex as u64;
        // The high bits of a product are those that depend on all of the factor: of ports that lie in its upper half, too.
        ((ends.wrapping_mul(SPREAD) ^ rest).wrapping_mul(SPREAD) >> 48) as u32
    }
}

/// Header rewrites of a cached flow, and their effect on the checksums. Sums are one's complement
/// sums of 16-bit words in network byte order (RFC 1071), folded to 16 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Changes {
    /// Difference of the sum over the IPv4 header.
    pub header_sum: u16,
    /// Difference of the sum over the pseudo header, by the addresses alone.
    pub address_sum: u16,
    /// Difference of the transport checksum by the ports.
    pub port_sum: u16,
    /// Sum over the pseudo header of the received packet, without the length.
    pub pseudo_sum: u16,
    /// Encoding of a transport checksum of zero: 0xffff for UDP, where zero means no checksum.
    pub zero: u16,
    /// Offset of the transport checksum in the frame, in bytes.
    pub place: u8,
    /// Flags of the rewritten fields: [`Changes::CLASS`] and the following.
    pub what: u8,
}

impl Changes {
    /// The DSCP is rewritten.
    pub const CLASS: u8 = 1;
    /// An Ethernet address is rewritten.
    pub const ETHERNET: u8 = 2;
    /// An IP address is rewritten.
    pub const ADDRESSES: u8 = 4;
    /// A port is rewritten.
    pub const PORTS: u8 = 8;
}

/// Result of the stages for a packet of a flow, used for the next packets with the same headers on
/// the same CPU.
///
/// An entry is valid until `until`, while the epochs are unchanged, and while the groups have the
/// rule sets that the flow was evaluated with. Its counters are added to the flow when the entry is
/// renewed or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FlowCacheEntry {
    /// Headers of the packet as received.
    pub headers: Headers,
    /// Interface that the packet was received on.
    pub ifindex: u32,
    /// For an interface of several networks, the network: VNI of a tunnel, tag of an uplink; or the
    /// port of a packet that was queued.
    pub vni: u32,
    /// For a tunnelled packet, the VTEP of the sending node.
    pub vtep: Vtep,
    /// Index of the flow's word in [`Epochs::flows`].
    pub shard: u32,
    /// End of validity, in nanoseconds since boot; zero in an empty entry.
    pub until: u64,
    /// End of validity, in kernel ticks (jiffies).
    pub until_tick: u64,
    /// Value of [`Epochs::of`] the shard.
    pub epoch: u64,
    /// Value of [`Epochs::all`].
    pub all: u64,
    /// Groups whose rules the flow was evaluated with, of the original direction and of the reply
    /// direction; zero for none.
    pub groups: [u16; 2],
    /// Rule sets of these groups: `out` of the first, `in` of the second.
    pub generations: [u32; 2],
    /// Interface that the packet is sent to.
    pub out: u32,
    /// Headers of the packet as sent.
    pub becomes: Headers,
    /// Rewrites from `headers` to `becomes`.
    pub changes: Changes,
    /// Kind of output: [`FlowCacheEntry::POD`], [`FlowCacheEntry::TUNNEL`],
    /// [`FlowCacheEntry::WIRE`] or [`FlowCacheEntry::PORT`].
    pub way: u16,
    /// Direction: 0 for the original direction of the flow, 1 for the reply direction.
    pub side: u16,
    /// Network of the output.
    pub segment: Segment,
    /// VTEP of the receiving node, for a tunnel.
    pub to: Vtep,
    /// Number of the flow's service port; zero for none.
    pub service: u32,
    /// Key of the flow.
    pub flow: FlowKey,
    /// Packets that the flow's counters do not contain yet.
    pub packets: u64,
    /// Bytes of these packets, including the Ethernet header.
    pub bytes: u64,
}

impl FlowCacheEntry {
    /// To a local pod, by `bpf_redirect_peer`.
    pub const POD: u16 = 1;
    /// To another node.
    pub const TUNNEL: u16 = 2;
    /// To the uplink, with the network's tag.
    pub const WIRE: u16 = 3;
    /// To a local port by its egress: to the node's own port, or to a pod whose packets may be
    /// queued.
    pub const PORT: u16 = FlowCacheEntry::POD + 3;

    /// Returns true if no packet uses the entry any more, even if the clocks of the CPUs differ by
    /// up to a second. `now` is in nanoseconds since boot.
    pub const fn is_at_rest(&self, now: u64) -> bool {
        self.until.saturating_add(1_000_000_000) < now
    }
}

/// Counters that change when the assumptions of cache entries change. A program reads them before
/// it builds an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Epochs {
    /// Increases with each change that the agent writes.
    pub all: u64,
    /// Kernel ticks per second (`CONFIG_HZ`), measured by the agent; zero before.
    pub ticks: u64,
    /// 1 if `bpf_redirect_peer` works for pods on this kernel, measured by the agent.
    pub takes: u64,
    /// Changes with each flow that is removed before its timeout, before the flow's own word
    /// changes.
    pub forgotten: u64,
    /// One word for each shard of flows; changes when a flow of the shard is removed.
    pub flows: [u64; Epochs::SHARDS],
}

impl Epochs {
    /// Number of shards, a power of two.
    pub const SHARDS: usize = 1024;

    /// Index of the flow's word.
    #[inline(always)]
    pub const fn shard(flow: &FlowKey) -> u32 {
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let ([a, b], [c, d]) = (flow.low.words(), flow.high.words());
        let ports = (flow.low_port.wire() as u64) << 16 | flow.high_port.wire() as u64;
        let ends = (a ^ b.rotate_left(16) ^ c.rotate_left(32) ^ d.rotate_left(48)).wrapping_mul(SPREAD);
        ((ends ^ ports).wrapping_mul(SPREAD) >> 32) as u32 & (Epochs::SHARDS as u32 - 1)
    }

    /// The word of a shard.
    #[inline(always)]
    pub fn of(&self, shard: u32) -> u64 {
        self.flows.get(shard as usize & (Epochs::SHARDS - 1)).map_or(0, now)
    }

    /// The successor of the word `before`. Programs cannot add atomically with a result; so that no
    /// two of them write the same value, it contains the time (nanoseconds) and the CPU number.
    #[inline(always)]
    pub const fn next(before: u64, time: u64, processor: u32) -> u64 {
        const PROCESSORS: u32 = 16;
        let (time, before) = (time << PROCESSORS >> PROCESSORS, before >> PROCESSORS);
        let time = if time > before { time } else { before + 1 };
        time << PROCESSORS | processor as u64 & ((1 << PROCESSORS) - 1)
    }

    /// The words to compare before and after an entry is built.
    #[inline(always)]
    pub fn marks(&self) -> [u64; 2] {
        [now(&self.all), now(&self.forgotten)]
    }
}

/// Reads a number that other CPUs change; neither moved nor repeated by the compiler.
#[inline(always)]
fn now(number: &u64) -> u64 {
    // SAFETY: a valid reference.
    unsafe { core::ptr::from_ref(number).read_volatile() }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::{Address, Tuple};

    #[test]
    fn flows_are_spread_over_the_cache() {
        const PLACES: usize = 2048;
        let mut used = [false; PLACES];
        for port in 0..PLACES as u32 {
            let headers = Headers {
                addresses: [u64::from_ne_bytes([10, 1, 1, 2, 10, 1, 1, 3]), 0, 0, 0],
                ports: (20_000 + port).swap_bytes() >> 16 | 0x5000_0000,
                ..Headers::default()
            };
            used[headers.hash(7) as usize % PLACES] = true;
        }
        // As many as chance would use, 1 - 1/e, or more.
        let count = used.iter().filter(|used| **used).count();
        assert!(count > PLACES / 2, "{count}");
    }

    #[test]
    fn both_directions_of_a_flow_have_one_epoch() {
        let tuple = Tuple {
            source: Address::v4([10, 1, 1, 2]),
            destination: Address::v4([10, 1, 1, 3]),
            source_port: Be16::new(4000),
            destination_port: Be16::new(80),
            protocol: crate::TCP,
            zero: [0; 3],
        };
        let key = |tuple: &Tuple| FlowKey::new(Segment::vxlan(1), tuple, FlowKey::FLOW);
        assert_eq!(Epochs::shard(&key(&tuple)), Epochs::shard(&key(&tuple.reversed())));
    }

    #[test]
    fn words_never_repeat() {
        let mut words = std::collections::BTreeSet::from([0]);
        let mut word = 0;
        // Clocks stand still and go back.
        for (time, processor) in [(5, 0), (5, 0), (5, 1), (4, 1), (9, 0), (9, 0), (9, 3)] {
            word = Epochs::next(word, time, processor);
            assert!(words.insert(word));
        }
        // Two that have read the same word.
        assert_ne!(Epochs::next(word, 10, 0), Epochs::next(word, 10, 1));
    }
}
