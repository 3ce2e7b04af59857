//! Formats of text fields: a check function and an equivalent regular expression.

use super::checks;

/// Format of a text field.
#[derive(Clone, Copy, Debug)]
pub enum Format {
    Any,
    /// One of these.
    OneOf(&'static [&'static str]),
    Pattern(&'static Pattern),
}

/// A check function and the regular expression (ECMA 262) that accepts the same texts.
#[derive(Debug)]
pub struct Pattern {
    pub matches: fn(&str) -> bool,
    pub regex: &'static str,
    /// An accepted text, for documentation and generated requests.
    pub example: &'static str,
}

impl Format {
    pub fn matches(self, text: &str) -> bool {
        match self {
            Format::Any => true,
            Format::OneOf(words) => words.contains(&text),
            Format::Pattern(pattern) => (pattern.matches)(text),
        }
    }
}

/// Parts of the regular expressions.
macro_rules! part {
    (label) => {
        "[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
    };
    (name) => {
        concat!(part!(label), "(\\.", part!(label), ")*")
    };
    (octet) => {
        "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
    };
    (ip) => {
        concat!("(", part!(octet), "\\.){3}", part!(octet))
    };
    (len31) => {
        "([1-9]|[12][0-9]|3[01])"
    };
    (node) => {
        "topology/pod-[0-9]{1,4}/node-[0-9]{1,4}"
    };
    (path) => {
        "topology/pod-[0-9]{1,4}/paths-[0-9]{1,4}/pathep-\\[eth[0-9]{1,2}/[0-9]{1,2}\\]"
    };
    (h) => {
        "[0-9a-fA-F]{1,4}"
    };
    (ip6) => {
        concat!(
            "((",
            part!(h),
            ":){7}",
            part!(h),
            "|(",
            part!(h),
            ":){1,7}:",
            "|(",
            part!(h),
            ":){1,6}:",
            part!(h),
            "|(",
            part!(h),
            ":){1,5}(:",
            part!(h),
            "){1,2}",
            "|(",
            part!(h),
            ":){1,4}(:",
            part!(h),
            "){1,3}",
            "|(",
            part!(h),
            ":){1,3}(:",
            part!(h),
            "){1,4}",
            "|(",
            part!(h),
            ":){1,2}(:",
            part!(h),
            "){1,5}",
            "|",
            part!(h),
            ":(:",
            part!(h),
            "){1,6}",
            "|:((:",
            part!(h),
            "){1,7}|:))"
        )
    };
}

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident: $matches:expr, $example:literal, $($pattern:expr),+;)*) => {
        $($(#[$doc])* pub const $name: Format =
            Format::Pattern(&Pattern { matches: $matches, regex: concat!("^", $($pattern,)+ "$"), example: $example });)*

        #[cfg(test)]
        const ALL: &[(&str, Format)] = &[$((stringify!($name), $name)),*];
    };
}

formats! {
    NAME: checks::is_name, "web", part!(name);
    NAME_OR_NOTHING: |text| text.is_empty() || checks::is_name(text), "web", "(", part!(name), ")?";
    /// The last label may be empty.
    NAME_OR_EMPTY: checks::is_name_or_empty, "web", "(", part!(name), "\\.?)?";
    IPV4_OR_EMPTY: checks::is_ipv4_or_empty, "10.1.1.254", "(", part!(ip), ")?";
    ADDRESS_RANGE: checks::is_address_range, "10.1.1.10-10.1.1.20", "(", part!(ip), "(-", part!(ip), ")?)?";
    SUBNET: checks::is_subnet, "10.1.1.0/24", part!(ip), "(-", part!(ip), ")?/", part!(len31);
    ROUTER_ADDRESS: checks::is_router_address, "50.1.1.1/24",
        part!(ip), "(-(0|[1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-5]))?/", part!(len31);
    PRIVATE_SUBNET: checks::is_private_subnet, "172.19.0.0/16", part!(ip), "/16";
    IPV6_OR_EMPTY: checks::is_ipv6_or_empty, "2001:db8::1", "(", part!(ip6), ")?";
    IPV6_SUBNET_OR_EMPTY: checks::is_ipv6_subnet_or_empty, "2001:db8::/64",
        "(", part!(ip6), "/([1-9][0-9]?|1[0-2][0-7]))?";
    PROTOCOL_OR_EMPTY: checks::is_protocol_or_empty, "tcp", "(tcp|udp|icmp|[0-9]{1,3})?";
    RULE_ADDRESS_OR_EMPTY: checks::is_rule_address_or_empty, "10.1.1.0/24",
        "(", part!(ip), "(-(0|[1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-5]))?(/([1-9]|[12][0-9]|3[0-2]))?|",
        part!(ip6), "(/([1-9][0-9]?|1[01][0-9]|12[0-8]))?)?";
    BANDWIDTH_OR_EMPTY: checks::is_bandwidth_or_empty, "20 mbps",
        "([1-9][0-9]*( ?(kb|Kb|Gb|gb|Mb|mb|[kmgKMG](bps)?)| [{1}](bps)?))?";
    NODE_BINDINGS: checks::is_node_bindings, "topology/pod-1/node-101", "(", part!(node), "(,", part!(node), ")*)?";
    PATH_BINDINGS: checks::is_path_bindings, "topology/pod-1/paths-101/pathep-[eth1/14]",
        "(", part!(path), "(,", part!(path), ")*)?";
    VLAN_RANGE: checks::is_vlan_range, "1-4094", "[0-9]{1,4}-[0-9]{1,4}";
    VXLAN_RANGE: checks::is_vxlan_range, "1-10000", "[0-9]{1,8}-[0-9]{1,8}";
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use regex::Regex;

    use super::*;

    /// Texts that are similar to what some format accepts: concatenated fragments.
    fn near() -> impl Strategy<Value = String> {
        let part = prop::sample::select(vec![
            "",
            "a",
            "Z9",
            "-",
            ".",
            "0",
            "1",
            "9",
            "10",
            "25",
            "255",
            "256",
            "31",
            "32",
            "33",
            "104",
            "108",
            "127",
            "128",
            "129",
            ":",
            "::",
            "fe80",
            "2001:db8",
            "1:2:3:4:5:6:7",
            "1:2:3:4:5:6:7:8",
            "10.1.1.",
            "10.1.1.1",
            "10.1.1.0",
            "/",
            "/24",
            "/16",
            "/31",
            "/32",
            "/64",
            "/108",
            "/127",
            "/128",
            "-10.1.1.9",
            "tcp",
            "udp",
            "icmp",
            " ",
            "k",
            "kb",
            "KB",
            "m",
            "mbps",
            "bps",
            "{",
            "}",
            "\n",
            "_",
            "é",
            ",",
            "topology/pod-1/node-101",
            "topology/pod-1/paths-12345",
            "/pathep-[eth1/14]",
            "topology/pod-1/paths-1/pathep-[eth1/144]",
        ]);
        prop::collection::vec(part, 0..5).prop_map(|pieces| pieces.concat())
    }

    static PATTERNS: LazyLock<Vec<(&str, &Pattern, Regex)>> = LazyLock::new(|| {
        let pattern = |(name, format): &(&'static str, Format)| match format {
            Format::Pattern(pattern) => Some((*name, *pattern, Regex::new(pattern.regex).unwrap())),
            _ => None,
        };
        ALL.iter().filter_map(pattern).collect()
    });

    fn agree(text: &str) {
        for (name, pattern, regex) in &*PATTERNS {
            assert_eq!(regex.is_match(text), (pattern.matches)(text), "{name}: {text:?} and {regex}");
        }
    }

    #[test]
    fn examples_are_accepted() {
        for (name, pattern, _) in &*PATTERNS {
            assert!((pattern.matches)(pattern.example), "{name}");
            agree(pattern.example);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn regular_expressions_match_the_check_functions(text in near()) {
            agree(&text);
        }
    }
}
