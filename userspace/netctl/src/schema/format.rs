//! Formats of field values. netmaster decides; a format here accepts at least every value that netmaster accepts.

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
};

use contiv_model::name::is_name;
use serde_json::Value;

/// Format of a field's value.
#[derive(Clone, Copy, Debug)]
pub enum Format {
    /// A name of letters, digits, hyphens and dots.
    Name,
    /// Any string.
    Text,
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// A string that the function accepts; the text describes it in error messages.
    Pattern(&'static str, fn(&str) -> bool),
    /// An integer, from the first number to the second.
    Number(i64, i64),
    /// A list of values in this format.
    List(&'static Format),
}

impl Format {
    /// An IPv4 address.
    pub const IPV4: Format = Format::Pattern("an IPv4 address", |text| ipv4(text).is_some());
    /// An IPv6 address.
    pub const IPV6: Format = Format::Pattern("an IPv6 address", |text| text.parse::<Ipv6Addr>().is_ok());
    /// An IPv4 subnet, or a range of addresses in one.
    pub const SUBNET: Format =
        Format::Pattern("an IPv4 subnet such as 10.1.1.0/24 or 10.1.1.10-10.1.1.20/24", |text| {
            split_length(text, 31).is_some_and(is_range)
        });
    /// An IPv6 subnet.
    pub const SUBNET6: Format = Format::Pattern("an IPv6 subnet such as 2001:db8::/64", |text| {
        split_length(text, 127).is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
    });
    /// An address range of a network.
    pub const POOL: Format = Format::Pattern("IPv4 addresses such as 10.1.1.10-10.1.1.20", is_range);
    /// A protocol of a rule. A number above 255 is a protocol that no packet has.
    pub const PROTOCOL: Format = Format::Pattern("tcp, udp, icmp or a number of up to 3 digits", |text| {
        let is_number = text.len() <= 3 && text.bytes().all(|byte| byte.is_ascii_digit());
        ["tcp", "udp", "icmp"].contains(&text) || is_number
    });
    /// The default network of a tenant. netmaster accepts a dot at the end.
    pub const DEFAULT_NETWORK: Format =
        Format::Pattern("a name of letters, digits, hyphens and dots", |text| {
            is_name(text.strip_suffix('.').unwrap_or(text))
        });
    /// An address, or a subnet, of a rule.
    pub const PEER: Format = Format::Pattern("an address or a subnet such as 10.1.1.0/24", |text| {
        let (address, length) = text.split_once('/').unwrap_or((text, "1"));
        let address = address.split_once('-').map_or(address, |(first, _)| first);
        length.parse::<u8>().is_ok_and(|n| n <= 128) && address.parse::<std::net::IpAddr>().is_ok()
    });
    /// A rate.
    pub const BANDWIDTH: Format = Format::Pattern("a rate such as \"10 mbps\" or 2g", |text| {
        let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
        unit.len() < text.len() && !unit.is_empty() && unit.len() <= 5
    });
    /// A range of VLAN ids or VNIs.
    pub const TAGS: Format = Format::Pattern("a range such as 1-4094", |text| {
        text.split_once('-').is_some_and(|(a, b)| a.parse::<u32>().is_ok() && b.parse::<u32>().is_ok())
    });
    /// The subnet for access from nodes to pods.
    pub const PRIVATE_SUBNET: Format =
        Format::Pattern("an IPv4 subnet of length 16 such as 172.19.0.0/16", |text| {
            text.strip_suffix("/16").and_then(ipv4).is_some()
        });
    /// Address and prefix length of a router.
    pub const ROUTER: Format =
        Format::Pattern("an address with the length of its subnet such as 50.1.1.1/24", |text| {
            split_length(text, 31).is_some_and(|address| is_range(address) || address.contains('-'))
        });
    /// A label selector; the value may be empty.
    pub const SELECTOR: Format = Format::Pattern("a label such as app=web", |text| {
        text.split_once('=').is_some_and(|(name, _)| !name.is_empty())
    });
    /// A port of a service.
    pub const PORT: Format = Format::Pattern("PORT:TARGETPORT:PROTOCOL such as 80:8080:TCP", |text| {
        let parts: Vec<_> = text.split(':').collect();
        let port = |text: &&str| text.parse::<u16>().is_ok();
        matches!(&parts[..], [port_, target, protocol] if port(port_) && port(target) && !protocol.is_empty())
    });

    /// An integer without a lower limit: netmaster stores negative numbers, which have no effect.
    pub const fn at_most(max: i64) -> Format {
        Format::Number(i64::MIN, max)
    }

    /// Whether `value` has the format. An empty value of the right JSON type always has.
    pub fn accepts(&self, value: &Value) -> bool {
        if is_empty(value) {
            return matches!((self, value), (_, Value::Null))
                || match self {
                    Format::Number(..) => value.is_number(),
                    Format::List(_) => value.is_array(),
                    _ => value.is_string(),
                };
        }
        match (self, value) {
            (Format::Text, Value::String(_)) => true,
            (Format::Name, Value::String(text)) => is_name(text),
            (Format::OneOf(texts), Value::String(text)) => texts.contains(&text.as_str()),
            (Format::Pattern(_, accepts), Value::String(text)) => accepts(text),
            (Format::Number(min, max), value) => value.as_i64().is_some_and(|n| (*min..=*max).contains(&n)),
            (Format::List(Format::Text), Value::Array(items)) => items.iter().all(Value::is_string),
            (Format::List(format), Value::Array(items)) => {
                items.iter().all(|item| !is_empty(item) && format.accepts(item))
            }
            _ => false,
        }
    }

    fn is_text(&self) -> bool {
        !matches!(self, Format::Number(..) | Format::List(_))
    }

    /// Error text for a `value` that does not have the format.
    pub fn mismatch(&self, value: &Value) -> String {
        match value {
            Value::Number(_) | Value::Bool(_) if self.is_text() => {
                format!("{value}: expected {self}, as text: \"{value}\"")
            }
            _ => format!("{value}: expected {self}"),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Format::Name => write!(f, "a name of letters, digits, hyphens and dots"),
            Format::Text => write!(f, "a text"),
            Format::OneOf(texts) => write!(f, "{}", texts.join(" or ")),
            Format::Pattern(expected, _) => write!(f, "{expected}"),
            Format::Number(i64::MIN, max) => write!(f, "a number of at most {max}"),
            Format::Number(min, max) => write!(f, "a number from {min} to {max}"),
            Format::List(format) => write!(f, "a list, each item {format}"),
        }
    }
}

/// Whether netmaster omits the value from responses.
pub fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) => false,
    }
}

fn ipv4(text: &str) -> Option<Ipv4Addr> {
    text.parse().ok()
}

fn is_range(text: &str) -> bool {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    ipv4(first).is_some() && ipv4(last).is_some()
}

/// Returns the text before a prefix length from 1 to `longest`.
fn split_length(text: &str, longest: u8) -> Option<&str> {
    let (before, length) = text.rsplit_once('/')?;
    length.parse().is_ok_and(|n: u8| (1..=longest).contains(&n)).then_some(before)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn formats_accept_what_netmaster_accepts() {
        let (names, texts) = (Format::List(&Format::Name), Format::List(&Format::Text));
        for (format, good, bad) in [
            (&Format::Name, json!("web-1.x"), json!("web_1")),
            (&Format::Text, json!("web_1"), json!(7)),
            (&Format::OneOf(&["in", "out"]), json!("in"), json!("both")),
            (&Format::Number(0, 63), json!(63), json!(64)),
            (&Format::Number(0, 63), json!(0), json!("1")),
            (&Format::at_most(63), json!(-1), json!(64)),
            (&Format::at_most(63), json!(i64::MIN), json!(-1.5)),
            (&texts, json!(["", "a"]), json!(["a", null])),
            (&names, json!(["a", "b"]), json!("a")),
            (&names, json!([]), json!([""])),
            (&Format::SUBNET, json!("10.1.1.10-10.1.1.20/24"), json!("10.1.1.0")),
            (&Format::SUBNET, json!("10.0.0.0/8"), json!("10.0.0.0/32")),
            (&Format::SUBNET6, json!("2001:db8::/64"), json!("2001:db8::")),
            (&Format::IPV4, json!("10.1.1.1"), json!("10.1.1.256")),
            (&Format::IPV6, json!("fe80::1"), json!("10.1.1.1")),
            (&Format::POOL, json!("10.1.1.1-10.1.1.9"), json!("10.1.1.0/24")),
            (&Format::PROTOCOL, json!("132"), json!("sctp")),
            (&Format::PROTOCOL, json!("300"), json!("1000")),
            (&Format::PROTOCOL, json!("007"), json!("-1")),
            (&Format::DEFAULT_NETWORK, json!("lan"), json!(".")),
            (&Format::DEFAULT_NETWORK, json!("lan."), json!("lan..")),
            (&Format::PEER, json!("2001:db8::/64"), json!("web")),
            (&Format::PEER, json!("1.2.3.4-9"), json!("1.2.3.4/129")),
            (&Format::BANDWIDTH, json!("10 mbps"), json!("10")),
            (&Format::TAGS, json!("1-4094"), json!("all")),
            (&Format::PRIVATE_SUBNET, json!("172.19.0.0/16"), json!("172.19.0.0/24")),
            (&Format::ROUTER, json!("50.1.1.1/24"), json!("50.1.1.1")),
            (&Format::SELECTOR, json!("app=web"), json!("app")),
            (&Format::SELECTOR, json!("app="), json!("=web")),
            (&Format::PORT, json!("80:8080:TCP"), json!("80:TCP")),
        ] {
            assert!(format.accepts(&good), "{format} {good}");
            assert!(!format.accepts(&bad), "{format} {bad}");
        }
    }

    #[test]
    fn number_instead_of_string_is_quoted_in_the_error() {
        assert_eq!(Format::Text.mismatch(&json!(10)), "10: expected a text, as text: \"10\"");
    }
}
