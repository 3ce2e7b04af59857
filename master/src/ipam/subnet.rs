//! Subnets in the notation of the API.

use std::net::{Ipv4Addr, Ipv6Addr};

use contiv_model::{bitset::Bitset, network::State};

use super::Pool;
use crate::problem::Problem;

/// An IPv4 subnet and the range of it that is allocated from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// The network address.
    pub base: Ipv4Addr,
    pub len: u32,
    /// First address as written: 77 for `10.3.0.77/24`.
    pub first: Ipv4Addr,
    pub last: Ipv4Addr,
    /// Written as `first-last/len`: addresses outside the range are not allocated.
    ranged: bool,
}

const MIN_PREFIX_LEN: u32 = 8;

impl Subnet {
    /// Parses `address/len` or `first-last/len`.
    pub fn parse(text: &str) -> Result<Subnet, Problem> {
        let bad = || Problem::invalid("Network subnet format not valid");
        let (range, len) = text.rsplit_once('/').ok_or_else(bad)?;
        let len: u32 = len.parse().ok().filter(|len| (1..=32).contains(len)).ok_or_else(bad)?;
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (first, Some(last)),
            None => (range, None),
        };
        let first: Ipv4Addr = first.parse().map_err(|_| bad())?;
        let mask = u32::MAX << (32 - len);
        let base = u32::from(first) & mask;
        let end = base | !mask;
        let last = match last {
            Some(text) => text.parse().map_err(|_| bad())?,
            None => Ipv4Addr::from(end),
        };
        if last < first || u32::from(last) > end {
            return Err(bad());
        }
        Ok(Subnet { base: base.into(), len, first, last, ranged: range.contains('-') })
    }

    /// Subnet of an existing network, from its state. The state does not distinguish `10.3.0.77/24`
    /// from `10.3.0.77-10.3.0.255/24`; the first is assumed.
    pub fn of_state(state: &State) -> Result<Subnet, Problem> {
        let whole = Subnet::parse(&format!("{}/{}", state.subnet_ip, state.subnet_len))?;
        match Subnet::parse(&format!("{}/{}", state.ip_addr_range, state.subnet_len)) {
            Ok(range) if range.base == whole.base => Ok(Subnet { ranged: range.last != whole.last, ..range }),
            _ => Ok(whole),
        }
    }

    /// Number of addresses, including the first and the last.
    pub fn size(&self) -> usize {
        1 << (32 - self.len)
    }

    /// Address of the host number.
    pub fn address(&self, host: usize) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.base) | host as u32)
    }

    /// Host number of an address. Errors have the original's texts.
    pub fn host(&self, address: &str) -> Result<usize, Problem> {
        self.check_len()?;
        let ip: Ipv4Addr = address
            .parse()
            .map_err(|_| Problem::invalid(format!("unable to convert hostIP {address} to uint32")))?;
        let host = u32::from(ip).wrapping_sub(u32::from(self.base)) as usize;
        if host >= self.size() {
            return Err(Problem::invalid(format!(
                "hostIP {address} is exceeding beyond subnet {self}, hostID {host}"
            )));
        }
        Ok(host)
    }

    pub fn contains(&self, ip: Ipv4Addr) -> bool {
        u32::from(ip).wrapping_sub(u32::from(self.base)) < self.size() as u32
    }

    /// Whether the host number is that of the subnet address, the broadcast address or the gateway.
    pub fn is_reserved(&self, host: usize, gateway: &str) -> bool {
        host == 0 || host + 1 == self.size() || self.host(gateway).is_ok_and(|gateway| gateway == host)
    }

    /// Whether the host number is outside the range that is allocated from.
    pub fn is_outside_range(&self, host: usize) -> bool {
        let ip = self.address(host);
        self.ranged && !(self.first..=self.last).contains(&ip)
    }

    /// Bitmap of a network without endpoints.
    pub fn initial_bitmap(&self) -> Result<Bitset, Problem> {
        self.check_len()?;
        let mut bits = Bitset::new(self.size());
        bits.insert_range(0..self.size());
        if let Some((first, last)) = self.allocation_range() {
            bits.remove_range(first..last + 1);
        }
        Ok(bits)
    }

    /// Number of free addresses of a network without endpoints and gateway.
    pub fn capacity(&self) -> Result<usize, Problem> {
        self.check_len()?;
        Ok(self.allocation_range().map_or(0, |(first, last)| last - first + 1))
    }

    /// First and last host number that addresses are allocated from: never the subnet and the broadcast
    /// address.
    pub fn allocation_range(&self) -> Option<(usize, usize)> {
        let (first, last) = match self.ranged {
            true => (self.host_of(self.first), self.host_of(self.last)),
            false => (0, self.size() - 1),
        };
        self.without_ends(first, last)
    }

    /// The host numbers from `first` to `last` without the subnet and the broadcast address.
    fn without_ends(&self, first: usize, last: usize) -> Option<(usize, usize)> {
        let (first, last) = (first.max(1), last.min(self.size().saturating_sub(2)));
        (first <= last).then_some((first, last))
    }

    fn check_len(&self) -> Result<(), Problem> {
        match self.len {
            MIN_PREFIX_LEN.. => Ok(()),
            len => Err(Problem::invalid(format!("subnet length {len} not supported"))),
        }
    }

    /// Whether the written ranges share an address.
    pub fn overlaps(&self, other: &Subnet) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    fn host_of(&self, ip: Ipv4Addr) -> usize {
        (u32::from(ip) - u32::from(self.base)) as usize
    }

    /// `first-last`, as in the store.
    pub fn range(&self) -> String {
        format!("{}-{}", self.first, self.last)
    }

    /// Formats addresses as `a-b, c`.
    fn list(&self, ranges: impl Iterator<Item = (usize, usize)>) -> String {
        ranges
            .map(|(a, b)| match a == b {
                true => self.address(a).to_string(),
                false => format!("{}-{}", self.address(a), self.address(b)),
            })
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Report of allocated addresses from `first` to `last`, without the subnet and broadcast
    /// address.
    pub fn allocated(&self, pool: &Pool, first: Ipv4Addr, last: Ipv4Addr) -> String {
        let hosts = self.without_ends(self.host_of(first), self.host_of(last));
        self.list(hosts.into_iter().flat_map(move |(first, last)| pool.allocated_ranges(first, last)))
    }

    /// Report of free addresses.
    pub fn available(&self, pool: &Pool) -> String {
        self.list(pool.free_ranges())
    }
}

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.base, self.len)
    }
}

/// An IPv6 subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet6 {
    /// The network address.
    pub base: Ipv6Addr,
    /// Prefix length, 0 to 128; 0 for a network without IPv6.
    pub len: u32,
}

/// Shortest prefix length that the original allocates from.
const MIN_PREFIX_LEN_V6: u32 = 16;

impl Subnet6 {
    pub fn parse(text: &str) -> Option<Subnet6> {
        let (address, len) = text.rsplit_once('/')?;
        let len: u32 = len.parse().ok().filter(|len| *len <= 128)?;
        let bits = u128::from(address.parse::<Ipv6Addr>().ok()?);
        let subnet = Subnet6 { base: Ipv6Addr::UNSPECIFIED, len };
        Some(Subnet6 { base: (bits & !subnet.host_mask()).into(), len })
    }

    /// Subnet of an existing network, from its state.
    pub fn of_state(state: &State) -> Option<Subnet6> {
        Subnet6::parse(&format!("{}/{}", state.ipv6_subnet_ip, state.ipv6_subnet_len))
    }

    /// Mask of the host bits.
    pub fn host_mask(&self) -> u128 {
        u128::MAX.checked_shr(self.len).unwrap_or(0)
    }

    pub fn address(&self, host: u128) -> Ipv6Addr {
        (u128::from(self.base) | host).into()
    }

    pub fn contains(&self, ip: Ipv6Addr) -> bool {
        u128::from(ip) & !self.host_mask() == u128::from(self.base)
    }

    pub fn overlaps(&self, other: &Subnet6) -> bool {
        self.contains(other.base) || other.contains(self.base)
    }

    /// Whether the host number is that of the gateway, or of the subnet's own address, which all its routers have
    /// (RFC 4291, section 2.6.1).
    pub fn is_reserved(&self, host: u128, gateway: &str) -> bool {
        host == 0 || self.is_gateway(host, gateway)
    }

    pub fn is_gateway(&self, host: u128, gateway: &str) -> bool {
        self.host(gateway, false).is_ok_and(|gateway| gateway == host)
    }

    /// Host number of an address. With `inside`, fails if the subnet does not contain the address.
    pub fn host(&self, address: &str, inside: bool) -> Result<u128, Problem> {
        if self.len < MIN_PREFIX_LEN_V6 {
            return Err(Problem::invalid(format!("subnet length {} not supported", self.len)));
        }
        let ip: Ipv6Addr =
            address.parse().map_err(|_| Problem::invalid(format!("{address} is not an IPv6 address")))?;
        if inside && !self.contains(ip) {
            return Err(Problem::invalid(format!("hostIP {address} is exceeding beyond subnet {self}")));
        }
        Ok(u128::from(ip) & self.host_mask())
    }
}

impl std::fmt::Display for Subnet6 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.base, self.len)
    }
}

/// A host number in the store's notation: an address with the prefix cleared.
pub fn host_key(host: u128) -> String {
    Ipv6Addr::from(host).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn subnets_are_parsed() {
        let plain = Subnet::parse("10.1.1.0/24").unwrap();
        assert_eq!((plain.range().as_str(), plain.size()), ("10.1.1.0-10.1.1.255", 256));
        let bits = Subnet::parse("10.3.0.77/24").unwrap();
        assert_eq!(
            (bits.base.to_string().as_str(), bits.range().as_str()),
            ("10.3.0.0", "10.3.0.77-10.3.0.255")
        );
        assert_eq!(bits.initial_bitmap().unwrap().next_clear(0), Some(1));
        let ranged = Subnet::parse("10.2.0.10-10.2.0.19/24").unwrap();
        let map = ranged.initial_bitmap().unwrap();
        assert_eq!((map.next_clear(0), map.count()), (Some(10), 246));
        for bad in ["10.1.2.50-10.1.2.40/24", "10.1.2.50-10.1.3.40/24"] {
            assert_eq!(Subnet::parse(bad).unwrap_err().text, "Network subnet format not valid");
        }
        assert_eq!(
            Subnet::parse("10.0.0.0/7").unwrap().initial_bitmap().unwrap_err().text,
            "subnet length 7 not supported"
        );
        assert_eq!(Subnet::parse("10.0.0.0/31").unwrap().initial_bitmap().unwrap().next_clear(0), None);
    }

    #[test]
    fn addresses_outside_are_rejected_with_the_originals_texts() {
        let subnet = Subnet::parse("10.1.2.0/24").unwrap();
        let text = |address| subnet.host(address).unwrap_err().text;
        assert_eq!(text("10.1.3.1"), "hostIP 10.1.3.1 is exceeding beyond subnet 10.1.2.0/24, hostID 257");
        assert_eq!(text("xx"), "unable to convert hostIP xx to uint32");
        assert_eq!(subnet.host("10.1.2.254"), Ok(254));
    }

    #[test]
    fn reports_list_ranges() {
        let subnet = Subnet::parse("10.1.1.0/24").unwrap();
        let mut map = subnet.initial_bitmap().unwrap();
        map.insert(254);
        map.insert_range(1..4);
        let pool = Pool::new(map);
        assert_eq!(subnet.allocated(&pool, subnet.first, subnet.last), "10.1.1.1-10.1.1.3, 10.1.1.254");
        assert_eq!(subnet.available(&pool), "10.1.1.4-10.1.1.253");
    }

    proptest! {
        /// The subnet and the broadcast address, and what is outside the range, are never allocated.
        #[test]
        fn empty_networks_have_the_same_free_addresses_one_by_one(
            len in 22u32..=32,
            range in prop::option::of((0u32..1024, 0u32..1024)),
        ) {
            let size = 1 << (32 - len);
            let base = u32::from(Ipv4Addr::new(10, 1, 4, 0));
            let text = match range {
                Some((a, b)) => {
                    let ends = [a % size, b % size];
                    let (first, last) = (base + ends[0].min(ends[1]), base + ends[0].max(ends[1]));
                    format!("{}-{}/{len}", Ipv4Addr::from(first), Ipv4Addr::from(last))
                }
                None => format!("10.1.4.0/{len}"),
            };
            let subnet = Subnet::parse(&text).unwrap();
            let free = |host: &usize| *host != 0 && *host + 1 != subnet.size() && !subnet.is_outside_range(*host);
            let expected: Vec<usize> = (0..subnet.size()).filter(free).collect();
            let bits = subnet.initial_bitmap().unwrap();
            prop_assert_eq!((0..subnet.size()).filter(|n| !bits.contains(*n)).collect::<Vec<_>>(), expected.clone());
            prop_assert_eq!(subnet.capacity(), Ok(expected.len()));
            let pool = Pool::new(bits);
            prop_assert_eq!(pool.free_count(), expected.len());
            let one_by_one = (0..subnet.size()).filter(|n| *n != 0 && *n + 1 != subnet.size() && !expected.contains(n));
            let one_by_one = one_by_one.filter(|n| (subnet.first..=subnet.last).contains(&subnet.address(*n)));
            let listed = subnet.list(crate::tags::ranges(one_by_one));
            prop_assert_eq!(subnet.allocated(&pool, subnet.first, subnet.last), listed);
        }
    }

    #[test]
    fn ranges_overlap_as_written() {
        let overlaps = |a: &str, b: &str| Subnet::parse(a).unwrap().overlaps(&Subnet::parse(b).unwrap());
        assert!(overlaps("10.1.1.0/24", "10.1.1.128/25"));
        assert!(overlaps("10.1.1.0/24", "10.0.0.0/7"));
        assert!(!overlaps("10.1.1.10-10.1.1.20/24", "10.1.1.30-10.1.1.40/24"));
        assert!(!overlaps("10.1.1.5-10.1.1.9/24", "10.1.1.10/24"));
    }

    #[test]
    fn ipv6_subnets() {
        let subnet = Subnet6::parse("2001:db8:1::77/64").unwrap();
        assert_eq!(subnet.to_string(), "2001:db8:1::/64");
        assert_eq!(subnet.host("2001:db8:1::100", true), Ok(0x100));
        assert!(subnet.host("2001:db8:2::100", true).is_err());
        assert_eq!(subnet.host("2001:db8:2::100", false), Ok(0x100));
        assert_eq!(
            Subnet6 { base: Ipv6Addr::UNSPECIFIED, len: 0 }.host("::1", false).unwrap_err().text,
            "subnet length 0 not supported"
        );
        assert_eq!(host_key(1), "::1");
    }
}
