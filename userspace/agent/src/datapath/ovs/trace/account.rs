//! Parser of the output of `ofproto/trace`.
//!
//! The output has a section for each pass of the packet: the first one, and one after each lookup of a connection.
//!
//! ```text
//! Flow: tcp,in_port=1,...
//!  0. in_port=1, priority 100, cookie 0xc400000000000001
//!     goto_table:4
//!  4. No match.
//!     drop
//!
//! Final flow: unchanged
//! Datapath actions: ct(zone=5),recirc(0x2)
//! ```

use std::collections::HashMap;

/// Processing of a packet by the switch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) passes: Vec<Pass>,
}

/// One pass of the packet through tables.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pass {
    /// Fields of the packet at the end.
    pub(super) fields: HashMap<String, String>,
    pub(super) visits: Vec<Visit>,
    /// Ports of output actions: numbers, or names if they were requested.
    pub(super) outputs: Vec<String>,
    /// Names and numbers in the datapath's actions.
    pub(super) datapath: Vec<String>,
    /// Reasons of failed outputs.
    pub(super) problems: Vec<String>,
    /// The last action is a group without a bucket: no bucket is live, or the datapath's hash selects it.
    ends_in_group: bool,
    /// Indentation of the block of another bridge that carries a tunnel.
    other_bridge: Option<usize>,
}

/// A table that the packet passed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Visit {
    pub(super) table: u8,
    /// The flow that matched.
    pub(super) flow: Option<MatchedFlow>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct MatchedFlow {
    /// Match in the syntax of `ovs-ofctl`.
    pub(super) matching: String,
    pub(super) priority: u16,
    /// 0 if the flow has none.
    pub(super) cookie: u64,
}

/// Output according to the MAC learning table. Its ports are only in the datapath's actions.
const NORMAL: &str = "NORMAL";
/// Output to the ingress port.
pub(super) const IN_PORT: &str = "IN_PORT";
/// Output to the agent, which answers.
pub(super) const CONTROLLER: &str = "CONTROLLER";
/// Prefix of the datapath's action by which a hash selects a bucket of a group, or a member of a bond.
pub(super) const HASH: &str = "hash(";

impl Account {
    pub(super) fn parse(text: &str) -> Account {
        let mut passes: Vec<Pass> = vec![];
        for line in text.lines() {
            if let Some(flow) = line.strip_prefix("Flow: ") {
                passes.push(Pass { fields: fields(flow), ..Pass::default() });
            } else if let Some(pass) = passes.last_mut() {
                pass.read(line);
            }
        }
        Account { passes }
    }
}

impl Pass {
    /// Reports whether the datapath's hash, which `ofproto/trace` does not compute, selects a bucket of a group.
    pub(super) fn is_selected_by_hash(&self) -> bool {
        self.ends_in_group && self.datapath.iter().any(|word| word.starts_with(HASH))
    }

    fn read(&mut self, line: &str) {
        let text = line.trim();
        let indentation = line.len() - line.trim_start().len();
        if text.starts_with("bridge(") && indentation > 0 {
            self.other_bridge = Some(indentation);
        } else if self.other_bridge.is_some_and(|block| indentation <= block) && !text.starts_with("--") {
            self.other_bridge = None;
        }
        if self.other_bridge.is_some() || text.is_empty() {
            return;
        }
        if let Some(flow) = line.strip_prefix("Final flow: ") {
            if flow != "unchanged" {
                self.fields = fields(flow);
            }
        } else if let Some(actions) = line.strip_prefix("Datapath actions: ") {
            let words = actions.split(',').map(|word| word.trim_matches(['"', ')']));
            let name =
                |word: &str| if word.starts_with("controller(") { CONTROLLER } else { word }.to_owned();
            self.datapath = words.map(name).collect();
        } else if let Some(visit) = visit(text) {
            self.visits.push(visit);
        } else if text.starts_with("group:") {
            self.ends_in_group = true;
        } else if text == NORMAL {
            self.ends_in_group = false;
        } else if let Some(port) = text.strip_prefix("output:").or(text.strip_prefix("-> output port is ")) {
            self.ends_in_group = false;
            self.outputs.push(port.trim_matches('"').to_owned());
        } else if text == IN_PORT {
            self.outputs.push(IN_PORT.to_owned());
        } else if text.starts_with("CONTROLLER:") {
            self.outputs.push(CONTROLLER.to_owned());
        } else if text.starts_with(">> skipping output") {
            self.outputs.pop();
        } else if let Some(problem) = text.strip_prefix(">> ") {
            if problem.contains("tunnel") {
                self.outputs.pop();
            }
            self.problems.push(problem.to_owned());
        }
    }
}

/// Reads ` 4. tcp, priority 100, cookie 0xc4`, and ` 4. No match.`.
fn visit(text: &str) -> Option<Visit> {
    let (table, rest) = text.split_once(". ")?;
    let table = table.parse().ok()?;
    let (matching, rest) = match rest.split_once("priority ") {
        Some((matching, rest)) => (matching.trim_end_matches(", "), rest),
        None => return Some(Visit { table, flow: None }),
    };
    let mut words = rest.split(", ");
    let priority = words.next()?.trim().parse().ok()?;
    let cookie = words.find_map(|word| word.strip_prefix("cookie 0x"));
    let cookie = cookie.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or_default();
    Some(Visit { table, flow: Some(MatchedFlow { matching: matching.to_owned(), priority, cookie }) })
}

fn fields(flow: &str) -> HashMap<String, String> {
    let pairs = flow.split(',').filter_map(|field| field.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = include_str!("tests/tunnel.txt");

    #[test]
    fn passes_tables_and_outputs_are_read() {
        let Account { passes } = Account::parse(TEXT);
        let [first, second] = &passes[..] else { panic!("{passes:?}") };
        assert_eq!(first.visits.iter().map(|visit| visit.table).collect::<Vec<_>>(), [0, 4]);
        let cookie = first.visits[0].flow.as_ref().unwrap().cookie;
        assert_eq!((cookie, first.outputs.len()), (0xc400_0000_0000_0001, 0));
        let tables: Vec<u8> = second.visits.iter().map(|visit| visit.table).collect();
        assert_eq!(tables, [18, 19, 23]);
        let conjunction = second.visits[1].flow.as_ref().unwrap();
        assert_eq!((conjunction.matching.as_str(), conjunction.priority), ("conj_id=3,tcp", 10));
        assert_eq!(second.outputs, ["3"]);
        assert_eq!(
            (second.fields["nw_dst"].as_str(), second.fields["tp_dst"].as_str()),
            ("10.1.1.4", "8080")
        );
    }

    #[test]
    fn the_bridge_that_carries_a_tunnel_is_no_stage() {
        let text = "Flow: tcp\n\nbridge(\"a\")\n------\n 9. tcp, priority 1\n    output:3\n     \
                    -> output to native tunnel\n\n    bridge(\"underlay\")\n    ---------\n         0. priority 0\n            \
                    output:7\n    output:4\n\nFinal flow: unchanged\n";
        let Account { passes } = Account::parse(text);
        assert_eq!(
            (passes[0].visits.len(), &passes[0].outputs[..]),
            (1, &["3".to_owned(), "4".to_owned()][..])
        );
    }

    #[test]
    fn failed_and_skipped_outputs_are_none() {
        let text = "Flow: tcp\n 9. tcp, priority 1\n    output:3\n     -> output to native tunnel\n     \
                    >> native tunnel routing failed\n    output:1\n     >> skipping output to input port\n    IN_PORT\n\
                    23. No match.\n    output:NXM_NX_REG14[0..15]\n     -> output port is 2\n";
        let Account { passes } = Account::parse(text);
        assert_eq!(passes[0].outputs, ["IN_PORT", "NXM_NX_REG14[0..15]", "2"]);
        assert_eq!(passes[0].problems, ["native tunnel routing failed"]);
        assert_eq!(passes[0].visits[1], Visit { table: 23, flow: None });
    }

    #[test]
    fn a_hash_selects_a_bucket_only_at_the_end_of_a_group() {
        let is_selected = |actions: &str| {
            let text = format!(
                "Flow: tcp\n27. tcp, priority 50\n{actions}\nFinal flow: unchanged\n\
                 Datapath actions: push_vlan(vid=100,pcp=0),br0,hash(l4(0)),recirc(0x2)\n"
            );
            Account::parse(&text).passes[0].is_selected_by_hash()
        };
        assert!(is_selected("    group:3\n"));
        // A bond of uplinks.
        assert!(!is_selected("    NORMAL\n     -> no learned MAC for destination, flooding\n"));
        assert!(!is_selected("    group:3\n    set_field:7->reg9\n    NORMAL\n"));
        assert!(!is_selected("    group:1\n    output:2\n"));
    }
}
