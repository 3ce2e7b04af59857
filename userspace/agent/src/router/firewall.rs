//! Firewalls of other programs that drop what the kernel forwards for pods.
//!
//! A packet is forwarded only if all chains at the hook `forward` accept it. What a chain of another program does with a packet cannot
//! be seen from outside, so the check is a rough one: a chain that drops what it does not accept, in a table without a rule about the
//! interface of the agent. `nft` does not list the tables of legacy iptables.

use std::{
    io,
    net::IpAddr,
    process::Command,
    time::{Duration, Instant},
};

use super::{desired::Desired, nat_table::TABLE};
use crate::datapath::{KERNEL_PORT, host_access::HOST_PORT};

/// Interval between lookups, each of which runs `nft`.
const INTERVAL: Duration = Duration::from_secs(30);

/// The last lookup.
#[derive(Debug, Default)]
pub(super) struct Firewall {
    looked_up: Option<(Vec<Forwarded>, Instant)>,
    warnings: Vec<String>,
}

/// An interface by which the kernel forwards for pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Forwarded {
    interface: &'static str,
    /// Families of tables that see the packets.
    families: &'static [&'static str],
}

impl Forwarded {
    const IPV4: &'static [&'static str] = &["ip", "inet"];
    const BOTH: &'static [&'static str] = &["ip", "ip6", "inet"];

    fn of(desired: &Desired) -> Vec<Forwarded> {
        let access = Forwarded { interface: HOST_PORT, families: Self::IPV4 };
        let families = match desired.endpoints.iter().any(IpAddr::is_ipv6) {
            true => Self::BOTH,
            false => Self::IPV4,
        };
        let vlans = Forwarded { interface: KERNEL_PORT, families };
        let is_routing = desired.is_routing && !desired.endpoints.is_empty();
        let access = desired.access.is_some().then_some(access);
        access.into_iter().chain(is_routing.then_some(vlans)).collect()
    }
}

impl Firewall {
    /// What may not be forwarded as desired, one line each, now or a moment ago.
    pub(super) async fn check(&mut self, desired: &Desired) -> Vec<String> {
        let wanted = Forwarded::of(desired);
        let is_current = |(of, at): &(Vec<Forwarded>, Instant)| *of == wanted && at.elapsed() < INTERVAL;
        if !self.looked_up.as_ref().is_some_and(is_current) {
            let forwarded = wanted.clone();
            let found = tokio::task::spawn_blocking(move || look_up(&forwarded)).await;
            self.warnings =
                found.unwrap_or_else(|error| Err(io::Error::other(error))).unwrap_or_else(|error| {
                    // Host access reports that there is no nft.
                    tracing::debug!("list the chains of nftables: {error}");
                    vec![]
                });
            self.looked_up = Some((wanted, Instant::now()));
        }
        self.warnings.clone()
    }
}

fn look_up(forwarded: &[Forwarded]) -> io::Result<Vec<String>> {
    let mut warnings = vec![];
    if forwarded.is_empty() {
        return Ok(warnings);
    }
    for Chain { family, table, name, is_closed } in forward_chains(&nft(&["list", "chains"])?) {
        let is_concerned = |forwarded: &&Forwarded| forwarded.families.contains(&&*family);
        let concerned: Vec<&Forwarded> = forwarded.iter().filter(is_concerned).collect();
        if table == TABLE || concerned.is_empty() {
            continue;
        }
        if !is_closed && !ends_closed(&nft(&["list", "chain", &family, &table, &name])?) {
            continue;
        }
        let rules = nft(&["list", "table", &family, &table])?;
        let unknown =
            concerned.into_iter().map(|it| it.interface).filter(|interface| !has_name(&rules, interface));
        warnings.extend(unknown.map(|interface| {
            format!(
                "packets of pods may be dropped: chain {name} of table {family} {table} drops what it does not accept, and the table \
                 has no rule about interface {interface}; accept there what comes from {interface} and what goes to it (nft insert \
                 rule {family} {table} {name} iifname {interface} accept; the same with oifname)"
            )
        }));
    }
    Ok(warnings)
}

/// A chain at the hook `forward`.
#[derive(Debug, PartialEq, Eq)]
struct Chain {
    family: String,
    table: String,
    name: String,
    /// Whether its policy is to drop packets.
    is_closed: bool,
}

/// The chains at the hook `forward` among all chains, as `nft` lists them.
fn forward_chains(listed: &str) -> Vec<Chain> {
    let (mut of, mut chain, mut found) = (None, None, vec![]);
    for line in listed.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["table", family, table, ..] => of = Some((family, table)),
            ["chain", name, ..] => chain = Some(name),
            ["type", _, "hook", "forward", .., policy] => {
                found.extend(of.zip(chain).map(|((family, table), name)| Chain {
                    family: family.to_owned(),
                    table: table.to_owned(),
                    name: name.to_owned(),
                    is_closed: policy == "drop;",
                }));
            }
            _ => {}
        }
    }
    found
}

/// Whether the last rule of a chain drops all packets, as `nft` lists it.
fn ends_closed(chain: &str) -> bool {
    let last = chain.lines().map(str::trim).rfind(|line| !line.is_empty() && *line != "}");
    let verdict = last.and_then(|rule| rule.split_ascii_whitespace().find(|word| *word != "counter"));
    matches!(verdict, Some("drop" | "reject"))
}

/// Whether a table names an interface, also by a pattern such as `"contiv*"`.
fn has_name(table: &str, interface: &str) -> bool {
    let mut quoted = table.split('"').skip(1).step_by(2);
    quoted.any(|name| match name.strip_suffix('*') {
        Some(prefix) => interface.starts_with(prefix),
        None => interface == name,
    })
}

fn nft(words: &[&str]) -> io::Result<String> {
    // Without counters.
    let output = Command::new("nft").arg("--stateless").args(words).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use testkit::{Netns, needs};

    use super::*;

    #[test]
    fn interfaces_are_found_in_tables() {
        let table = |what: &str| format!("table inet f {{\n\tchain c {{\n\t\t{what} accept\n\t}}\n}}\n");
        for (rule, is_found) in [
            ("iifname \"contivh0\"", true),
            ("iifname { \"docker0\", \"contivh0\" }", true),
            ("iifname \"contiv*\"", true),
            ("iifname \"contivh1\"", false),
            ("iifname \"docker*\"", false),
            ("", false),
        ] {
            assert_eq!(has_name(&table(rule), HOST_PORT), is_found, "{rule}");
        }
    }

    #[test]
    fn the_last_rule_of_a_chain_may_close_it() {
        let chain = |rules: &[&str]| {
            let rules: String = rules.iter().map(|rule| format!("\t\t{rule}\n")).collect();
            format!(
                "table inet firewalld {{\n\tchain filter_FORWARD {{\n\t\ttype filter hook forward priority filter + 10; policy \
                 accept;\n{rules}\t}}\n}}\n"
            )
        };
        let established = "ct state established accept";
        for (last, is_closed) in [
            ("reject with icmpx admin-prohibited", true),
            ("counter drop", true),
            ("iifname \"eth0\" drop", false),
            ("counter accept", false),
        ] {
            assert_eq!(ends_closed(&chain(&[established, last])), is_closed, "{last}");
        }
        assert!(!ends_closed(&chain(&[])));
    }

    /// Else host access or VLAN routing ends without a word.
    #[test]
    fn firewalls_of_other_programs_are_reported() {
        needs!(root(), binary("nft"));
        let node = Netns::new("firewall").unwrap();
        let nft = |script: &str| drop(node.output("nft", &[script]).unwrap());
        let host = Forwarded { interface: HOST_PORT, families: Forwarded::IPV4 };
        let vlans = Forwarded { interface: KERNEL_PORT, families: Forwarded::BOTH };
        let reported = || -> Vec<String> {
            let warnings = node.run(|| Ok(look_up(&[host, vlans])?)).unwrap();
            let brief = |line: &String| {
                let (_, rest) = line.split_once("table ").unwrap();
                let (table, rest) = rest.split_once(" drops").unwrap();
                let (_, rest) = rest.split_once("about interface ").unwrap();
                format!("{table} {}", rest.split(';').next().unwrap())
            };
            warnings.iter().map(brief).collect()
        };
        assert_eq!(reported(), [""; 0]);
        nft(
            "add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }",
        );
        nft(
            "add table ip6 filter; add chain ip6 filter FORWARD { type filter hook forward priority 0; policy drop; }",
        );
        nft("add table inet in; add chain inet in i { type filter hook input priority 0; policy drop; }");
        nft("add table ip contiv-host-access; \
             add chain ip contiv-host-access f { type filter hook forward priority 0; policy drop; }");
        assert_eq!(reported(), ["ip filter contivh0", "ip filter inb01", "ip6 filter inb01"]);
        nft("add chain ip filter USER; add rule ip filter USER iifname contivh0 accept");
        nft("add rule ip6 filter FORWARD iifname inb01 accept");
        assert_eq!(reported(), ["ip filter inb01"]);
        nft("delete table ip filter");
        nft(
            "add table inet late; add chain inet late f { type filter hook forward priority 10; policy accept; }",
        );
        nft("add rule inet late f ct state established accept");
        assert_eq!(reported(), [""; 0]);
        nft("add rule inet late f counter reject");
        assert_eq!(reported(), ["inet late contivh0", "inet late inb01"]);
    }
}
