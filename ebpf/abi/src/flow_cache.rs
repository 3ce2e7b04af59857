//! What a CPU has in front of the stages: what became of the last packets of busy flows.

use crate::{Be16, FlowKey, Segment, Vtep};

/// The headers of a packet that has a shortcut, as far as they tell one flow from another. Words as they lie in the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Headers {
    /// Source and destination: two words each, or halves of the first one of IPv4.
    pub addresses: [u64; 4],
    /// Of Ethernet: the destination, and the beginning of the source.
    pub ethernet: u64,
    /// The rest of the source.
    pub ethernet_rest: u32,
    /// Source and destination.
    pub ports: u32,
    /// What Ethernet carries.
    pub kind: Be16,
    /// The class (DSCP) in the place that it has in the TOS byte; the bits of ECN are zero.
    pub class: u8,
    /// TCP or UDP.
    pub protocol: u8,
    /// Zero.
    pub zero: u32,
}

impl Headers {
    /// Equality by words.
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

    /// A number in which the headers of different flows mostly differ. The two directions of a flow do.
    #[inline(always)]
    pub const fn hash(&self, ifindex: u32) -> u32 {
        Headers::place(self.addresses, self.ports, ifindex)
    }

    /// The same of these headers' addresses and ports.
    #[inline(always)]
    pub const fn place(addresses: [u64; 4], ports: u32, ifindex: u32) -> u32 {
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let [a, b, c, d] = addresses;
        let ends = a ^ b.rotate_left(16) ^ c.rotate_left(32) ^ d.rotate_left(48);
        let rest = (ports as u64) << 32 | ifindex as u64;
        // The high bits of a product are those that depend on all of the factor: of ports that lie in its upper half, too.
        ((ends.wrapping_mul(SPREAD) ^ rest).wrapping_mul(SPREAD) >> 48) as u32
    }
}

/// What the stages change of a packet, and what that does to its checksums. Sums are of 16-bit words as they lie in the frame,
/// in 16 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Changes {
    /// What is added to the sum over the header of IPv4,
    pub header_sum: u16,
    /// by the addresses alone to that over the pseudo header,
    pub address_sum: u16,
    /// and by the ports to that of the transport.
    pub port_sum: u16,
    /// The sum over the pseudo header of the packet as it came, but for the length.
    pub pseudo_sum: u16,
    /// How the transport writes a checksum that is zero: 0xffff for UDP, where zero means that there is none.
    pub zero: u16,
    /// The place of the checksum in the frame.
    pub place: u8,
    /// [`Changes::CLASS`] and others of its kind: what is another than it was.
    pub what: u8,
}

impl Changes {
    /// The class is another.
    pub const CLASS: u8 = 1;
    /// An Ethernet address is.
    pub const ETHERNET: u8 = 2;
    /// An address is.
    pub const ADDRESSES: u8 = 4;
    /// A port is.
    pub const PORTS: u8 = 8;
}

/// What the stages made of a packet of a flow, for the next packets with the same headers on the same CPU.
///
/// It is good until `until`, while the epoch is the same, and while the groups' rule sets are those that judged the flow. What
/// it has let through is not in the flow's own counts before it is made anew or makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FlowCacheEntry {
    /// The packet as it came.
    pub headers: Headers,
    /// Where it came from: the interface,
    pub ifindex: u32,
    /// and where the interface is that of many, the network: the number of a tunnel's, the tag of a wire's; or the port of what
    /// has waited. Of a tunnelled packet
    pub vni: u32,
    /// also the node.
    pub vtep: Vtep,
    /// Number of the word of [`Epochs::flows`] that is the flow's.
    pub shard: u32,
    /// Nanoseconds since boot; zero in an empty place.
    pub until: u64,
    /// The same as a number of the kernel's ticks.
    pub until_tick: u64,
    /// [`Epochs::of`] the shard,
    pub epoch: u64,
    /// and [`Epochs::all`].
    pub all: u64,
    /// The groups whose rules judged the flow, of its first direction and of answers; zero for none.
    pub groups: [u16; 2],
    /// Their rule sets: the one `out` of the first, the one `in` of the second.
    pub generations: [u32; 2],
    /// The interface that it goes to.
    pub out: u32,
    /// The packet as it goes on.
    pub becomes: Headers,
    /// What is another then.
    pub changes: Changes,
    /// Where it goes: [`FlowCacheEntry::POD`], [`FlowCacheEntry::TUNNEL`], [`FlowCacheEntry::WIRE`], [`FlowCacheEntry::PORT`].
    pub way: u16,
    /// 0 for a packet of the flow's first direction, 1 for an answer.
    pub side: u16,
    /// The network there.
    pub segment: Segment,
    /// By tunnel, to this node.
    pub to: Vtep,
    /// The number of the service that the flow is to; zero for none.
    pub service: u32,
    /// The flow.
    pub flow: FlowKey,
    /// How many packets have taken it that the flow does not count yet.
    pub packets: u64,
    /// Their bytes, from the Ethernet header on.
    pub bytes: u64,
}

impl FlowCacheEntry {
    /// To a pod here.
    pub const POD: u16 = 1;
    /// To another node.
    pub const TUNNEL: u16 = 2;
    /// To the uplink, with the network's tag.
    pub const WIRE: u16 = 3;
    /// To a port here by its host end's sending side: to the node's own, or to a pod's in front of which frames may have to wait.
    pub const PORT: u16 = FlowCacheEntry::POD + 3;

    /// Whether no packet takes it any more, however far the clocks of processors are apart. `now` is in nanoseconds since
    /// boot.
    pub const fn is_at_rest(&self, now: u64) -> bool {
        self.until.saturating_add(1_000_000_000) < now
    }
}

/// Numbers that change when what shortcuts rely on has changed. Whoever makes a shortcut reads them before everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Epochs {
    /// Grows with each change of anything that the agent writes.
    pub all: u64,
    /// How often the kernel's clock ticks in a second, as the agent found it; zero before it has.
    pub ticks: u64,
    /// 1 where the kernel takes what a program gives to a pod's end for the pod's own, as the agent found it.
    pub takes: u64,
    /// Changes with each flow that is forgotten before its time, before the flow's own word does.
    pub forgotten: u64,
    /// Changes when a flow whose number this is was forgotten.
    pub flows: [u64; Epochs::SHARDS],
}

impl Epochs {
    /// A power of two.
    pub const SHARDS: usize = 1024;

    /// Which word is a flow's.
    #[inline(always)]
    pub const fn shard(flow: &FlowKey) -> u32 {
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let ([a, b], [c, d]) = (flow.low.words(), flow.high.words());
        let ports = (flow.low_port.wire() as u64) << 16 | flow.high_port.wire() as u64;
        let ends = (a ^ b.rotate_left(16) ^ c.rotate_left(32) ^ d.rotate_left(48)).wrapping_mul(SPREAD);
        ((ends ^ ports).wrapping_mul(SPREAD) >> 32) as u32 & (Epochs::SHARDS as u32 - 1)
    }

    /// The word of flows with this shard.
    #[inline(always)]
    pub fn of(&self, shard: u32) -> u64 {
        self.flows.get(shard as usize & (Epochs::SHARDS - 1)).map_or(0, now)
    }

    /// What a word becomes that was `before`. Programs have no means to add in one step; so no two of them write the same
    /// number: it has the time (nanoseconds) and the number of the processor in it.
    #[inline(always)]
    pub const fn next(before: u64, time: u64, processor: u32) -> u64 {
        const PROCESSORS: u32 = 16;
        let (time, before) = (time << PROCESSORS >> PROCESSORS, before >> PROCESSORS);
        let time = if time > before { time } else { before + 1 };
        time << PROCESSORS | processor as u64 & ((1 << PROCESSORS) - 1)
    }

    /// What whoever makes a shortcut reads before everything else, and again afterwards.
    #[inline(always)]
    pub fn marks(&self) -> [u64; 2] {
        [now(&self.all), now(&self.forgotten)]
    }
}

/// A number that others change at any time: read where this says, not earlier or later.
#[inline(always)]
fn now(number: &u64) -> u64 {
    // SAFETY: a place that is there.
    unsafe { core::ptr::from_ref(number).read_volatile() }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::{Address, Tuple};

    #[test]
    fn flows_spread_over_the_places() {
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
    fn a_word_is_never_what_it_was() {
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
