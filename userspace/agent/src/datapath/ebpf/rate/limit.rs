//! A bandwidth limit, and its encoding in the options of the `tbf` and `htb` queueing disciplines
//! (`linux/pkt_sched.h`).

use rtnetlink::{
    packet_core::{DefaultNla, NlasIterator},
    packet_route::tc::TcOption,
};

/// A rate and a burst. The length of the queue follows from the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Bytes per second.
    rate: u64,
    /// Size of the token bucket: the time to send it at the rate, in units of [`Limit::TICK`].
    burst: u32,
}

impl Limit {
    /// Unit of time of the kernel's packet schedulers in nanoseconds (`PSCHED_SHIFT`).
    const TICK: u64 = 64;
    const SECOND: u64 = 1_000_000_000;
    /// Bytes. Larger than the largest GSO packet.
    const MAX_PACKET: u64 = 68 << 10;
    /// Jiffies per second at `CONFIG_HZ=250`: timers may be one jiffy late.
    const HZ: u64 = 250;
    /// Maximum queue length in bytes.
    const MAX_BACKLOG: u64 = 4 << 20;
    /// Rate in bytes per second below which GSO packets are segmented: TCP would time out during a large packet.
    const SEGMENT_BELOW: u64 = 50_000_000 / 8;
    /// Bytes above which `tbf` segments a GSO packet at a low rate; larger than any MTU. The kernel takes the threshold from
    /// the burst of the peak rate, so a peak rate of [`Limit::PEAK`] is set.
    const MAX_SEGMENT: u64 = 16 << 10;
    /// Peak rate in bytes per second.
    const PEAK: u64 = 1 << 30;

    /// Practically unlimited: queued packets leave at once.
    pub(crate) const UNLIMITED: Limit = Limit { rate: 1 << 36, burst: 1 << 16 };
    /// A limit whose encoding differs from ours.
    pub(super) const FOREIGN: Limit = Limit { rate: 0, burst: 0 };

    /// A limit from bits per second and a burst in bytes. Raises a burst that is too small for a packet or the timer
    /// resolution. `None` for rates below one byte per second.
    pub(crate) fn new(bits: u64, burst: u32) -> Option<Limit> {
        let rate = bits / 8;
        if rate == 0 {
            return None;
        }
        let burst = u64::from(burst).max(Limit::MAX_PACKET).max(rate / Limit::HZ);
        let ticks = u128::from(burst) * u128::from(Limit::SECOND / Limit::TICK) / u128::from(rate) + 1;
        Some(Limit { rate, burst: u32::try_from(ticks).unwrap_or(u32::MAX) })
    }

    /// Queue length of a port in bytes: 100 ms, at least 24 KiB.
    fn port_backlog(&self) -> u32 {
        (self.rate / 10).clamp(24 << 10, Limit::MAX_BACKLOG) as u32
    }

    /// Queue length of a class in bytes: 100 ms, at least two packets of maximum size, because `htb` does not segment.
    pub(super) fn class_backlog(&self) -> u32 {
        (self.rate / 10).clamp(2 * Limit::MAX_PACKET, Limit::MAX_BACKLOG) as u32
    }

    /// `struct tc_ratespec`. The link layer is Ethernet, for which the kernel needs no rate table.
    fn spec(&self) -> [u8; 12] {
        const ETHERNET: u8 = 1;
        let mut spec = [0; 12];
        spec[1] = ETHERNET;
        spec[8..].copy_from_slice(&u32::try_from(self.rate).unwrap_or(u32::MAX).to_ne_bytes());
        spec
    }

    /// `struct tc_tbf_qopt`.
    fn tbf_parameters(&self) -> Vec<u8> {
        let (peak, max_segment) = if self.rate < Limit::SEGMENT_BELOW {
            let ticks = Limit::MAX_SEGMENT * (Limit::SECOND / Limit::TICK) / Limit::PEAK + 1;
            (Limit { rate: Limit::PEAK, burst: 0 }.spec(), ticks as u32)
        } else {
            ([0; 12], 0)
        };
        let numbers = [self.port_backlog(), self.burst, max_segment].map(u32::to_ne_bytes);
        [&self.spec()[..], &peak, numbers.as_flattened()].concat()
    }

    /// Options of `tbf`.
    pub(super) fn tbf_options(&self) -> Vec<TcOption> {
        vec![option(tbf::PARAMETERS, &self.tbf_parameters()), option(tbf::RATE64, &self.rate.to_ne_bytes())]
    }

    /// Options of a class of `htb`.
    pub(super) fn class_options(&self) -> Vec<TcOption> {
        // Number of bytes that a class may send per round among classes within their rates.
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

    /// Decodes the options of `tbf`.
    pub(super) fn from_tbf(options: &[u8]) -> Option<Limit> {
        let Parameters { rate, bytes } = Parameters::read(options, tbf::PARAMETERS, tbf::RATE64)?;
        let limit = Limit { rate, burst: read_u32(&bytes, 28)? };
        Some(if bytes == limit.tbf_parameters() { limit } else { Limit::FOREIGN })
    }

    /// Decodes the options of a class of `htb`, which do not contain the queue length.
    pub(super) fn from_class(options: &[u8]) -> Option<Limit> {
        let Parameters { rate, bytes } = Parameters::read(options, htb::PARAMETERS, htb::RATE64)?;
        Some(Limit { rate, burst: read_u32(&bytes, 24)? })
    }
}

mod tbf {
    pub(crate) const PARAMETERS: u16 = 1;
    pub(crate) const RATE64: u16 = 4;
}

pub(super) mod htb {
    pub(crate) const PARAMETERS: u16 = 1;
    pub(crate) const INIT: u16 = 2;
    pub(crate) const RATE64: u16 = 6;
    pub(crate) const CEIL64: u16 = 7;
    /// `struct tc_htb_glob`: version 3, `rate2quantum` 10, and no default class: unclassified packets are not queued.
    pub(crate) const GLOBAL: [u32; 5] = [3, 10, 0, 0, 0];
}

/// The options that `tbf` and `htb` have in common.
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
        // The 64-bit attribute is present only if the rate exceeds 32 bits.
        let rate = rate.or_else(|| read_u32(&bytes, 8).map(u64::from))?;
        Some(Parameters { rate, bytes })
    }
}

pub(super) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(super) fn option(kind: u16, value: &[u8]) -> TcOption {
    TcOption::Other(DefaultNla::new(kind, value.to_vec()))
}

#[cfg(test)]
pub(super) mod tests {
    use rtnetlink::packet_core::Emitable as _;

    use super::*;

    /// The options in the format of the kernel.
    pub(in super::super) fn encoded(options: &[TcOption]) -> Vec<u8> {
        let mut bytes = vec![0; options.buffer_len()];
        options.emit(&mut bytes);
        bytes
    }

    #[test]
    fn encoded_limits_are_decoded() {
        for (bits, burst) in
            [(8, 0), (1_048_000, 12_500), (10_485_000, 1_000_000), (80_000_000_000, u32::MAX)]
        {
            let limit = Limit::new(bits, burst).unwrap();
            assert_eq!(limit.rate, bits / 8);
            assert_eq!(Limit::from_tbf(&encoded(&limit.tbf_options())), Some(limit));
            assert_eq!(Limit::from_class(&encoded(&limit.class_options())), Some(limit));
        }
        let limit = Limit::new(8_000_000, 0).unwrap();
        let mut other = limit.tbf_parameters();
        other[24] ^= 1;
        assert_eq!(Limit::from_tbf(&encoded(&[option(tbf::PARAMETERS, &other)])), Some(Limit::FOREIGN));
        assert_eq!(Limit::new(7, 1), None);
    }

    #[test]
    fn a_burst_is_raised_to_a_packet_and_the_timer_resolution() {
        let bytes = |bits, burst| {
            let limit = Limit::new(bits, burst).unwrap();
            u128::from(limit.burst) * u128::from(Limit::TICK * limit.rate) / u128::from(Limit::SECOND)
        };
        // Rounded up to one tick.
        assert_eq!(bytes(8_000_000, 1_000_000), 1_000_000);
        assert_eq!(bytes(1_000_000_000, 1_000_000), 1_000_008);
        assert_eq!(bytes(8_000_000, 100), u128::from(Limit::MAX_PACKET));
        assert_eq!(bytes(8_000_000_000, 100), 4_000_064);
    }
}
