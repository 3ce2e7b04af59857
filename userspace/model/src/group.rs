//! Endpoint groups: number, DSCP and rate limit.

use std::{fmt, mem, num::NonZeroU32};

use serde::{Deserialize, Serialize};

use crate::{
    Invalid,
    bitset::{BitWindow, Bitset},
    name::GroupKey,
};

/// The body of `/contiv.io/state/endpointGroups/<group>:<tenant>`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    /// `<group>:<tenant>`.
    pub id: String,
    /// Name of the group.
    pub group_name: String,
    /// Name of the tenant.
    pub tenant_name: String,
    /// Network of the group's endpoints.
    pub network_name: String,
    /// Number that identifies the group in policies.
    pub endpoint_group_id: i64,
    /// The network's `pktTagType`.
    pub pkt_tag_type: String,
    /// The network's `pktTag`.
    pub pkt_tag: i64,
    /// The network's `extPktTag`.
    pub ext_pkt_tag: i64,
    /// Number of endpoints in the group.
    pub ep_count: i64,
    /// DSCP of the group's packets, 0 for none.
    #[serde(rename = "DSCP")]
    pub dscp: i64,
    /// Rate limit as the user wrote it, or empty.
    #[serde(rename = "Bandwidth")]
    pub bandwidth: String,
    /// Burst of the rate limit in kilobits.
    #[serde(rename = "Burst")]
    pub burst: i64,
    /// Address pool `a-b`, or empty if the group allocates from its network.
    #[serde(rename = "IPPool")]
    pub ip_pool: String,
    /// Bitmap of the network's addresses in which addresses outside the pool are set; empty without
    /// a pool, and if the network has more than [`State::MAX_WHOLE_MAP`] addresses.
    pub epg_ip_alloc_map: Bitset,
    /// Tag configured by the user, or `<group>.<tenant>`.
    pub group_tag: String,
    /// The same bitmap for a pool in a larger network. The original does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epg_ip_alloc_window: Option<BitWindow>,
}

impl State {
    /// Addresses of the largest network for whose groups the whole bitmap is stored, as the original
    /// does. It takes 16 KB.
    pub const MAX_WHOLE_MAP: usize = 96 * 1024;

    /// The allocated addresses of the pool, and all addresses outside of it; empty without a pool.
    pub fn pool_map(&self) -> BitWindow {
        self.clone().take_pool_map()
    }

    /// Removes and returns [`State::pool_map`].
    pub fn take_pool_map(&mut self) -> BitWindow {
        let mut map = match self.epg_ip_alloc_window.take() {
            Some(window) if self.epg_ip_alloc_map.is_empty() => return window,
            // Another program, or an earlier release, has written the whole bitmap.
            _ => BitWindow::from(mem::take(&mut self.epg_ip_alloc_map)),
        };
        if map.len() > State::MAX_WHOLE_MAP {
            map.shrink();
        }
        map
    }

    /// Sets [`State::pool_map`].
    pub fn set_pool_map(&mut self, map: BitWindow) {
        (self.epg_ip_alloc_map, self.epg_ip_alloc_window) = match map.len() > State::MAX_WHOLE_MAP {
            true => (Bitset::default(), Some(map)),
            false => (map.into_bitset(), None),
        };
    }
}

/// Number of a group in policies and on switches, unique in the cluster over all tenants. 0 means
/// no group in the bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupNumber(NonZeroU32);

impl GroupNumber {
    pub(crate) const EXPECTED: &'static str = "a group's number, 1 to 4294967295";

    /// The number, never 0.
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    pub(crate) const fn non_zero(self) -> NonZeroU32 {
        self.0
    }

    /// Returns `None` if `number` is out of range.
    pub(crate) fn read(number: i64) -> Option<Self> {
        u32::try_from(number).ok()?.try_into().ok()
    }
}

impl TryFrom<u32> for GroupNumber {
    type Error = std::num::TryFromIntError;

    fn try_from(number: u32) -> Result<Self, Self::Error> {
        NonZeroU32::try_from(number).map(GroupNumber)
    }
}

impl fmt::Display for GroupNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A Differentiated Services Code Point (RFC 2474), 1 to 63. Packets of groups without one keep
/// their DSCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dscp(u8);

impl Dscp {
    /// The number, 1 to 63.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A number that is not a valid DSCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("dscp {0}: expected 1 to 63")]
pub struct InvalidDscp(u8);

impl TryFrom<u8> for Dscp {
    type Error = InvalidDscp;

    fn try_from(number: u8) -> Result<Self, InvalidDscp> {
        if (1..=63).contains(&number) { Ok(Dscp(number)) } else { Err(InvalidDscp(number)) }
    }
}

/// Rate limit of each endpoint of a group, for each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate {
    /// Average rate in bits per second.
    pub bits_per_second: u64,
    /// Burst in bytes. May be less than a packet.
    pub burst_bytes: u64,
}

/// Burst in kilobits that OVS uses by default, as the original.
const DEFAULT_BURST: u64 = 8000;

impl Rate {
    /// Parses a profile's bandwidth, such as `10 mbps`, and burst in kilobits, as the original does
    /// (INVENTORY 5.8): the first number, times a power of 1024 by the first of `g`, `m`, `k` in
    /// the text, in whole kilobits of 1000 bits. Returns `None` if the text is not a bandwidth.
    fn read(bandwidth: &str, burst: i64) -> Option<Rate> {
        let digits = bandwidth.trim_start_matches(|c: char| !c.is_ascii_digit());
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let number: u64 = digits.get(..end)?.parse().ok()?;
        let power = ["kK", "mM", "gG"].iter().rposition(|unit| bandwidth.contains(|c| unit.contains(c)))?;
        let bits = number.checked_mul(1024_u64.checked_pow(u32::try_from(power).ok()? + 1)?)?;
        let kilobits = u64::try_from(burst).ok()?;
        let kilobits = if kilobits == 0 { DEFAULT_BURST } else { kilobits };
        Some(Rate { bits_per_second: bits / 1000 * 1000, burst_bytes: kilobits.checked_mul(125)? })
    }
}

/// A group, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Last part of the key.
    pub key: GroupKey,
    /// Number of the group.
    pub number: GroupNumber,
    /// DSCP of the group's packets.
    pub dscp: Option<Dscp>,
    /// Rate limit of the group's endpoints.
    pub rate: Option<Rate>,
}

impl TryFrom<&State> for Group {
    type Error = Invalid;

    fn try_from(s: &State) -> Result<Self, Invalid> {
        let bad = |field, value: &dyn ToString, expected| {
            Invalid::new(format!("group {}", s.id), field, value.to_string(), expected)
        };
        let dscp = match s.dscp {
            0 => None,
            number => Some(
                u8::try_from(number)
                    .ok()
                    .and_then(|number| number.try_into().ok())
                    .ok_or_else(|| bad("DSCP", &number, "0 for none, or 1 to 63"))?,
            ),
        };
        let rate = match s.bandwidth.as_str() {
            "" => None,
            _ if s.burst < 0 => return Err(bad("Burst", &s.burst, "0 or more kilobits")),
            text => Some(
                Rate::read(text, s.burst)
                    .ok_or_else(|| bad("Bandwidth", &text, "a number and kbps, mbps or gbps"))?,
            ),
        };
        Ok(Group {
            key: s.id.as_str().into(),
            number: GroupNumber::read(s.endpoint_group_id)
                .ok_or_else(|| bad("endpointGroupId", &s.endpoint_group_id, GroupNumber::EXPECTED))?,
            dscp,
            // A rate below one kilobit disables the limit, as in the original.
            rate: rate.filter(|rate| rate.bits_per_second > 0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(change: impl FnOnce(&mut State)) -> State {
        let mut state: State = serde_json::from_str(include_str!("../tests/golden/group-gp.json")).unwrap();
        change(&mut state);
        state
    }

    #[test]
    fn a_body_becomes_a_group() {
        let plain = Group::try_from(&state(|_| ())).unwrap();
        assert_eq!((plain.key.as_str(), plain.dscp, plain.rate), ("gp:default", None, None));
        let group = Group::try_from(&state(|s| {
            (s.dscp, s.bandwidth, s.burst) = (46, "10 mbps".into(), 100);
        }))
        .unwrap();
        assert_eq!(group.dscp.map(Dscp::get), Some(46));
        assert_eq!(group.rate, Some(Rate { bits_per_second: 10_485_000, burst_bytes: 12_500 }));
    }

    #[test]
    fn bandwidths_are_read_as_by_the_original() {
        let kilobits = |text| Rate::read(text, 0).map(|rate| rate.bits_per_second / 1000);
        assert_eq!(kilobits("10 mbps"), Some(10_485));
        assert_eq!(kilobits("10m"), Some(10_485));
        assert_eq!(kilobits("1Gbps"), Some(1_073_741));
        assert_eq!(kilobits("500 kb"), Some(512));
        assert_eq!(kilobits("mbps"), None);
        assert_eq!(kilobits("10"), None);
        assert_eq!(kilobits("99999999999999999999g"), None);
        assert_eq!(kilobits("99999999999999999g"), None);
        assert_eq!(Rate::read("1m", 0).map(|rate| rate.burst_bytes), Some(1_000_000));
    }

    #[test]
    fn errors_name_the_invalid_field() {
        let why = |change: fn(&mut State)| Group::try_from(&state(change)).unwrap_err().to_string();
        assert_eq!(why(|s| s.dscp = 64), "group gp:default: DSCP is \"64\", expected 0 for none, or 1 to 63");
        assert!(why(|s| s.dscp = -1).contains("DSCP is \"-1\""));
        assert!(why(|s| s.bandwidth = "x".into()).contains("Bandwidth is \"x\""));
        assert!(why(|s| (s.bandwidth, s.burst) = ("1m".into(), -1)).contains("Burst is \"-1\""));
        assert!(why(|s| s.endpoint_group_id = 0).contains("endpointGroupId is \"0\""));
    }

    #[test]
    fn the_body_matches_the_original_byte_for_byte() {
        let body = include_str!("../tests/golden/group-gp.json");
        let state: State = serde_json::from_str(body).unwrap();
        assert_eq!(state.epg_ip_alloc_map.next_clear(0), Some(10));
        assert_eq!(serde_json::to_string(&state).unwrap(), body.trim_end());
    }

    /// Records of small networks have the original's form, those of large ones are as large as what is
    /// free. The original's form of those is read as well.
    #[test]
    fn the_map_of_a_pool_has_one_meaning_in_both_forms() {
        let stored = |state: &State| serde_json::to_string(state).unwrap();
        let mut small: State = serde_json::from_str(include_str!("../tests/golden/group-gp.json")).unwrap();
        let (before, map) = (small.clone(), small.take_pool_map());
        assert_eq!((map.len(), small.epg_ip_alloc_map.len()), (256, 0));
        small.set_pool_map(map.clone());
        assert_eq!((&small, &small.pool_map(), stored(&small)), (&before, &map, stored(&before)));

        let map = BitWindow::with_clear(1 << 23, 70_000..70_001);
        let mut large = state(|_| ());
        large.set_pool_map(map.clone());
        assert!(stored(&large).len() < 1000, "{}", stored(&large));
        let read: State = serde_json::from_str(&stored(&large)).unwrap();
        assert_eq!((&read, read.pool_map()), (&large, map.clone()));

        let mut whole = large.clone();
        (whole.epg_ip_alloc_map, whole.epg_ip_alloc_window) = (map.clone().into_bitset(), None);
        let mut read: State = serde_json::from_str(&stored(&whole)).unwrap();
        let read_map = read.take_pool_map();
        assert!(read_map.kept() < 10_000 && read_map == map);
        read.set_pool_map(read_map);
        assert_eq!(stored(&read), stored(&large));
    }
}
