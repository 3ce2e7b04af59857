//! What fields may hold. netmaster has the last word; a form here is never narrower than what it takes and carries out.

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
};

use contiv_model::name::is_name;
use serde_json::Value;

/// What a field's value must be like.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// A name (INVENTORY 1.4).
    Name,
    /// Any text.
    Text,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// A text of a certain make: how to tell people, and whether one is of it.
    Like(&'static str, fn(&str) -> bool),
    /// A whole number between these.
    Number(i64, i64),
    /// A list.
    List(&'static Form),
}

impl Form {
    /// An IPv4 address.
    pub const IPV4: Form = Form::Like("an IPv4 address", |text| ipv4(text).is_some());
    /// An IPv6 address.
    pub const IPV6: Form = Form::Like("an IPv6 address", |text| text.parse::<Ipv6Addr>().is_ok());
    /// An IPv4 subnet, or a range of addresses in one.
    pub const SUBNET: Form =
        Form::Like("an IPv4 subnet such as 10.1.1.0/24 or 10.1.1.10-10.1.1.20/24", |text| {
            split_length(text, 31).is_some_and(is_range)
        });
    /// An IPv6 subnet.
    pub const SUBNET6: Form = Form::Like("an IPv6 subnet such as 2001:db8::/64", |text| {
        split_length(text, 127).is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
    });
    /// Addresses of a network.
    pub const POOL: Form = Form::Like("IPv4 addresses such as 10.1.1.10-10.1.1.20", is_range);
    /// A protocol of a rule.
    pub const PROTOCOL: Form = Form::Like("tcp, udp, icmp or a number from 0 to 255", |text| {
        ["tcp", "udp", "icmp"].contains(&text) || text.parse::<u8>().is_ok()
    });
    /// An address, or a subnet, of a rule.
    pub const PEER: Form = Form::Like("an address or a subnet such as 10.1.1.0/24", |text| {
        let (address, length) = text.split_once('/').unwrap_or((text, "1"));
        let address = address.split_once('-').map_or(address, |(first, _)| first);
        length.parse::<u8>().is_ok_and(|n| n <= 128) && address.parse::<std::net::IpAddr>().is_ok()
    });
    /// How much a group's endpoints may send.
    pub const BANDWIDTH: Form = Form::Like("a rate such as \"10 mbps\" or 2g", |text| {
        let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
        unit.len() < text.len() && !unit.is_empty() && unit.len() <= 5
    });
    /// Tags to allocate from.
    pub const TAGS: Form = Form::Like("a range such as 1-4094", |text| {
        text.split_once('-').is_some_and(|(a, b)| a.parse::<u32>().is_ok() && b.parse::<u32>().is_ok())
    });
    /// The subnet of the nodes' own access to pods.
    pub const PRIVATE_SUBNET: Form =
        Form::Like("an IPv4 subnet of length 16 such as 172.19.0.0/16", |text| {
            text.strip_suffix("/16").and_then(ipv4).is_some()
        });
    /// A router's address.
    pub const ROUTER: Form =
        Form::Like("an address with the length of its subnet such as 50.1.1.1/24", |text| {
            split_length(text, 31).is_some_and(|address| is_range(address) || address.contains('-'))
        });
    /// A label that endpoints must have.
    pub const SELECTOR: Form = Form::Like("a label such as app=web", |text| {
        text.split_once('=').is_some_and(|(name, value)| !name.is_empty() && !value.is_empty())
    });
    /// A port of a service.
    pub const PORT: Form = Form::Like("PORT:TARGETPORT:PROTOCOL such as 80:8080:TCP", |text| {
        let parts: Vec<_> = text.split(':').collect();
        let port = |text: &&str| text.parse::<u16>().is_ok();
        matches!(&parts[..], [port_, target, protocol] if port(port_) && port(target) && !protocol.is_empty())
    });

    /// Does `value` have the form? Empty values stand for none and have every form.
    pub fn fits(&self, value: &Value) -> bool {
        if is_empty(value) {
            return matches!((self, value), (_, Value::Null))
                || match self {
                    Form::Number(..) => value.is_number(),
                    Form::List(_) => value.is_array(),
                    _ => value.is_string(),
                };
        }
        match (self, value) {
            (Form::Text, Value::String(_)) => true,
            (Form::Name, Value::String(text)) => is_name(text),
            (Form::OneOf(texts), Value::String(text)) => texts.contains(&text.as_str()),
            (Form::Like(_, fits), Value::String(text)) => fits(text),
            (Form::Number(min, max), value) => value.as_i64().is_some_and(|n| (*min..=*max).contains(&n)),
            (Form::List(form), Value::Array(items)) => {
                items.iter().all(|item| !is_empty(item) && form.fits(item))
            }
            _ => false,
        }
    }

    fn is_text(&self) -> bool {
        !matches!(self, Form::Number(..) | Form::List(_))
    }

    /// What to write instead of `value`, which has not the form.
    pub fn instead_of(&self, value: &Value) -> String {
        match value {
            Value::Number(_) | Value::Bool(_) if self.is_text() => {
                format!("{value}: expected {self}, as text: \"{value}\"")
            }
            _ => format!("{value}: expected {self}"),
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::Name => write!(f, "a name of letters, digits, hyphens and dots"),
            Form::Text => write!(f, "a text"),
            Form::OneOf(texts) => write!(f, "{}", texts.join(" or ")),
            Form::Like(expected, _) => write!(f, "{expected}"),
            Form::Number(min, max) => write!(f, "a number from {min} to {max}"),
            Form::List(form) => write!(f, "a list, each item {form}"),
        }
    }
}

/// Is it what netmaster leaves out of its answers?
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

/// What is before a length of 1 to `longest`.
fn split_length(text: &str, longest: u8) -> Option<&str> {
    let (before, length) = text.rsplit_once('/')?;
    length.parse().is_ok_and(|n: u8| (1..=longest).contains(&n)).then_some(before)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn forms_take_what_netmaster_takes() {
        let names = Form::List(&Form::Name);
        for (form, good, bad) in [
            (&Form::Name, json!("web-1.x"), json!("web_1")),
            (&Form::Text, json!("web_1"), json!(7)),
            (&Form::OneOf(&["in", "out"]), json!("in"), json!("both")),
            (&Form::Number(0, 63), json!(63), json!(64)),
            (&Form::Number(0, 63), json!(0), json!("1")),
            (&names, json!(["a", "b"]), json!("a")),
            (&names, json!([]), json!([""])),
            (&Form::SUBNET, json!("10.1.1.10-10.1.1.20/24"), json!("10.1.1.0")),
            (&Form::SUBNET, json!("10.0.0.0/8"), json!("10.0.0.0/32")),
            (&Form::SUBNET6, json!("2001:db8::/64"), json!("2001:db8::")),
            (&Form::IPV4, json!("10.1.1.1"), json!("10.1.1.256")),
            (&Form::IPV6, json!("fe80::1"), json!("10.1.1.1")),
            (&Form::POOL, json!("10.1.1.1-10.1.1.9"), json!("10.1.1.0/24")),
            (&Form::PROTOCOL, json!("132"), json!("sctp")),
            (&Form::PEER, json!("2001:db8::/64"), json!("web")),
            (&Form::PEER, json!("1.2.3.4-9"), json!("1.2.3.4/129")),
            (&Form::BANDWIDTH, json!("10 mbps"), json!("10")),
            (&Form::TAGS, json!("1-4094"), json!("all")),
            (&Form::PRIVATE_SUBNET, json!("172.19.0.0/16"), json!("172.19.0.0/24")),
            (&Form::ROUTER, json!("50.1.1.1/24"), json!("50.1.1.1")),
            (&Form::SELECTOR, json!("app=web"), json!("app")),
            (&Form::PORT, json!("80:8080:TCP"), json!("80:TCP")),
        ] {
            assert!(form.fits(&good), "{form} {good}");
            assert!(!form.fits(&bad), "{form} {bad}");
        }
    }

    #[test]
    fn a_number_where_a_text_belongs_is_told_how_to_be_one() {
        assert_eq!(Form::Text.instead_of(&json!(10)), "10: expected a text, as text: \"10\"");
    }
}
