//! The rules of our crates. Each list of layers goes from top to bottom: a module imports from lower lines only.

use super::rules::{Forbidden, Layers, Rules};

/// Runtimes and clients that pure code must not use.
const IO: &[&str] = &["aya", "contiv_store", "futures", "rtnetlink", "tokio"];
const RUNTIME: &[&str] = &["tokio"];

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
            Forbidden { module: "audit", imports: RUNTIME },
            Forbidden { module: "repair", imports: RUNTIME },
            Forbidden { module: "restore", imports: RUNTIME },
            Forbidden { module: "objects", imports: RUNTIME },
            Forbidden { module: "plugin", imports: RUNTIME },
            Forbidden { module: "reports", imports: RUNTIME },
            Forbidden { module: "domain", imports: RUNTIME },
            Forbidden { module: "ipam", imports: RUNTIME },
            Forbidden { module: "tags", imports: RUNTIME },
            Forbidden { module: "go_json", imports: RUNTIME },
            Forbidden { module: "schema", imports: RUNTIME },
            Forbidden { module: "problem", imports: RUNTIME },
        ],
        known_cycles: &[],
    },
    Rules {
        package: "netplugin",
        layers: &[
            Layers {
                parent: "",
                order: &[
                    &["run"],
                    &["api"],
                    &["registration"],
                    &["attach"],
                    &["master"],
                    &["config"],
                    &["reconcile", "source"],
                    &["plan"],
                    &["state"],
                    &["datapath"],
                    &["backoff", "error", "ready", "sysctl"],
                ],
            },
            Layers {
                parent: "datapath",
                order: &[&["ebpf", "ovs", "fake"], &["op"], &["telemetry"], &["error"], &["object"]],
            },
            Layers {
                parent: "datapath::ovs",
                order: &[
                    &["apply", "observe"],
                    &["switch"],
                    &["desired"],
                    &["tables"],
                    &["pipeline"],
                    &["bridge", "error", "options"],
                ],
            },
            Layers {
                parent: "datapath::ebpf",
                order: &[
                    &["apply", "observe"],
                    &["kernel", "telemetry"],
                    &["forward", "policy", "programs", "rate", "service"],
                    &["device"],
                    &["maps"],
                    &["failure"],
                ],
            },
            Layers {
                parent: "datapath::fake",
                order: &[
                    &["inspect"],
                    &["switch"],
                    &["traffic"],
                    &["guard"],
                    &["forward"],
                    &["packet"],
                    &["frame"],
                ],
            },
        ],
        forbidden: &[
            // The plan is a pure function of the state.
            Forbidden { module: "plan", imports: IO },
            Forbidden {
                module: "plan",
                imports: &["crate::datapath::ebpf", "crate::datapath::fake", "crate::datapath::ovs"],
            },
            Forbidden {
                module: "state",
                imports: &["crate::datapath::ebpf", "crate::datapath::fake", "crate::datapath::ovs"],
            },
            Forbidden { module: "source", imports: &["crate::datapath", "crate::plan"] },
            Forbidden { module: "datapath::ovs::pipeline", imports: IO },
            Forbidden { module: "datapath::ovs::tables", imports: IO },
            Forbidden { module: "datapath::ovs::desired", imports: IO },
            Forbidden { module: "datapath::ovs::switch", imports: &["crate::datapath::ovs::desired"] },
        ],
        known_cycles: &[],
    },
    Rules {
        package: "contiv-store",
        layers: &[Layers {
            parent: "",
            order: &[
                &["embedded"],
                &["election"],
                &["lease"],
                &["watch"],
                &["client"],
                &["members"],
                &["config", "kv", "txn"],
                &["error"],
                &["backoff", "limits", "range"],
            ],
        }],
        forbidden: &[],
        known_cycles: &[],
    },
    Rules {
        package: "contiv-model",
        layers: &[Layers {
            parent: "",
            order: &[
                &["service"],
                &["endpoint"],
                &["policy"],
                &["api"],
                &["network", "token_bucket"],
                &["global", "group", "key", "route", "vrf"],
                &[
                    "addresses",
                    "bitset",
                    "bgp",
                    "event",
                    "invalid",
                    "mac",
                    "name",
                    "node",
                    "packet_event",
                    "registry",
                    "tag",
                ],
            ],
        }],
        // The domain types do no I/O.
        forbidden: &[Forbidden { module: "", imports: IO }],
        known_cycles: &[],
    },
    Rules {
        package: "contiv-daemon",
        layers: &[Layers {
            parent: "",
            order: &[
                &["client", "etcd"],
                &["flags", "logging", "metrics_page", "modes", "reload", "secret", "signals", "tls"],
                &["notify"],
            ],
        }],
        forbidden: &[],
        known_cycles: &[],
    },
    Rules {
        package: "openflow-rs",
        layers: &[Layers {
            parent: "",
            order: &[
                &["connection"],
                &["codec"],
                &["message"],
                &["bundle", "multipart"],
                &["text"],
                &["group"],
                &["flow", "packet"],
                &["action"],
                &["matching"],
                &["field"],
                &["error_message", "port", "switch"],
                &["wire"],
            ],
        }],
        forbidden: &[],
        known_cycles: &[],
    },
    Rules {
        package: "netctl",
        layers: &[Layers {
            parent: "",
            order: &[
                &["cli"],
                &["manifest"],
                &["objects"],
                &["observe"],
                &["commands"],
                &["schema"],
                &["output"],
                &["client"],
                &["token"],
                &["flags"],
                &["error"],
            ],
        }],
        forbidden: &[],
        known_cycles: &[],
    },
    Rules {
        package: "xtask",
        layers: &[Layers {
            parent: "",
            order: &[
                &["nightly"],
                &["ci"],
                &["lint"],
                &["docs", "package"],
                &["lab"],
                &["campaign"],
                &["vm"],
                &["suite"],
                &["setup"],
                &["workspace"],
                &["progress", "steps"],
            ],
        }],
        forbidden: &[],
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
