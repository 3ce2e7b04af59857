//! An endpoint group: its number, and what its packets are marked with and held to.

use std::{fmt, num::NonZeroU32};

use serde::{Deserialize, Serialize};

use crate::{Invalid, bitset::Bitset, name::GroupKey};

/// `/contiv.io/state/endpointGroups/<group>:<tenant>`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    /// `<group>:<tenant>`.
    pub id: String,
    /// The group's name.
    pub group_name: String,
    /// The tenant's name.
    pub tenant_name: String,
    /// The network that the group's endpoints are on.
    pub network_name: String,
    /// The number that stands for the group in policies.
    pub endpoint_group_id: i64,
    /// The network's `pktTagType`.
    pub pkt_tag_type: String,
    /// The network's `pktTag`.
    pub pkt_tag: i64,
    /// The network's `extPktTag`.
    pub ext_pkt_tag: i64,
    /// Endpoints in the group.
    pub ep_count: i64,
    /// The class for the group's packets, 0 for none.
    #[serde(rename = "DSCP")]
    pub dscp: i64,
    /// The rate limit as the user wrote it, or empty.
    #[serde(rename = "Bandwidth")]
    pub bandwidth: String,
    /// The burst of the rate limit in kilobits.
    #[serde(rename = "Burst")]
    pub burst: i64,
    /// `a-b`, or empty when the group allocates from its network.
    #[serde(rename = "IPPool")]
    pub ip_pool: String,
    /// The network's addresses with everything outside the pool set; empty without a pool.
    pub epg_ip_alloc_map: Bitset,
    /// The tag given by the user, or `<group>.<tenant>`.
    pub group_tag: String,
}

/// The number that stands for a group in policies and on switches. No two groups of a cluster share one, over all
/// tenants. 0 is no group, as in the bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupNumber(NonZeroU32);

impl GroupNumber {
    pub(crate) const EXPECTED: &'static str = "a group's number, 1 to 4294967295";

    /// The number, never 0.
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// None for what can be no number of a group.
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

/// The class in a packet's header (RFC 2474), 1 to 63. Packets of groups that have none keep the class that they came
/// with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dscp(u8);

impl Dscp {
    /// The number, 1 to 63.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A number that is no class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("dscp {0}: expected 1 to 63")]
pub struct InvalidDscp(u8);

impl TryFrom<u8> for Dscp {
    type Error = InvalidDscp;

    fn try_from(number: u8) -> Result<Self, InvalidDscp> {
        if (1..=63).contains(&number) { Ok(Dscp(number)) } else { Err(InvalidDscp(number)) }
    }
}

/// What each endpoint of a group may send, and be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate {
    /// In the long run, in bits per second.
    pub bits_per_second: u64,
    /// At once, in bytes. It may be less than a packet.
    pub burst_bytes: u64,
}

/// What the switch of the original takes for a burst that is not given, in kilobits.
const DEFAULT_BURST: u64 = 8000;

impl Rate {
    /// From a profile's bandwidth, such as `10 mbps`, and burst in kilobits, as the original reads them (INVENTORY 5.8):
    /// the first number, times a power of 1024 by the first of `g`, `m`, `k` that the text has, in whole kilobits of
    /// 1000 bits. None if the text is no bandwidth.
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

/// A group as the agent sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The key's last part.
    pub key: GroupKey,
    /// Its number.
    pub number: GroupNumber,
    /// How its packets are marked.
    pub dscp: Option<Dscp>,
    /// What its endpoints may send.
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
            // Too little to be a number of kilobits switches the limit off, as in the original.
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
    fn what_is_wrong_is_named() {
        let why = |change: fn(&mut State)| Group::try_from(&state(change)).unwrap_err().to_string();
        assert_eq!(why(|s| s.dscp = 64), "group gp:default: DSCP is \"64\", expected 0 for none, or 1 to 63");
        assert!(why(|s| s.dscp = -1).contains("DSCP is \"-1\""));
        assert!(why(|s| s.bandwidth = "x".into()).contains("Bandwidth is \"x\""));
        assert!(why(|s| (s.bandwidth, s.burst) = ("1m".into(), -1)).contains("Burst is \"-1\""));
        assert!(why(|s| s.endpoint_group_id = 0).contains("endpointGroupId is \"0\""));
    }

    #[test]
    fn the_body_is_the_originals_to_the_byte() {
        let body = include_str!("../tests/golden/group-gp.json");
        let state: State = serde_json::from_str(body).unwrap();
        assert_eq!(state.epg_ip_alloc_map.next_clear(0), Some(10));
        assert_eq!(serde_json::to_string(&state).unwrap(), body.trim_end());
    }
}
