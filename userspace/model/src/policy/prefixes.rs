use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net, Ipv4Subnets, Ipv6Net};

use crate::mac::Mac;

/// Addresses that a rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// Any address.
    Any,
    /// Those in a prefix of the smallest list. The list is empty for a range whose last address
    /// precedes the first.
    In(Vec<IpNet>),
}

/// Parses an address of a rule. The forms are `a`, `a/length`, `a-b/length` (a network's subnet
/// with its range), `a-n` and `a-n/length` (`n` is the last octet of the last address), and the
/// empty text.
pub(super) fn read(text: &str) -> Option<Named> {
    if text.is_empty() {
        return Some(Named::Any);
    }
    let prefixes = match text.split_once('-') {
        Some((first, rest)) => range(first, rest)?,
        None => vec![one(text)?],
    };
    Some(Named::In(prefixes))
}

/// Whether an address of a rule is a range whose last address precedes the first, such as
/// `1.2.3.9-4`. It contains no address.
pub fn is_reversed_range(text: &str) -> bool {
    read(text) == Some(Named::In(vec![]))
}

/// The prefix of the link-local addresses of the endpoints with an IPv4 address in `net`: their kernels
/// form them from the Ethernet address, and that has the IPv4 address.
pub(super) fn link_local(net: &IpNet) -> Option<IpNet> {
    let IpNet::V4(net) = net else { return None };
    let bits = net.prefix_len();
    // The first octet is in front of the middle of the Ethernet address, and the others are behind it.
    let bits = if bits < 8 { 80 + bits } else { 96 + bits };
    let first = Mac::of_endpoint(net.network()).link_local();
    Some(Ipv6Net::new(first, bits).ok()?.trunc().into())
}

fn one(text: &str) -> Option<IpNet> {
    let net = match text.contains('/') {
        true => text.parse().ok()?,
        false => IpNet::from(text.parse::<std::net::IpAddr>().ok()?),
    };
    Some(net.trunc())
}

/// The length is that of the network's subnet, which is irrelevant if the range is known.
fn range(first: &str, rest: &str) -> Option<Vec<IpNet>> {
    let first: Ipv4Addr = first.parse().ok()?;
    let (last, length) = rest.split_once('/').unwrap_or((rest, "32"));
    Ipv4Net::new(first, length.parse().ok()?).ok()?;
    let last = match last.parse::<u8>() {
        Ok(octet) => {
            let [a, b, c, _] = first.octets();
            Ipv4Addr::new(a, b, c, octet)
        }
        Err(_) => last.parse().ok()?,
    };
    if last < first {
        return Some(vec![]);
    }
    Some(Ipv4Subnets::new(first, last, 0).map(IpNet::V4).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(text: &str) -> Option<Vec<String>> {
        match read(text)? {
            Named::Any => Some(vec!["any".to_owned()]),
            Named::In(nets) => Some(nets.iter().map(IpNet::to_string).collect()),
        }
    }

    #[test]
    fn link_local_addresses_of_endpoints_have_a_prefix() {
        for net in ["0.0.0.0/0", "10.0.0.0/7", "10.0.0.0/8", "10.1.0.0/17", "10.1.2.3/32"] {
            let net: IpNet = net.parse().unwrap();
            let found = link_local(&net).unwrap();
            for ip in ["9.255.255.255", "10.0.0.0", "10.1.2.3", "10.1.128.0", "11.1.2.3", "138.1.2.3"] {
                let ip: Ipv4Addr = ip.parse().unwrap();
                let own = Mac::of_endpoint(ip).link_local();
                assert_eq!(
                    found.contains(&std::net::IpAddr::from(own)),
                    net.contains(&std::net::IpAddr::from(ip))
                );
            }
        }
        assert_eq!(link_local(&"2001:db8::/64".parse().unwrap()), None);
    }

    #[test]
    fn every_form_is_read() {
        let all = |nets: &[&str]| Some(nets.iter().map(|net| (*net).to_owned()).collect::<Vec<_>>());
        assert_eq!(nets(""), all(&["any"]));
        assert_eq!(nets("10.1.1.7"), all(&["10.1.1.7/32"]));
        assert_eq!(nets("10.1.1.7/24"), all(&["10.1.1.0/24"]));
        assert_eq!(nets("0.0.0.0/0"), all(&["0.0.0.0/0"]));
        assert_eq!(nets("2001:db8::1"), all(&["2001:db8::1/128"]));
        assert_eq!(nets("2001:db8::1/64"), all(&["2001:db8::/64"]));
        assert_eq!(nets("1.2.3.4-9"), all(&["1.2.3.4/30", "1.2.3.8/31"]));
        assert_eq!(nets("1.2.3.4-4/24"), all(&["1.2.3.4/32"]));
        assert_eq!(nets("10.1.1.10-10.1.2.1/16").unwrap().first().unwrap(), "10.1.1.10/31");
        assert_eq!(nets("0.0.0.0-255.255.255.255/1"), all(&["0.0.0.0/0"]));
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for text in ["x", "10.1", "10.1.1.1/33", "1.2.3.4-256", "1.2.3.4-1.2.3.5/x", "::1-2", "-", "/"] {
            assert_eq!(nets(text), None, "{text}");
        }
    }

    #[test]
    fn a_reversed_range_contains_no_address() {
        for text in ["1.2.3.9-4", "10.1.1.1-0", "10.1.1.9-4/24", "10.1.2.1-10.1.1.9/16"] {
            assert_eq!(nets(text), Some(vec![]), "{text}");
            assert!(is_reversed_range(text), "{text}");
        }
        for text in ["", "x", "10.1.1.1", "10.1.1.0-0", "1.2.3.4-9", "2001:db8::/64", "1.2.3.9-x"] {
            assert!(!is_reversed_range(text), "{text}");
        }
    }
}
