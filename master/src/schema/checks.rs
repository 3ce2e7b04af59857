//! Check functions equivalent to the original's regular expressions (INVENTORY 1.4).

use std::net::{Ipv4Addr, Ipv6Addr};

use contiv_model::name;

pub(super) fn is_name(text: &str) -> bool {
    name::is_name(text)
}

/// The last label may be empty.
pub(super) fn is_name_or_empty(text: &str) -> bool {
    text.is_empty() || name::is_name(text) || text.strip_suffix('.').is_some_and(name::is_name)
}

pub(super) fn is_ipv4(text: &str) -> bool {
    text.parse::<Ipv4Addr>().is_ok()
}

pub(super) fn is_ipv4_or_empty(text: &str) -> bool {
    text.is_empty() || is_ipv4(text)
}

/// `address`, `first-last`, or the empty text.
pub(super) fn is_address_range(text: &str) -> bool {
    match text.split_once('-') {
        Some((first, last)) => is_ipv4(first) && is_ipv4(last),
        None => is_ipv4_or_empty(text),
    }
}

/// `address[-address]/length`, length 1 to 31.
pub(super) fn is_subnet(text: &str) -> bool {
    let Some((range, length)) = text.rsplit_once('/') else { return false };
    !range.is_empty() && is_address_range(range) && is_number(length, 1, 31)
}

/// `a.b.c.d[-e]/length`, length 1 to 31.
pub(super) fn is_router_address(text: &str) -> bool {
    let Some((range, length)) = text.rsplit_once('/') else { return false };
    let (first, last) = range.split_once('-').unwrap_or((range, "0"));
    is_ipv4(first) && (last == "0" || is_number(last, 1, 255)) && is_number(length, 1, 31)
}

/// An IPv4 subnet of length 16.
pub(super) fn is_private_subnet(text: &str) -> bool {
    text.strip_suffix("/16").is_some_and(is_ipv4)
}

pub(super) fn is_ipv6_or_empty(text: &str) -> bool {
    text.is_empty() || is_ipv6(text)
}

/// IPv6 notation without an IPv4 suffix.
fn is_ipv6(text: &str) -> bool {
    !text.contains('.') && text.parse::<Ipv6Addr>().is_ok()
}

/// The original accepts `(1[0-2][0-7]|[1-9][0-9]|[1-9])` as length. This excludes numbers such as
/// 108.
pub(super) fn is_ipv6_subnet_or_empty(text: &str) -> bool {
    let Some((address, length)) = text.rsplit_once('/') else { return text.is_empty() };
    let sound = is_number(length, 1, 127) && (length.len() < 3 || !length.ends_with(['8', '9']));
    sound && !address.is_empty() && is_ipv6_or_empty(address)
}

/// A protocol name, or a number of up to three digits.
pub(super) fn is_protocol_or_empty(text: &str) -> bool {
    ["", "tcp", "udp", "icmp"].contains(&text) || is_digits(text, 3)
}

/// An IPv4 or IPv6 address or subnet. Like the original, this accepts `a.b.c.d-e`.
pub(super) fn is_rule_address_or_empty(text: &str) -> bool {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let up_to = |max| length.is_none_or(|length| is_number(length, 1, max));
    let (first, last) = address.split_once('-').unwrap_or((address, "0"));
    let octet = last == "0" || is_number(last, 1, 255);
    text.is_empty() || is_ipv4(first) && octet && up_to(32) || is_ipv6(address) && up_to(128)
}

/// A number without leading zeros and a unit. The original's expression also accepts braces and `1`
/// as units.
pub(super) fn is_bandwidth_or_empty(text: &str) -> bool {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let short = |unit: &str, odd: &[char]| {
        let letter = unit.strip_suffix("bps").unwrap_or(unit);
        let mut letters = letter.chars();
        let known = |c: char| "kmgKMG".contains(c) || odd.contains(&c);
        letters.next().is_some_and(known) && letters.next().is_none()
    };
    let long = |unit| ["kb", "Kb", "Gb", "gb", "Mb", "mb"].contains(&unit);
    let sound = match unit.strip_prefix(' ') {
        Some(unit) => short(unit, &['{', '1', '}']) || long(unit),
        None => short(unit, &[]) || long(unit),
    };
    text.is_empty() || number.starts_with(|c: char| ('1'..='9').contains(&c)) && sound
}

/// A comma-separated list of `topology/pod-1/node-101`, or the empty text.
pub(super) fn is_node_bindings(text: &str) -> bool {
    text.is_empty() || text.split(',').all(|node| fabric_node(node, "/node-").is_some_and(str::is_empty))
}

/// A comma-separated list of `topology/pod-1/paths-101/pathep-[eth1/14]`, or the empty text.
pub(super) fn is_path_bindings(text: &str) -> bool {
    let port = |rest: &str| {
        let port = rest.strip_prefix("/pathep-[eth")?.strip_suffix(']')?;
        let (slot, port) = port.split_once('/')?;
        Some(is_digits(slot, 2) && is_digits(port, 2))
    };
    let path = |path| fabric_node(path, "/paths-").and_then(port).unwrap_or(false);
    text.is_empty() || text.split(',').all(path)
}

/// Rest of the text after `topology/pod-N`, `kind` and a number.
fn fabric_node<'t>(text: &'t str, kind: &str) -> Option<&'t str> {
    let (pod, rest) = text.strip_prefix("topology/pod-")?.split_once(kind)?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (node, rest) = rest.split_at(digits);
    (is_digits(pod, 4) && is_digits(node, 4)).then_some(rest)
}

pub(super) fn is_vlan_range(text: &str) -> bool {
    is_range(text, 4)
}

pub(super) fn is_vxlan_range(text: &str) -> bool {
    is_range(text, 8)
}

/// Two numbers of at most `digits` digits, joined by a hyphen.
fn is_range(text: &str, digits: usize) -> bool {
    text.split_once('-').is_some_and(|(a, b)| is_digits(a, digits) && is_digits(b, digits))
}

/// One to `most` digits.
fn is_digits(text: &str, most: usize) -> bool {
    (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit())
}

/// A number from `min` to `max` without sign or leading zeros.
fn is_number(text: &str, min: u8, max: u8) -> bool {
    text.starts_with(|c: char| ('1'..='9').contains(&c))
        && text.parse().is_ok_and(|n| (min..=max).contains(&n))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_all(format: fn(&str) -> bool, good: &[&str], bad: &[&str]) {
        for text in good {
            assert!(format(text), "{text:?} is refused");
        }
        for text in bad {
            assert!(!format(text), "{text:?} is accepted");
        }
    }

    #[test]
    fn checks_match_the_original() {
        check_all(is_name_or_empty, &["", "a", "a.", "a.b"], &[".", "a_b", "-a"]);
        check_all(
            is_subnet,
            &["10.1.1.0/24", "10.1.1.5-10.1.1.9/24", "10.0.0.0/7", "10.0.0.0/31"],
            &[
                "",
                "10.1.2.0",
                "10.1.2.0/32",
                "10.1.2.0/0",
                "10.1.2.0/024",
                "300.1.1.0/24",
                "/24",
                "01.1.1.1/8",
            ],
        );
        check_all(
            is_ipv6_subnet_or_empty,
            &["", "2001:db8::/8", "2001:db8::/64", "::/127", "fe80::1/107"],
            &["2001::/128", "2001::/108", "2001::/119", "zz::/64", "2001::", "/64", "::1.2.3.4/64", "::/0"],
        );
        check_all(is_vlan_range, &["1-4094", "100-50"], &["", "1", "1-", "1-10,20-30", "1-50000", "a-b"]);
        check_all(is_vxlan_range, &["1-10000", "1-12345678"], &["1-123456789"]);
        check_all(
            is_address_range,
            &["", "1.1.1.1", "1.1.1.1-1.1.1.9"],
            &["2001::1-2001::2", "1.1.1.1-", "1.1.1.1/2"],
        );
        check_all(
            is_protocol_or_empty,
            &["", "tcp", "udp", "icmp", "0", "89", "999"],
            &["igmp", "1000", "-1", "TCP"],
        );
        check_all(
            is_rule_address_or_empty,
            &[
                "",
                "1.2.3.4",
                "1.2.3.0/24",
                "1.2.3.4/32",
                "1.2.3.4-9",
                "2001:db8::1",
                "2001:db8::/64",
                "::1/128",
            ],
            &["1.1.1", "1.1.1.1/33", "1.1.1.1/0", "1.2.3.4-256", "1.2.3.4-1.2.3.9", "::1/129", "::1-5", "x"],
        );
        check_all(
            is_bandwidth_or_empty,
            &["", "10 mbps", "10mbps", "10 Mb", "10 m", "1Gbps", "10 {bps", "10 1", "10kb"],
            &["0mbps", "10", "10 tbps", "10 KB", "10  m", "10{bps", "mbps", "10 "],
        );
        check_all(
            is_router_address,
            &["50.1.1.1/24", "50.1.1.1-9/31"],
            &["", "50.1.1.1", "50.1.1.1/32", "::1/64"],
        );
        let port = "topology/pod-1/paths-101/pathep-[eth1/14]";
        let ports = format!("{port},{port}");
        check_all(
            is_path_bindings,
            &["", port, &ports],
            &[",", "x", "topology/pod-1/node-1", &format!("{port},")],
        );
        check_all(
            is_path_bindings,
            &["topology/pod-1/paths-1/pathep-[eth1/1]"],
            &["topology/pod-1/paths-1/pathep-[eth123/1]", "topology/pod-1/paths-1/pathep-[eth1]"],
        );
        let node = "topology/pod-1/node-101";
        check_all(
            is_node_bindings,
            &["", node, "topology/pod-1/node-1,topology/pod-1234/node-2"],
            &["topology/pod-12345/node-1", "topology/pod-1/node-", "topology/pod-1/node-1/x", port],
        );
        check_all(is_private_subnet, &["172.19.0.0/16", "10.1.2.3/16"], &["", "10.0.0.0/24", "10.0.0/16"]);
    }
}
