//! OPEN messages: what the speaker offers, and what both sides agree on.

use std::net::Ipv4Addr;

use bytes::Bytes;
use rustbgpd_wire::{
    Capability, GracefulRestartFamily, NotificationCode, NotificationMessage, OpenMessage, Safi,
    constants::AS_TRANS, notification::open_subcode,
};

use crate::{Config, Failure, Family};

/// What both sides agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// AS number of the neighbor.
    pub peer_as: u32,
    /// BGP identifier of the neighbor.
    pub router_id: Ipv4Addr,
    /// Hold time in seconds: the smaller proposal. 0 means no keepalives.
    pub hold_time: u16,
    /// Whether AS numbers are encoded in 4 octets (RFC 6793).
    pub four_octet_as: bool,
    /// Families that both sides support.
    pub families: Vec<Family>,
    /// Whether the neighbor resends its routes on request (RFC 2918).
    pub route_refresh: bool,
    /// Graceful restart of the neighbor, if both sides support it.
    pub graceful_restart: Option<GracefulRestart>,
}

/// Graceful restart capability of the neighbor (RFC 4724 section 3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GracefulRestart {
    /// Whether the neighbor has restarted.
    pub restarted: bool,
    /// Time in seconds that its routes are to be kept.
    pub restart_time: u16,
    /// Families whose routes are to be kept, with the bit "Forwarding State".
    pub families: Vec<(Family, bool)>,
}

impl Negotiated {
    /// Interval of keepalives in seconds: a third of the hold time (RFC 4271 section 4.4).
    pub fn keepalive_interval(&self) -> u16 {
        self.hold_time / 3
    }
}

/// The speaker's OPEN. `restarted` sets the bit "Restart State".
pub(crate) fn build(config: &Config, restarted: bool) -> OpenMessage {
    let mut capabilities: Vec<_> = Family::ALL
        .iter()
        .map(|family| Capability::MultiProtocol { afi: family.afi(), safi: Safi::Unicast })
        .collect();
    capabilities.push(Capability::RouteRefresh);
    if config.restart_time > 0 {
        let families = Family::ALL.iter().map(|family| GracefulRestartFamily {
            afi: family.afi(),
            safi: Safi::Unicast,
            // Forwarding state outlives the speaker.
            forwarding_preserved: true,
        });
        capabilities.push(Capability::GracefulRestart {
            restart_state: restarted,
            notification: false,
            restart_time: config.restart_time,
            families: families.collect(),
        });
    }
    capabilities.push(Capability::FourOctetAs { asn: config.local_as });
    OpenMessage {
        version: 4,
        my_as: u16::try_from(config.local_as).unwrap_or(AS_TRANS),
        hold_time: config.hold_time,
        bgp_identifier: config.router_id,
        capabilities,
    }
}

/// A refused OPEN: the NOTIFICATION to send, and the failure to show.
pub(crate) type Refusal = Box<(NotificationMessage, Failure)>;

/// Checks the neighbor's OPEN (RFC 4271 section 6.2).
pub(crate) fn negotiate(config: &Config, open: &OpenMessage) -> Result<Negotiated, Refusal> {
    let neighbor = config.neighbor.ip();
    let refuse = |subcode, data: &[u8], failure| {
        let data = Bytes::copy_from_slice(data);
        Err(Box::new((NotificationMessage::new(NotificationCode::OpenMessage, subcode, data), failure)))
    };
    let refused = |cause: String| Failure::Open { neighbor, cause };

    let received = open.four_byte_as();
    if received != config.neighbor_as {
        let failure = Failure::BadPeerAs { neighbor, expected: config.neighbor_as, received };
        return refuse(open_subcode::BAD_PEER_AS, &[], failure);
    }
    if matches!(open.hold_time, 1 | 2) {
        let cause = format!("hold time of {} s; set it to 3 s or more at the neighbor", open.hold_time);
        return refuse(open_subcode::UNACCEPTABLE_HOLD_TIME, &[], refused(cause));
    }
    let router_id = open.bgp_identifier;
    // RFC 6286: unique within an AS.
    if router_id.is_unspecified() || (config.is_internal() && router_id == config.router_id) {
        let cause =
            format!("BGP identifier {router_id}; set a router ID at the neighbor that is unique in the AS");
        return refuse(open_subcode::BAD_BGP_IDENTIFIER, &[], refused(cause));
    }
    let families = common_families(open);
    if families.is_empty() {
        let cause = "no common address family; enable IPv4 or IPv6 unicast at the neighbor".to_owned();
        // Capability code 1, length 4, AFI 1, reserved, SAFI 1 (RFC 5492 section 3, RFC 4760 section 8).
        return refuse(open_subcode::UNSUPPORTED_CAPABILITY, &[1, 4, 0, 1, 0, 1], refused(cause));
    }
    let capability = |wanted: fn(&Capability) -> bool| open.capabilities.iter().any(wanted);
    Ok(Negotiated {
        peer_as: received,
        router_id,
        hold_time: open.hold_time.min(config.hold_time),
        four_octet_as: capability(|found| matches!(found, Capability::FourOctetAs { .. })),
        route_refresh: capability(|found| matches!(found, Capability::RouteRefresh)),
        graceful_restart: graceful_restart(config, open),
        families,
    })
}

/// A neighbor without the multiprotocol capability speaks IPv4 (RFC 4760 section 8).
fn common_families(open: &OpenMessage) -> Vec<Family> {
    let offered: Vec<_> = open
        .capabilities
        .iter()
        .filter_map(|capability| match capability {
            Capability::MultiProtocol { afi, safi } => Some(Family::from_wire(*afi, *safi)),
            _ => None,
        })
        .collect();
    if offered.is_empty() {
        return vec![Family::Ipv4];
    }
    Family::ALL.into_iter().filter(|family| offered.contains(&Some(*family))).collect()
}

/// Of several capabilities the last one counts (RFC 4724 section 3).
fn graceful_restart(config: &Config, open: &OpenMessage) -> Option<GracefulRestart> {
    if config.restart_time == 0 {
        return None;
    }
    open.capabilities.iter().rev().find_map(|capability| match capability {
        Capability::GracefulRestart { restart_state, restart_time, families, .. } => {
            let family = |family: &GracefulRestartFamily| {
                Some((Family::from_wire(family.afi, family.safi)?, family.forwarding_preserved))
            };
            Some(GracefulRestart {
                restarted: *restart_state,
                restart_time: *restart_time,
                families: families.iter().filter_map(family).collect(),
            })
        }
        _ => None,
    })
}
