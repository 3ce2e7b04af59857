//! UPDATE messages: from bytes to routes and back.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use bytes::Bytes;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rustbgpd_wire::{
    AsPath, AsPathSegment, EncodeError, ErrorDisposition, Ipv4NlriEntry, Ipv4Prefix, Ipv4UnicastMode,
    Ipv6Prefix, Message, MpReachNlri, MpUnreachNlri, NlriEntry, NotificationCode, NotificationMessage,
    Origin as WireOrigin, PathAttribute, Prefix, Safi, UpdateMessage,
    validate::{validate_as_path_ceiling, validate_update_attributes},
};

use crate::{Attributes, Config, Family, Negotiated, Origin};

/// Prefixes of one UPDATE: the longest attributes and this many prefixes fit in 4096 bytes.
const PREFIXES_PER_MESSAGE: usize = 200;
/// Bounds the memory of a route. Longer paths do not occur in the Internet.
const MAX_AS_PATH: u16 = 255;
/// LOCAL_PREF for internal neighbors.
const LOCAL_PREF: u32 = 100;
/// Prefixes that are not forwarded to by unicast on a network: loopback, link-local, multicast, broadcast. Networks use the rest of
/// 240.0.0.0/4, and the kernel forwards to it.
const MARTIANS: [IpNet; 7] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::BROADCAST, 32)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8)),
];

/// Content of an UPDATE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Update {
    /// Withdrawn and announced prefixes.
    Routes {
        withdrawn: Vec<IpNet>,
        announced: Vec<(IpNet, IpAddr)>,
        attributes: Option<Arc<Attributes>>,
        /// Announced prefixes that are ignored: semantically incorrect (RFC 4271 section 6.3).
        ignored: Vec<IpNet>,
        /// Warning that announced prefixes are treated as withdrawn (RFC 7606).
        malformed: Option<String>,
    },
    /// The neighbor has sent all of its routes of the family (RFC 4724 section 2).
    EndOfRib(Family),
}

/// Decodes an UPDATE (RFC 4271 section 6.3, as revised by RFC 7606).
///
/// The error closes the session.
pub(crate) fn decode(
    message: &UpdateMessage,
    negotiated: &Negotiated,
    config: &Config,
) -> Result<Update, (NotificationMessage, String)> {
    let internal = config.is_internal();
    let parsed = message.parse_revised(negotiated.four_octet_as, internal, false, &[]).map_err(|error| {
        let (code, subcode, data) = error.to_notification();
        (NotificationMessage::new(code, subcode, data), error.to_string())
    })?;
    let (update, mut malformed) = (parsed.update, vec![]);
    for attribute in parsed.malformed {
        match attribute.disposition {
            ErrorDisposition::AttributeDiscard => {}
            ErrorDisposition::TreatAsWithdraw => malformed.push(attribute.error.to_string()),
            ErrorDisposition::SessionReset => {
                let (code, subcode, data) = attribute.error.to_notification();
                return Err((NotificationMessage::new(code, subcode, data), attribute.error.to_string()));
            }
        }
    }
    if message.withdrawn_routes.is_empty() && message.path_attributes.is_empty() && message.nlri.is_empty() {
        return Ok(Update::EndOfRib(Family::Ipv4));
    }
    if let [PathAttribute::MpUnreachNlri(unreach)] = &update.attributes[..]
        && malformed.is_empty()
        && unreach.withdrawn.is_empty()
        && message.withdrawn_routes.is_empty()
        && message.nlri.is_empty()
        && let Some(family) = Family::from_wire(unreach.afi, unreach.safi)
    {
        return Ok(Update::EndOfRib(family));
    }

    let supported =
        |family: Option<Family>| family.is_some_and(|family| negotiated.families.contains(&family));
    let ipv4 = negotiated.families.contains(&Family::Ipv4);
    let body = |entries: &[Ipv4NlriEntry]| -> Vec<IpNet> {
        entries.iter().filter(|_| ipv4).filter_map(|entry| network(&Prefix::V4(entry.prefix))).collect()
    };
    let mut withdrawn = body(&update.withdrawn);
    let mut announced: Vec<(IpNet, Option<IpAddr>)> =
        body(&update.announced).into_iter().map(|prefix| (prefix, None)).collect();
    let mut next_hop = None;
    for attribute in &update.attributes {
        match attribute {
            PathAttribute::NextHop(address) => next_hop = Some(IpAddr::V4(*address)),
            PathAttribute::MpReachNlri(reach) if supported(Family::from_wire(reach.afi, reach.safi)) => {
                let prefixes = reach.announced.iter().filter_map(|entry| network(&entry.prefix));
                announced.extend(prefixes.map(|prefix| (prefix, Some(reach.next_hop))));
            }
            PathAttribute::MpUnreachNlri(unreach)
                if supported(Family::from_wire(unreach.afi, unreach.safi)) =>
            {
                withdrawn.extend(unreach.withdrawn.iter().filter_map(|entry| network(&entry.prefix)));
            }
            _ => {}
        }
    }
    let has_body = !update.announced.is_empty();
    let has_routes = has_body
        || update.attributes.iter().any(
            |attribute| matches!(attribute, PathAttribute::MpReachNlri(reach) if !reach.announced.is_empty()),
        );
    let valid = validate_update_attributes(&update.attributes, has_routes, has_body, !internal)
        .and_then(|()| validate_as_path_ceiling(&update.attributes, MAX_AS_PATH));
    if let Err(error) = valid {
        let cause = format!("UPDATE error {}", error.subcode);
        match error.disposition {
            ErrorDisposition::AttributeDiscard => {}
            ErrorDisposition::TreatAsWithdraw => malformed.push(cause),
            ErrorDisposition::SessionReset => {
                let data = Bytes::from(error.data);
                let notification =
                    NotificationMessage::new(NotificationCode::UpdateMessage, error.subcode, data);
                return Err((notification, cause));
            }
        }
    }
    if malformed.is_empty() {
        malformed.extend(announced.iter().find_map(|(prefix, own)| unusable(prefix, own.or(next_hop))));
    }
    if !malformed.is_empty() {
        withdrawn.extend(announced.into_iter().map(|(prefix, _)| prefix));
        let cause = malformed.join(", ");
        let malformed = Some(format!("UPDATE treated as withdrawal (RFC 7606): {cause}"));
        return Ok(Update::Routes {
            withdrawn,
            announced: vec![],
            attributes: None,
            ignored: vec![],
            malformed,
        });
    }
    let announced = announced.into_iter().filter_map(|(prefix, own)| Some((prefix, own.or(next_hop)?)));
    let (ignored, announced): (Vec<_>, Vec<_>) = announced.partition(|(prefix, _)| is_martian(prefix));
    Ok(Update::Routes {
        withdrawn,
        announced,
        attributes: Some(Arc::new(attributes(&update.attributes, internal))),
        ignored: ignored.into_iter().map(|(prefix, _)| prefix).collect(),
        malformed: None,
    })
}

/// Whether a prefix is a part of one of [`MARTIANS`].
fn is_martian(prefix: &IpNet) -> bool {
    MARTIANS.iter().any(|martian| martian.contains(prefix))
}

/// Why a prefix cannot be routed to its next hop. The speaker does not offer next hops of the other family (RFC 8950).
fn unusable(prefix: &IpNet, next_hop: Option<IpAddr>) -> Option<String> {
    match next_hop {
        None => Some("no next hop".to_owned()),
        Some(next_hop) if next_hop.is_ipv6() != prefix.addr().is_ipv6() => {
            Some(format!("next hop {next_hop} of {prefix} is of another address family"))
        }
        Some(_) => None,
    }
}

fn network(prefix: &Prefix) -> Option<IpNet> {
    match prefix {
        Prefix::V4(prefix) => Some(Ipv4Net::new(prefix.addr, prefix.len).ok()?.trunc().into()),
        Prefix::V6(prefix) => Some(Ipv6Net::new(prefix.addr, prefix.len).ok()?.trunc().into()),
    }
}

fn attributes(found: &[PathAttribute], internal: bool) -> Attributes {
    let mut attributes = Attributes {
        origin: Origin::Incomplete,
        as_path: vec![],
        as_path_length: 0,
        med: None,
        local_pref: None,
    };
    for attribute in found {
        match attribute {
            PathAttribute::Origin(WireOrigin::Igp) => attributes.origin = Origin::Igp,
            PathAttribute::Origin(WireOrigin::Egp) => attributes.origin = Origin::Egp,
            PathAttribute::AsPath(path) => {
                attributes.as_path = path.asns().collect();
                attributes.as_path_length = path.len();
            }
            PathAttribute::Med(med) => attributes.med = Some(*med),
            // RFC 4271 section 5.1.5: ignored from external neighbors.
            PathAttribute::LocalPref(preference) if internal => attributes.local_pref = Some(*preference),
            _ => {}
        }
    }
    attributes
}

/// Messages that announce prefixes of one family; none if there is no next hop for the family.
pub(crate) fn announce(
    config: &Config,
    negotiated: &Negotiated,
    next_hop_v6: Option<Ipv6Addr>,
    (family, prefixes): (Family, &[IpNet]),
) -> Result<Vec<Message>, EncodeError> {
    let segments = match config.is_internal() {
        true => vec![],
        false => vec![AsPathSegment::AsSequence(vec![config.local_as])],
    };
    let common = [PathAttribute::Origin(WireOrigin::Igp), PathAttribute::AsPath(AsPath { segments })];
    let local_pref = config.is_internal().then_some(PathAttribute::LocalPref(LOCAL_PREF));
    let mut messages = vec![];
    for chunk in prefixes.chunks(PREFIXES_PER_MESSAGE) {
        let mut attributes = common.to_vec();
        let mut announced = vec![];
        match (family, next_hop_v6) {
            (Family::Ipv4, _) => {
                attributes.push(PathAttribute::NextHop(config.next_hop));
                announced = body(chunk);
            }
            (Family::Ipv6, Some(next_hop)) => attributes.push(reach(next_hop, chunk)),
            (Family::Ipv6, None) => return Ok(vec![]),
        }
        attributes.extend(local_pref.clone());
        messages.push(message(negotiated, &announced, &[], &attributes)?);
    }
    Ok(messages)
}

/// Messages that withdraw prefixes of one family.
pub(crate) fn withdraw(
    negotiated: &Negotiated,
    family: Family,
    prefixes: &[IpNet],
) -> Result<Vec<Message>, EncodeError> {
    prefixes
        .chunks(PREFIXES_PER_MESSAGE)
        .map(|chunk| match family {
            Family::Ipv4 => message(negotiated, &[], &body(chunk), &[]),
            Family::Ipv6 => message(negotiated, &[], &[], &[unreach(family, chunk)]),
        })
        .collect()
}

/// The End-of-RIB marker of a family.
pub(crate) fn end_of_rib(negotiated: &Negotiated, family: Family) -> Result<Message, EncodeError> {
    match family {
        Family::Ipv4 => message(negotiated, &[], &[], &[]),
        Family::Ipv6 => message(negotiated, &[], &[], &[unreach(family, &[])]),
    }
}

fn message(
    negotiated: &Negotiated,
    announced: &[Ipv4NlriEntry],
    withdrawn: &[Ipv4NlriEntry],
    attributes: &[PathAttribute],
) -> Result<Message, EncodeError> {
    let four_octets = negotiated.four_octet_as;
    UpdateMessage::try_build(announced, withdrawn, attributes, four_octets, false, Ipv4UnicastMode::Body)
        .map(Message::Update)
}

fn body(prefixes: &[IpNet]) -> Vec<Ipv4NlriEntry> {
    let entry = |prefix: &IpNet| match prefix {
        IpNet::V4(net) => {
            Some(Ipv4NlriEntry { path_id: 0, prefix: Ipv4Prefix::new(net.addr(), net.prefix_len()) })
        }
        IpNet::V6(_) => None,
    };
    prefixes.iter().filter_map(entry).collect()
}

fn entries(prefixes: &[IpNet]) -> Vec<NlriEntry> {
    let prefix = |prefix: &IpNet| match prefix {
        IpNet::V4(net) => Prefix::V4(Ipv4Prefix::new(net.addr(), net.prefix_len())),
        IpNet::V6(net) => Prefix::V6(Ipv6Prefix::new(net.addr(), net.prefix_len())),
    };
    prefixes.iter().map(|net| NlriEntry { path_id: 0, prefix: prefix(net) }).collect()
}

fn reach(next_hop: Ipv6Addr, prefixes: &[IpNet]) -> PathAttribute {
    PathAttribute::MpReachNlri(Box::new(MpReachNlri {
        afi: Family::Ipv6.afi(),
        safi: Safi::Unicast,
        next_hop: next_hop.into(),
        link_local_next_hop: None,
        announced: entries(prefixes),
        flowspec_announced: vec![],
        evpn_announced: vec![],
        bgpls_announced: vec![],
        vpn_announced: vec![],
        labeled_announced: vec![],
        rtc_announced: vec![],
    }))
}

fn unreach(family: Family, prefixes: &[IpNet]) -> PathAttribute {
    PathAttribute::MpUnreachNlri(Box::new(MpUnreachNlri {
        afi: family.afi(),
        safi: Safi::Unicast,
        withdrawn: entries(prefixes),
        flowspec_withdrawn: vec![],
        evpn_withdrawn: vec![],
        bgpls_withdrawn: vec![],
        vpn_withdrawn: vec![],
        labeled_withdrawn: vec![],
        rtc_withdrawn: vec![],
    }))
}
