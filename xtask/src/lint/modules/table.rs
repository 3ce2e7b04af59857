//! The rules of our crates. Each list of layers goes from top to bottom: a module imports from lower lines only.

use super::rules::{Forbidden, Rules};

pub(super) const RULES: &[Rules] = &[
    Rules {
        package: "netplugin",
        layers: &[],
        forbidden: &[
            // The plan is a pure function of the state.
            Forbidden {
                module: "plan",
                imports: &["tokio", "aya", "crate::datapath::ovs", "crate::datapath::ebpf", "crate::source"],
            },
            Forbidden { module: "datapath", imports: &["crate::source", "crate::state", "crate::reconcile"] },
            Forbidden { module: "source", imports: &["crate::datapath"] },
        ],
        known_cycles: &[],
    },
    Rules {
        package: "contiv-ebpf",
        layers: &[],
        forbidden: &[],
        known_cycles: &[
            &["delivery", "flows", "ip", "learn", "neighbour", "pod", "relay", "shortcut", "tell", "track"],
            &["nat", "rewrite"],
            &["packet", "refuse"],
        ],
    },
];
