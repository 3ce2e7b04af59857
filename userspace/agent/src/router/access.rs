//! Host access in the kernel: the address of the datapath's interface, and masquerading of what pods send to others.
//!
//! The node has ways to pods of other tenants: infra networks, and the routes of VLAN networks. Host access leads to none of
//! them, and only the node begins connections with pods by it. With the address of the node, what pods send to a port of tunnels
//! would be frames of this node.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::{self, Write as _},
    net::IpAddr,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use futures::TryStreamExt as _;
use ipnet::Ipv4Net;
use rtnetlink::{
    Handle,
    packet_route::address::{AddressAttribute, AddressMessage},
};

use super::{
    error::{self, Error, netlink},
    interface,
    rules::{self, MARK},
};
use crate::{
    datapath::host_access::{HOST_PORT, kernel_address},
    sysctl,
};

/// Minimum interval between comparisons of a table that shall be as it was.
const COMPARISON_INTERVAL: Duration = Duration::from_secs(5);
/// Replacements in a row that follow notifications. After more of them `nft` does not list the table as it was written, and each
/// replacement leads to a notification.
const MAX_REPAIRS: u32 = 3;
/// Table of nftables that only the agent writes.
pub(super) const TABLE: &str = "contiv-host-access";

/// What one pod may take of the node's connection tracking (`nf_conntrack_max`, usually 262,144).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quota {
    /// Connections at once. Those that TCP has closed stay for two minutes longer, and are not among them: the rate bounds these.
    ///
    /// The kernel reads the list of a pod's connections when one is added, up to once in each tick of its clock.
    connections: u32,
    /// New connections in a time, as `nft` writes it. In each tick the kernel takes up to nine ended connections from the list, with
    /// 100 ticks 900 per second: if more were added, the list would grow without bound.
    rate: &'static str,
    /// New connections at once.
    burst: u32,
}

impl Quota {
    pub(super) const POD: Quota = Quota { connections: 8192, rate: "500/second", burst: 2000 };
}

/// What the table has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NatTable {
    /// Private subnet of the pods.
    pub(super) subnet: Ipv4Net,
    /// Interfaces of the node that lead to pods.
    pub(super) closed: BTreeSet<String>,
    /// UDP ports of tunnels.
    pub(super) tunnels: BTreeSet<u16>,
    /// Bound for each pod.
    pub(super) quota: Quota,
}

impl NatTable {
    /// The table, as `nft` lists it. The marks of others stay: kube-proxy's, and those of the operator's routing rules.
    fn text(&self) -> String {
        let NatTable { subnet, closed, tunnels, quota: Quota { connections, rate, burst } } = self;
        let set = |name: &str| {
            format!("\tset {name} {{\n\t\ttype ipv4_addr\n\t\tsize 65535\n\t\tflags dynamic\n\t}}\n\n")
        };
        let sets = ["rates", "connections"].map(set).concat();
        let new = format!("iifname \"{HOST_PORT}\" ct state new");
        let to_tunnels: String = tunnels
            .iter()
            .map(|port| format!("\t\tiifname \"{HOST_PORT}\" udp dport {port} drop\n"))
            .collect();
        let mut text = format!(
            "table ip {TABLE} {{\n\
             {sets}\
             \tchain prerouting {{\n\
             \t\ttype filter hook prerouting priority filter; policy accept;\n\
             \t\t{new} add @rates {{ ip saddr limit rate over {rate} burst {burst} packets }} drop\n\
             \t\t{new} add @connections {{ ip saddr ct count over {connections} }} drop\n\
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
             {to_tunnels}\
             \t}}\n\
             \n\
             \tchain forward {{\n\
             \t\ttype filter hook forward priority filter; policy accept;\n\
             {to_tunnels}"
        );
        for interface in closed {
            _ = writeln!(text, "\t\tiifname \"{HOST_PORT}\" oifname \"{interface}\" drop");
        }
        for state in ["established", "related"] {
            _ = writeln!(text, "\t\toifname \"{HOST_PORT}\" ct state {state} accept");
        }
        text + &format!("\t\toifname \"{HOST_PORT}\" drop\n\t}}\n}}\n")
    }
}

/// The host access that the kernel gives.
#[derive(Debug, Default)]
pub(super) struct HostAccess {
    /// The table that was compared with the kernel's last, and when.
    compared: Option<(Option<NatTable>, Instant)>,
    /// Comparisons in a row that led to a replacement.
    repairs: u32,
}

impl HostAccess {
    /// Makes the kernel give this host access, or none. Returns the number of changes, and what is not in effect, one line each.
    pub(super) async fn sync(
        &mut self,
        handle: &Handle,
        wanted: Option<&NatTable>,
    ) -> Result<(usize, Vec<String>), Error> {
        // First: without the table, what pods send would be forwarded anywhere.
        let table = self.sync_table(wanted).await;
        // They keep what the table has not marked from being forwarded, also after another program has removed the table.
        let rules = rules::sync_host_access(handle, wanted.map(|table| table.subnet)).await;
        let mut changes = rules.map_err(netlink("write the routing rules of host access"))?;
        match table {
            Ok(is_changed) => changes += usize::from(is_changed),
            // Nothing can have written what is to be removed.
            Err(error) if wanted.is_none() && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let why = match wanted {
                    Some(_) => format!(
                        "pods do not reach addresses outside of the cluster: run nft: {error}; install nftables, or start the \
                         agent with --no-host-access"
                    ),
                    None => format!("masquerading of pods remains: run nft: {error}"),
                };
                return Ok((changes, vec![why]));
            }
        }
        let Some(NatTable { subnet, .. }) = wanted else { return Ok((changes, vec![])) };
        configure_interface(handle, *subnet).await?;
        let warning = (!sysctl::forwards_ipv4()).then(|| {
            "pods do not reach addresses outside of the cluster: set net.ipv4.ip_forward to 1, or start the agent with \
             --no-host-access"
                .to_owned()
        });
        Ok((changes, warning.into_iter().collect()))
    }

    /// Compares the table at the next [`sync`](Self::sync): the kernel has notified of a change.
    pub(super) fn notice(&mut self) {
        if self.repairs < MAX_REPAIRS {
            self.compared = None;
        }
    }

    /// Replaces the kernel's table unless it is as wanted, or was a moment ago: each comparison runs `nft`. Returns whether it was
    /// replaced.
    async fn sync_table(&mut self, wanted: Option<&NatTable>) -> io::Result<bool> {
        if let Some((table, at)) = &self.compared
            && table.as_ref() == wanted
            && (wanted.is_none() || at.elapsed() < COMPARISON_INTERVAL)
        {
            return Ok(false);
        }
        let text = wanted.map(NatTable::text);
        let replaced =
            tokio::task::spawn_blocking(move || replace(text)).await.map_err(io::Error::other)??;
        self.compared = Some((wanted.cloned(), Instant::now()));
        self.repairs = if replaced { self.repairs.saturating_add(1) } else { 0 };
        Ok(replaced)
    }
}

/// Gives the interface its address, and makes the kernel forward what arrives there, once the interface exists.
async fn configure_interface(handle: &Handle, subnet: Ipv4Net) -> Result<(), Error> {
    let link = interface::find(handle, HOST_PORT).await.map_err(netlink("find the port of the switch"))?;
    let Some(link) = link else { return Ok(()) };
    interface::silence(HOST_PORT).map_err(error::interface(HOST_PORT))?;
    interface::bring_up(handle, &link).await.map_err(netlink("bring up the port of the switch"))?;
    let addressed = set_address(handle, link.header.index, subnet).await;
    addressed.map_err(netlink("set the address of the port of the switch"))?;
    sysctl::forward_ipv4(HOST_PORT).map_err(error::interface(HOST_PORT))
}

/// Makes the kernel's address in the private subnet the only IPv4 address of an interface.
async fn set_address(handle: &Handle, index: u32, subnet: Ipv4Net) -> Result<(), rtnetlink::Error> {
    let wanted = (IpAddr::V4(kernel_address(subnet)), subnet.prefix_len());
    let request = handle.address().get().set_link_index_filter(index).execute();
    let present: Vec<AddressMessage> = request.try_collect().await?;
    let mut is_present = false;
    for message in present {
        match address(&message) {
            Some(found) if found == wanted => is_present = true,
            Some((IpAddr::V4(_), _)) => handle.address().del(message).execute().await?,
            _ => {}
        }
    }
    if !is_present {
        handle.address().add(index, wanted.0, wanted.1).execute().await?;
    }
    Ok(())
}

fn address(message: &AddressMessage) -> Option<(IpAddr, u8)> {
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    });
    Some((address?, message.header.prefix_len))
}

/// Replaces the table, unless it is as wanted.
fn replace(wanted: Option<String>) -> io::Result<bool> {
    if listed()?.as_deref().map(spelled_alike) == wanted.as_deref().map(spelled_alike) {
        return Ok(false);
    }
    // In one transaction. The first line makes the second one valid without a table.
    let remove = format!("table ip {TABLE} {{}}\ndelete table ip {TABLE}\n");
    load(&(remove + &wanted.unwrap_or_default())).map(|()| true)
}

/// The lines of a table in one spelling: versions of `nft` list the operator as `|` or `or`, and numbers with or without
/// leading zeros.
fn spelled_alike(table: &str) -> Vec<String> {
    let word = |word: &str| match (word, word.strip_prefix("0x")) {
        ("or", _) => "|".to_owned(),
        (_, Some(digits)) => format!("0x{}", digits.trim_start_matches('0')),
        _ => word.to_owned(),
    };
    table.lines().map(|line| line.split(' ').map(word).collect::<Vec<_>>().join(" ")).collect()
}

/// The table; `None` if there is none.
fn listed() -> io::Result<Option<String>> {
    // Without what the sets have of pods.
    let output = Command::new("nft").args(["--terse", "list", "table", "ip", TABLE]).output()?;
    if output.status.success() {
        return Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()));
    }
    match refusal(&output) {
        why if why.contains("No such file or directory") => Ok(None),
        why => Err(io::Error::other(why)),
    }
}

fn load(script: &str) -> io::Result<()> {
    let mut nft =
        Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut input) = nft.stdin.take() {
        input.write_all(script.as_bytes())?;
    }
    let output = nft.wait_with_output()?;
    if output.status.success() { Ok(()) } else { Err(io::Error::other(refusal(&output))) }
}

fn refusal(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().next().unwrap_or("no output").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;
    use testkit::{
        Netns,
        capture::Tap,
        needs,
        packet::{Packet, tcp_flags},
    };
    use tokio::time::timeout;

    use super::*;
    use crate::router::ruleset::Ruleset;

    const SOON: Duration = Duration::from_secs(10);
    /// Waits for something that must not happen.
    const A_MOMENT: Duration = Duration::from_millis(200);

    fn table(quota: Quota) -> NatTable {
        NatTable { subnet: "172.19.0.0/16".parse().unwrap(), tunnels: [].into(), closed: [].into(), quota }
    }

    /// A node between what its pods send and a host outside.
    struct Node {
        namespace: Netns,
        _outside: Netns,
        pods: Tap,
        host: Tap,
    }

    impl Node {
        fn new(label: &str, quota: Quota) -> anyhow::Result<Node> {
            let [namespace, outside] = [label, "out"].map(Netns::new);
            let (namespace, outside) = (namespace?, outside?);
            for (link, peer, mac) in
                [(HOST_PORT, "pods", "02:00:00:00:00:01"), ("up", "host", "02:00:00:00:00:02")]
            {
                namespace.veth(link, &outside, peer)?;
                namespace.mac(link, mac)?;
                namespace.up(link)?;
                outside.up(peer)?;
            }
            namespace.address(HOST_PORT, "172.19.255.254/16")?;
            namespace.address("up", "192.0.2.1/24")?;
            namespace.ip("neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev up")?;
            namespace.sysctl("net/ipv4/ip_forward", "1")?;
            namespace.run(|| Ok(replace(Some(table(quota).text()))?))?;
            let (pods, host) = (Tap::open(&outside, "pods")?, Tap::open(&outside, "host")?);
            Ok(Node { namespace, _outside: outside, pods, host })
        }

        /// Opens a connection to this port.
        fn open(&self, pod: u8, port: u16) -> anyhow::Result<()> {
            let frame = Packet::eth([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 7]);
            let frame = frame.ipv4([172, 19, 0, pod], [192, 0, 2, 9]).tcp(4000, port, tcp_flags::SYN);
            self.pods.send(&frame.build())
        }

        /// Waits for the connection to this port. Returns the ports of others before.
        fn until(&self, port: u16) -> anyhow::Result<Vec<u16>> {
            let mut others = vec![];
            self.host.expect(SOON, "a connection", |frame| {
                // IPv4 without options, TCP.
                let is_tcp = frame.get(12..15) == Some(&[8, 0, 0x45][..]) && frame.get(23) == Some(&6);
                let to = frame.get(36..38).filter(|_| is_tcp)?;
                let to = u16::from_be_bytes([to[0], to[1]]);
                if to != port {
                    others.push(to);
                }
                (to == port).then_some(())
            })?;
            Ok(others)
        }
    }

    /// Else it would leave the node's other programs, and other pods, no room.
    #[test]
    fn a_pod_has_a_quota_of_the_nodes_connections() {
        needs!(root(), binary("nft"));
        let unbounded = Quota::POD;
        let of_rate = Quota { rate: "1/day", burst: 3, ..unbounded };
        for (label, quota) in [("count", Quota { connections: 3, ..unbounded }), ("rate", of_rate)] {
            let node = Node::new(label, quota).unwrap();
            for port in 1..=3 {
                node.open(1, port).unwrap();
            }
            assert_eq!(node.until(3).unwrap(), [1, 2], "{label}");
            node.open(1, 4).unwrap();
            node.open(2, 5).unwrap();
            assert!(node.until(5).unwrap().is_empty(), "{label}");
            // What the sets have of pods is no change.
            let is_replaced = node.namespace.run(|| Ok(replace(Some(table(quota).text()))?)).unwrap();
            assert!(!is_replaced, "{label}");
        }
    }

    /// Else the table would be replaced at each comparison.
    #[test]
    fn the_table_is_as_nft_lists_it() {
        needs!(root(), binary("nft"));
        let node = Netns::new("nft").unwrap();
        let table = |closed: &[&str]| NatTable {
            subnet: "172.19.0.0/16".parse().unwrap(),
            tunnels: [4789, 8472].into(),
            closed: closed.iter().map(|name| (*name).to_owned()).collect(),
            quota: Quota::POD,
        };
        let (one, two) = (table(&[HOST_PORT]).text(), table(&[HOST_PORT, "contivh1"]).text());
        let replace = |table: Option<&String>| node.run(|| Ok(replace(table.cloned())?)).unwrap();
        let changed = [None, Some(&one), Some(&one), Some(&two), Some(&two), None, None].map(replace);
        assert_eq!(changed, [false, true, false, true, false, true, false]);
    }

    #[test]
    fn tables_are_compared_in_one_spelling() {
        let table = NatTable {
            subnet: "172.19.0.0/16".parse().unwrap(),
            tunnels: [4789].into(),
            closed: ["or".to_owned()].into(),
            quota: Quota::POD,
        };
        let text = table.text();
        for (from, to) in [(" | ", " or "), ("0x00002000", "0x2000")] {
            let other = text.replace(from, to);
            assert_ne!(other, text);
            assert_eq!(spelled_alike(&other), spelled_alike(&text), "{to}");
        }
        for (from, to) in [("mark | ", "mark & "), ("meta mark | ", ""), ("0x00002000", "0x00020000")] {
            let other = text.replace(from, to);
            assert_ne!(spelled_alike(&other), spelled_alike(&text), "{to}");
        }
    }

    fn nft(words: &str) -> anyhow::Result<()> {
        let status = Command::new("nft").args(words.split(' ')).status()?;
        anyhow::ensure!(status.success(), "nft {words}");
        Ok(())
    }

    #[test]
    fn a_flushed_table_is_noticed_at_once() {
        needs!(root(), binary("nft"));
        let node = Netns::new("flush").unwrap();
        let table = NatTable { tunnels: [4789].into(), ..table(Quota::POD) };
        let follow = async {
            replace(Some(table.text()))?;
            let mut ruleset = Ruleset::follow()?;
            nft("add table ip other")?;
            let early = timeout(A_MOMENT, ruleset.changed(TABLE)).await;
            anyhow::ensure!(early.is_err(), "noticed another table: {early:?}");
            for words in ["flush ruleset", "add table ip contiv-host-access"] {
                nft(words)?;
                timeout(SOON, ruleset.changed(TABLE)).await.with_context(|| words.to_owned())??;
            }
            anyhow::Ok(())
        };
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
        node.run(|| runtime()?.block_on(follow)).unwrap();
    }

    #[test]
    fn a_table_that_is_listed_in_another_form_is_not_replaced_all_the_time() {
        let table = table(Quota::POD);
        let compared = Some((Some(table), Instant::now()));
        for (repairs, is_compared) in [(0, true), (1, true), (MAX_REPAIRS, false)] {
            let mut access = HostAccess { compared: compared.clone(), repairs };
            access.notice();
            assert_eq!(access.compared.is_none(), is_compared, "{repairs}");
        }
    }
}
