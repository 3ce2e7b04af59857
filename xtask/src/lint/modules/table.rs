//! The rules of our crates. Each list of layers goes from top to bottom: a module imports from lower lines only.

use super::rules::{Forbidden, Layers, Rules};

/// Runtimes and clients that pure code must not use.
const IO: &[&str] = &["tokio", "contiv_store", "rtnetlink", "aya"];

pub(super) const RULES: &[Rules] = &[
    Rules {
        package: "netmaster",
        layers: &[Layers {
            parent: "",
            order: &[
                &["daemon"],
                &["config"],
                &["api"],
                &["leadership"],
                &["aci"],
                &["commit"],
                &["audit", "repair", "restore"],
                &["objects", "plugin"],
                &["reports"],
                &["domain"],
                &["metrics"],
                &["cache"],
                &["ipam"],
                &["tags"],
                &["go_json"],
                &["schema"],
                &["problem"],
            ],
        }],
        // Requests are validated and planned without I/O.
        forbidden: &[
            Forbidden { module: "audit", imports: &["tokio"] },
            Forbidden { module: "repair", imports: &["tokio"] },
            Forbidden { module: "restore", imports: &["tokio"] },
            Forbidden { module: "objects", imports: &["tokio"] },
            Forbidden { module: "plugin", imports: &["tokio"] },
            Forbidden { module: "reports", imports: &["tokio"] },
            Forbidden { module: "domain", imports: &["tokio"] },
            Forbidden { module: "ipam", imports: &["tokio"] },
            Forbidden { module: "tags", imports: &["tokio"] },
            Forbidden { module: "go_json", imports: &["tokio"] },
            Forbidden { module: "schema", imports: &["tokio"] },
            Forbidden { module: "problem", imports: &["tokio"] },
        ],
        known_cycles: &[],
    },
    Rules {
        package: "netplugin",
        layers: &[Layers {
            parent: "datapath",
            order: &[&["ebpf", "ovs", "fake"], &["op"], &["telemetry"], &["error"], &["object"]],
        }],
        forbidden: &[
            // The plan is a pure function of the state.
            Forbidden { module: "plan", imports: IO },
            Forbidden {
                module: "plan",
                imports: &[
                    "crate::source",
                    "crate::reconcile",
                    "crate::datapath::ebpf",
                    "crate::datapath::fake",
                    "crate::datapath::ovs",
                ],
            },
            Forbidden {
                module: "datapath",
                imports: &[
                    "crate::run",
                    "crate::config",
                    "crate::reconcile",
                    "crate::source",
                    "crate::plan",
                    "crate::state",
                ],
            },
            Forbidden { module: "source", imports: &["crate::datapath", "crate::plan", "crate::reconcile"] },
            Forbidden {
                module: "state",
                imports: &["crate::datapath::ebpf", "crate::datapath::fake", "crate::datapath::ovs"],
            },
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
