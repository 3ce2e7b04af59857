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
    /// the text, in whole kilobits of 1000 bits. A number that is too large is the largest one.
    ///
    /// Returns `None`, which is no limit, if the text has no number or no unit, and for less than
    /// one kilobit. A negative burst is as none.
    fn read(bandwidth: &str, burst: i64) -> Option<Rate> {
        let digits = bandwidth.trim_start_matches(|c: char| !c.is_ascii_digit());
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let digits = digits.get(..end).filter(|digits| !digits.is_empty())?;
        // Digits that cannot be parsed are a number that is too large.
        let number: u64 = digits.parse().unwrap_or(u64::MAX);
        let power = ["kK", "mM", "gG"].iter().rposition(|unit| bandwidth.contains(|c| unit.contains(c)))?;
        let bits = number.saturating_mul(1024_u64.saturating_pow(u32::try_from(power).ok()? + 1));
        let kilobits = u64::try_from(burst).ok().filter(|kilobits| *kilobits > 0).unwrap_or(DEFAULT_BURST);
        let rate = Rate { bits_per_second: bits / 1000 * 1000, burst_bytes: kilobits.saturating_mul(125) };
        Some(rate).filter(|rate| rate.bits_per_second > 0)
    }
}

/// A group, validated. netmaster accepts the settings of profiles that say nothing, such as DSCP -1 or
/// the bandwidth `10 {bps`, as the original does. They are as none, so that a profile of a tenant
/// cannot make the record of a group invalid, on which forwarding depends.
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
        let number = GroupNumber::read(s.endpoint_group_id).ok_or_else(|| {
            let object = format!("group {}", s.id);
            Invalid::new(object, "endpointGroupId", s.endpoint_group_id, GroupNumber::EXPECTED)
        })?;
        Ok(Group {
            key: s.id.as_str().into(),
            number,
            dscp: u8::try_from(s.dscp).ok().and_then(|dscp| dscp.try_into().ok()),
            rate: Rate::read(&s.bandwidth, s.burst),
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
        for none in ["", "mbps", "10", "0m", "10 {bps", "10 1", "10 }"] {
            assert_eq!(kilobits(none), None, "{none}");
        }
        let largest = Some(u64::MAX / 1000);
        for large in ["99999999999999999999 gbps", "99999999999999999g"] {
            assert_eq!(kilobits(large), largest, "{large}");
        }
        let bytes = |burst| Rate::read("1m", burst).map(|rate| rate.burst_bytes);
        assert_eq!((bytes(0), bytes(-5), bytes(2)), (Some(1_000_000), Some(1_000_000), Some(250)));
        assert_eq!(bytes(i64::MAX), Some(u64::MAX));
    }

    /// netmaster accepts them.
    #[test]
    fn settings_that_say_nothing_are_none() {
        for (dscp, bandwidth, burst) in [(-1, "10 {bps", -5), (64, "10 1", 0), (i64::MIN, "x", i64::MIN)] {
            let state = state(|s| (s.dscp, s.bandwidth, s.burst) = (dscp, bandwidth.into(), burst));
            let group = Group::try_from(&state).unwrap();
            assert_eq!((group.dscp, group.rate), (None, None), "{dscp} {bandwidth} {burst}");
        }
    }

    #[test]
    fn a_group_needs_a_number() {
        let why = Group::try_from(&state(|s| s.endpoint_group_id = 0)).unwrap_err().to_string();
        let expected = "expected a group's number, 1 to 4294967295";
        assert_eq!(why, format!("group gp:default: endpointGroupId is \"0\", {expected}"));
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
