//! The table of nftables for host access.

use std::{collections::BTreeSet, fmt::Write as _, net::Ipv4Addr};

use ipnet::Ipv4Net;

use super::{quota::Quota, rules::MARK};
use crate::datapath::{KERNEL_PORT, host_access::HOST_PORT};

/// Table of nftables that only the agent writes.
pub(super) const TABLE: &str = "contiv-host-access";

const BGP_PORT: u16 = 179;

/// What the table has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NatTable {
    /// Private subnet of the pods.
    pub(super) subnet: Ipv4Net,
    /// Interfaces of the node that lead to pods.
    pub(super) closed: BTreeSet<String>,
    /// UDP ports of tunnels.
    pub(super) tunnels: BTreeSet<u16>,
    /// The leaf switches of this node, which take what comes from the address of the node for its BGP speaker.
    pub(super) leaves: BTreeSet<Ipv4Addr>,
    /// Interfaces of endpoints on the node, [rounded up](super::quota::rounded).
    pub(super) pods: u32,
}

impl NatTable {
    /// The table with a bound for each pod, as `nft` lists it. The marks of others stay: kube-proxy's, and those of the operator's
    /// routing rules.
    ///
    /// What comes from elsewhere with the address of a pod would be masqueraded, and answers would reach the pod: it is dropped. Not so
    /// ICMP errors about connections: a router may have such an address.
    ///
    /// The kernel masquerades packets of connections only. Others, such as segments out of the window, would leave with the private
    /// address of the pod, which is the address of another pod on another node.
    pub(super) fn text(&self, Quota { connections, rate, burst }: Quota) -> String {
        let NatTable { subnet, closed, tunnels, leaves, pods: _ } = self;
        let set = |name: &str, of: &str| {
            format!("\tset {name} {{\n\t\ttype {of}\n\t\tsize 65535\n\t\tflags dynamic\n\t}}\n\n")
        };
        let (mut sets, mut bounds) = (String::new(), String::new());
        let mut bound = |name: &str, limit: String| {
            for (prefix, of, key) in
                [("", "ipv4_addr", "ip saddr"), ("infra-", "ifname . ipv4_addr", "iifname . ip saddr")]
            {
                sets += &set(&format!("{prefix}{name}"), of);
                let interfaces = self.senders(!prefix.is_empty());
                for interface in interfaces {
                    _ = writeln!(
                        bounds,
                        "\t\tiifname \"{interface}\" ct state new add @{prefix}{name} {{ {key} {limit} }} counter drop"
                    );
                }
            }
        };
        bound("rates", format!("limit rate over {rate} burst {burst} packets"));
        if let Some(count) = connections {
            bound("connections", format!("ct count over {count}"));
        }
        let from_pods = |what: String| format!("\t\tiifname \"{HOST_PORT}\" {what} drop\n");
        let tunnels = tunnels.iter().map(|port| from_pods(format!("udp dport {port}")));
        let leaves = leaves.iter().map(|ip| from_pods(format!("ip daddr {ip} tcp dport {BGP_PORT}")));
        let to_fabric: String = tunnels.chain(leaves).collect();
        let mut text = format!(
            "table ip {TABLE} {{\n\
             {sets}\
             \tchain prerouting {{\n\
             \t\ttype filter hook prerouting priority filter; policy accept;\n\
             \t\tiifname != \"{HOST_PORT}\" iifname != \"lo\" ip saddr {subnet} ct state != related counter drop\n\
             {bounds}\
             \t\tiifname \"{HOST_PORT}\" meta mark set meta mark | {MARK:#010x}\n\
             \t\tip daddr {subnet} ct state established meta mark set meta mark | {MARK:#010x}\n\
             \t\tip daddr {subnet} ct state related meta mark set meta mark | {MARK:#010x}\n\
             \t}}\n\
             \n\
             \tchain postrouting {{\n\
             \t\ttype nat hook postrouting priority srcnat; policy accept;\n\
             \t\tip saddr {subnet} oifname != \"{HOST_PORT}\" masquerade\n\
             \t}}\n\
             \n\
             \tchain input {{\n\
             \t\ttype filter hook input priority filter; policy accept;\n\
             {to_fabric}\
             \t}}\n\
             \n\
             \tchain forward {{\n\
             \t\ttype filter hook forward priority filter; policy accept;\n\
             \t\tiifname \"{HOST_PORT}\" ct state invalid drop\n\
             {to_fabric}"
        );
        for interface in closed {
            _ = writeln!(text, "\t\tiifname \"{HOST_PORT}\" oifname \"{interface}\" drop");
        }
        for state in ["established", "related"] {
            _ = writeln!(text, "\t\toifname \"{HOST_PORT}\" ct state {state} accept");
        }
        text + &format!("\t\toifname \"{HOST_PORT}\" drop\n\t}}\n}}\n")
    }

    /// Interfaces from which new connections of pods come: that of host access, or those on infra networks. Two infra networks, of two
    /// tenants, may have the same addresses.
    fn senders(&self, of_infra: bool) -> Vec<&str> {
        let infra =
            self.closed.iter().map(String::as_str).filter(|name| ![HOST_PORT, KERNEL_PORT].contains(name));
        if of_infra { infra.collect() } else { vec![HOST_PORT] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_masqueraded_is_not_forwarded() {
        let table = NatTable {
            subnet: "172.19.0.0/16".parse().unwrap(),
            closed: [].into(),
            tunnels: [].into(),
            leaves: [].into(),
            pods: 16,
        };
        let text = table.text(Quota::POD);
        let forward = text.split_once("hook forward").unwrap().1;
        assert_eq!(forward.lines().nth(1), Some("\t\tiifname \"contivh0\" ct state invalid drop"), "{text}");
    }

    #[test]
    fn the_table_without_a_count_is_closed_like_the_other_one() {
        let table = NatTable {
            subnet: "172.19.0.0/16".parse().unwrap(),
            closed: ["contivh1".to_owned()].into(),
            tunnels: [4789].into(),
            leaves: [].into(),
            pods: 16,
        };
        let [counted, uncounted] =
            [Quota::POD, Quota { connections: None, ..Quota::POD }].map(|quota| table.text(quota));
        assert!(!uncounted.contains("connections") && !uncounted.contains("ct count"), "{uncounted}");
        let chains = |text: &str| text.split_once("\tchain").map(|(_, chains)| chains.to_owned()).unwrap();
        let rest: Vec<String> =
            chains(&counted).lines().filter(|line| !line.contains("ct count")).map(str::to_owned).collect();
        assert_eq!(chains(&uncounted).lines().collect::<Vec<_>>(), rest);
        assert!(counted.contains("ct count over 8192 } counter drop"), "{counted}");
    }
}
