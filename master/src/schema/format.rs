//! The forms of texts, as code that checks them and as regular expressions that tell others.

use super::checks;

/// What a text may be like.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    Any,
    /// One of these.
    Words(&'static [&'static str]),
    Like(&'static Like),
}

/// A form with a regular expression (ECMA 262) that says the same as the code.
#[derive(Debug)]
pub struct Like {
    pub holds: fn(&str) -> bool,
    pub pattern: &'static str,
    /// For people, and a seed for those who try everything.
    pub example: &'static str,
}

impl Form {
    pub fn holds(self, text: &str) -> bool {
        match self {
            Form::Any => true,
            Form::Words(words) => words.contains(&text),
            Form::Like(like) => (like.holds)(text),
        }
    }
}

/// Pieces of the patterns.
macro_rules! piece {
    (label) => {
        "[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
    };
    (name) => {
        concat!(piece!(label), "(\\.", piece!(label), ")*")
    };
    (octet) => {
        "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
    };
    (ip) => {
        concat!("(", piece!(octet), "\\.){3}", piece!(octet))
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
            piece!(h),
            ":){7}",
            piece!(h),
            "|(",
            piece!(h),
            ":){1,7}:",
            "|(",
            piece!(h),
            ":){1,6}:",
            piece!(h),
            "|(",
            piece!(h),
            ":){1,5}(:",
            piece!(h),
            "){1,2}",
            "|(",
            piece!(h),
            ":){1,4}(:",
            piece!(h),
            "){1,3}",
            "|(",
            piece!(h),
            ":){1,3}(:",
            piece!(h),
            "){1,4}",
            "|(",
            piece!(h),
            ":){1,2}(:",
            piece!(h),
            "){1,5}",
            "|",
            piece!(h),
            ":(:",
            piece!(h),
            "){1,6}",
            "|:((:",
            piece!(h),
            "){1,7}|:))"
        )
    };
}

macro_rules! forms {
    ($($(#[$doc:meta])* $name:ident: $holds:expr, $example:literal, $($pattern:expr),+;)*) => {
        $($(#[$doc])* pub const $name: Form =
            Form::Like(&Like { holds: $holds, pattern: concat!("^", $($pattern,)+ "$"), example: $example });)*

        #[cfg(test)]
        const ALL: &[(&str, Form)] = &[$((stringify!($name), $name)),*];
    };
}

forms! {
    NAME: checks::is_name, "web", piece!(name);
    NAME_OR_NOTHING: |text| text.is_empty() || checks::is_name(text), "web", "(", piece!(name), ")?";
    /// The last label may be missing.
    NAME_OR_EMPTY: checks::is_name_or_empty, "web", "(", piece!(name), "\\.?)?";
    IPV4_OR_EMPTY: checks::is_ipv4_or_empty, "10.1.1.254", "(", piece!(ip), ")?";
    ADDRESS_RANGE: checks::is_address_range, "10.1.1.10-10.1.1.20", "(", piece!(ip), "(-", piece!(ip), ")?)?";
    SUBNET: checks::is_subnet, "10.1.1.0/24", piece!(ip), "(-", piece!(ip), ")?/", piece!(len31);
    ROUTER_ADDRESS: checks::is_router_address, "50.1.1.1/24",
        piece!(ip), "(-(0|[1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-5]))?/", piece!(len31);
    PRIVATE_SUBNET: checks::is_private_subnet, "172.19.0.0/16", piece!(ip), "/16";
    IPV6_OR_EMPTY: checks::is_ipv6_or_empty, "2001:db8::1", "(", piece!(ip6), ")?";
    IPV6_SUBNET_OR_EMPTY: checks::is_ipv6_subnet_or_empty, "2001:db8::/64",
        "(", piece!(ip6), "/([1-9][0-9]?|1[0-2][0-7]))?";
    PROTOCOL_OR_EMPTY: checks::is_protocol_or_empty, "tcp", "(tcp|udp|icmp|[0-9]{1,3})?";
    RULE_ADDRESS_OR_EMPTY: checks::is_rule_address_or_empty, "10.1.1.0/24",
        "(", piece!(ip), "(-(0|[1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-5]))?(/([1-9]|[12][0-9]|3[0-2]))?|",
        piece!(ip6), "(/([1-9][0-9]?|1[01][0-9]|12[0-8]))?)?";
    BANDWIDTH_OR_EMPTY: checks::is_bandwidth_or_empty, "20 mbps",
        "([1-9][0-9]*( ?(kb|Kb|Gb|gb|Mb|mb|[kmgKMG](bps)?)| [{1}](bps)?))?";
    NODE_BINDINGS: checks::is_node_bindings, "topology/pod-1/node-101", "(", piece!(node), "(,", piece!(node), ")*)?";
    PATH_BINDINGS: checks::is_path_bindings, "topology/pod-1/paths-101/pathep-[eth1/14]",
        "(", piece!(path), "(,", piece!(path), ")*)?";
    VLAN_RANGE: checks::is_vlan_range, "1-4094", "[0-9]{1,4}-[0-9]{1,4}";
    VXLAN_RANGE: checks::is_vxlan_range, "1-10000", "[0-9]{1,8}-[0-9]{1,8}";
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use regex::Regex;

    use super::*;

    /// Texts near what some form accepts: one of a kind of pieces after the other.
    fn near() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
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
        prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
    }

    static PATTERNS: LazyLock<Vec<(&str, &Like, Regex)>> = LazyLock::new(|| {
        let like = |(name, form): &(&'static str, Form)| match form {
            Form::Like(like) => Some((*name, *like, Regex::new(like.pattern).unwrap())),
            _ => None,
        };
        ALL.iter().filter_map(like).collect()
    });

    fn agree(text: &str) {
        for (name, like, pattern) in &*PATTERNS {
            assert_eq!(pattern.is_match(text), (like.holds)(text), "{name}: {text:?} and {pattern}");
        }
    }

    #[test]
    fn examples_hold() {
        for (name, like, _) in &*PATTERNS {
            assert!((like.holds)(like.example), "{name}");
            agree(like.example);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn patterns_say_what_the_code_does(text in near()) {
            agree(&text);
        }
    }
}
