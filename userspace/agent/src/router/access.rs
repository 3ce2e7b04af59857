//! Host access in the kernel: the address of the datapath's interface, and masquerading of what pods send to others.
//!
//! The node has ways to pods of other tenants: infra networks, and the routes of VLAN networks. Host access leads to none of
//! them, and only the node begins connections with pods by it. With the address of the node, what pods send to a port of tunnels
//! would be frames of this node.

use std::{
    collections::BTreeSet,
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
    interface, mtu,
    nat_table::{NatTable, TABLE},
    overlap::Overlap,
    quota::{self, Division, Quota},
    rules,
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

/// The host access that the kernel gives.
#[derive(Debug, Default)]
pub(super) struct HostAccess {
    /// The table that was compared with the kernel's last, and when.
    compared: Option<(Option<(NatTable, Quota)>, Instant)>,
    /// Comparisons in a row that led to a replacement.
    repairs: u32,
    division: Division,
    /// See [`HostAccess::is_ending`].
    is_ending: bool,
    /// Why the kernel has the table without a bound for the connections of each pod.
    refused: Option<String>,
}

impl HostAccess {
    /// Makes the kernel give this host access to pods with these interfaces, or none. Returns the number of changes, and what is not in
    /// effect, one line each.
    ///
    /// As long as the datapath's interface exists, pods may be led to it: what masquerades and bounds them stays.
    pub(super) async fn sync(
        &mut self,
        handle: &Handle,
        wanted: Option<&NatTable>,
        pods: &BTreeSet<String>,
    ) -> Result<(usize, Vec<String>), Error> {
        self.is_ending = match wanted {
            Some(_) => false,
            None => {
                let found = interface::find(handle, HOST_PORT).await;
                found.map_err(netlink("find the interface of host access"))?.is_some()
            }
        };
        match self.is_ending {
            true => Ok((0, vec![])),
            false => self.set(handle, wanted, pods).await,
        }
    }

    /// Whether the kernel gives host access only until the datapath's interface is gone.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Removes all host access.
    pub(super) async fn remove(handle: &Handle) -> Result<(), Error> {
        HostAccess::default().set(handle, None, &BTreeSet::new()).await.map(drop)
    }

    async fn set(
        &mut self,
        handle: &Handle,
        wanted: Option<&NatTable>,
        pods: &BTreeSet<String>,
    ) -> Result<(usize, Vec<String>), Error> {
        let overlap = match wanted {
            Some(table) => overlap(handle, table.subnet).await?,
            None => None,
        };
        let is_refused = overlap.as_ref().is_some_and(|overlap| !overlap.is_later);
        let wanted = wanted.filter(|_| !is_refused);
        // First: without the table, what pods send would be forwarded anywhere.
        let bounded = wanted.map(|table| (table.clone(), self.division.quota(table.pods, quota::tracking())));
        let table = self.sync_table(bounded).await;
        // They keep what the table has not marked from being forwarded, also after another program has removed the table.
        let rules = match is_refused {
            true => rules::close_host_access(handle).await,
            false => rules::sync_host_access(handle, wanted.map(|table| table.subnet)).await,
        };
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
        let mut warnings: Vec<String> = overlap.iter().map(ToString::to_string).collect();
        let Some(NatTable { subnet, .. }) = wanted else { return Ok((changes, warnings)) };
        changes += usize::from(configure_interface(handle, *subnet, pods).await?);
        warnings.extend(self.shortcomings());
        Ok((changes, warnings))
    }

    /// What the parameters and modules of the kernel keep from being in effect.
    fn shortcomings(&self) -> impl Iterator<Item = String> {
        let closed = (!sysctl::forwards_ipv4()).then(|| {
            "pods do not reach addresses outside of the cluster: set net.ipv4.ip_forward to 1, or start the agent with \
             --no-host-access"
                .to_owned()
        });
        let unbounded = self.refused.as_ref().map(|why| {
            format!(
                "pods can fill the connection tracking of the node (nf_conntrack_max) by host access: the kernel does not count their \
                 connections: run nft: {why}; load the kernel module nft_connlimit"
            )
        });
        closed.into_iter().chain(unbounded)
    }

    /// Compares the table at the next [`sync`](Self::sync): the kernel has notified of a change.
    pub(super) fn notice(&mut self) {
        if self.repairs < MAX_REPAIRS {
            self.compared = None;
        }
    }

    /// Replaces the kernel's table unless it is as wanted, or was a moment ago: each comparison runs `nft`. Returns whether it was
    /// replaced.
    async fn sync_table(&mut self, wanted: Option<(NatTable, Quota)>) -> io::Result<bool> {
        if let Some((table, at)) = &self.compared
            && *table == wanted
            && (wanted.is_none() || at.elapsed() < COMPARISON_INTERVAL)
        {
            return Ok(false);
        }
        let table = wanted.clone();
        let replaced = tokio::task::spawn_blocking(move || replace(table.as_ref(), load)).await;
        let Replacement { is_changed, refused } = replaced.map_err(io::Error::other)??;
        self.compared = Some((wanted, Instant::now()));
        self.repairs = if is_changed { self.repairs.saturating_add(1) } else { 0 };
        self.refused = refused;
        Ok(is_changed)
    }
}

/// A network of the node that overlaps the private subnet.
async fn overlap(handle: &Handle, subnet: Ipv4Net) -> Result<Option<Overlap>, Error> {
    let Some(mut overlap) = Overlap::find(subnet).map_err(Error::Addresses)? else { return Ok(None) };
    // The rules outlive the interface, which is made again with the datapath.
    let given = rules::give_host_access(handle, subnet).await;
    overlap.is_later |= given.map_err(netlink("read the routing rules of host access"))?;
    Ok(Some(overlap))
}

/// Gives the interface its address, and makes the kernel forward what arrives there, and to these pods by it, once the interface exists.
/// Returns whether the pods need another MTU than before.
async fn configure_interface(
    handle: &Handle,
    subnet: Ipv4Net,
    pods: &BTreeSet<String>,
) -> Result<bool, Error> {
    let link = interface::find(handle, HOST_PORT).await.map_err(netlink("find the port of the switch"))?;
    let Some(link) = link else { return Ok(false) };
    interface::silence(HOST_PORT).map_err(error::interface(HOST_PORT))?;
    interface::bring_up(handle, &link).await.map_err(netlink("bring up the port of the switch"))?;
    let addressed = set_address(handle, link.header.index, subnet).await;
    addressed.map_err(netlink("set the address of the port of the switch"))?;
    let changed = mtu::sync(handle, &link, subnet, pods).await;
    let is_changed = changed.map_err(netlink("set the MTU of the route to the pods"))?;
    sysctl::forward_ipv4(HOST_PORT).map_err(error::interface(HOST_PORT))?;
    // Where the kernel looks for the way back, it would find the rules against packets without a mark, and drop what pods send and the
    // answers.
    sysctl::filter_sources_by_mark().map_err(error::interface(HOST_PORT))?;
    Ok(is_changed)
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

/// Result of [`replace`].
#[derive(Debug, Default, PartialEq, Eq)]
struct Replacement {
    is_changed: bool,
    /// Why the table has no count of connections.
    refused: Option<String>,
}

/// Replaces the table, unless it is as wanted. A kernel that cannot count connections gets one that bounds their rate alone; all other
/// rules are the same.
fn replace(
    wanted: Option<&(NatTable, Quota)>,
    load: impl Fn(&str) -> io::Result<()>,
) -> io::Result<Replacement> {
    let present = listed()?.as_deref().map(spelled_alike);
    let text = wanted.map(|(table, quota)| table.text(*quota)).unwrap_or_default();
    if present == wanted.map(|_| spelled_alike(&text)) {
        return Ok(Replacement::default());
    }
    // In one transaction. The first line makes the second one valid without a table.
    let script = |text: &str| format!("table ip {TABLE} {{}}\ndelete table ip {TABLE}\n{text}");
    let Err(error) = load(&script(&text)) else {
        return Ok(Replacement { is_changed: true, refused: None });
    };
    let Some((table, quota)) = wanted else { return Err(error) };
    let text = table.text(Quota { connections: None, ..*quota });
    let is_changed = present != Some(spelled_alike(&text));
    if is_changed && load(&script(&text)).is_err() {
        return Err(error);
    }
    Ok(Replacement { is_changed, refused: Some(error.to_string()) })
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
    // Without what the sets have of pods, and without counters.
    let output =
        Command::new("nft").args(["--terse", "--stateless", "list", "table", "ip", TABLE]).output()?;
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

    fn table() -> NatTable {
        NatTable {
            subnet: "172.19.0.0/16".parse().unwrap(),
            tunnels: [].into(),
            closed: [].into(),
            leaves: [[192, 0, 2, 9].into()].into(),
            pods: 16,
        }
    }

    /// As a kernel without `nft_connlimit`.
    fn load_uncounted(script: &str) -> io::Result<()> {
        if script.contains("ct count") {
            Err(io::Error::other("No such file or directory"))
        } else {
            load(script)
        }
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
            namespace.run(|| Ok(replace(Some(&(table(), quota)), load)?))?;
            let (pods, host) = (Tap::open(&outside, "pods")?, Tap::open(&outside, "host")?);
            Ok(Node { namespace, _outside: outside, pods, host })
        }

        /// Opens a connection to this port.
        fn open(&self, pod: u8, port: u16) -> anyhow::Result<()> {
            self.send(pod, port, tcp_flags::SYN)
        }

        fn send(&self, pod: u8, port: u16, flags: u8) -> anyhow::Result<()> {
            let frame = Packet::eth([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 7]);
            let frame = frame.ipv4([172, 19, 0, pod], [192, 0, 2, 9]).tcp(4000, port, flags);
            self.pods.send(&frame.build())
        }

        /// Waits for the connection to this port. Returns the ports of other segments before.
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
        for (label, quota) in [("count", Quota { connections: Some(3), ..unbounded }), ("rate", of_rate)] {
            let node = Node::new(label, quota).unwrap();
            for port in 1..=3 {
                node.open(1, port).unwrap();
            }
            assert_eq!(node.until(3).unwrap(), [1, 2], "{label}");
            node.open(1, 4).unwrap();
            node.open(2, 5).unwrap();
            assert!(node.until(5).unwrap().is_empty(), "{label}");
            // What the sets have of pods is no change.
            let replaced = node.namespace.run(|| Ok(replace(Some(&(table(), quota)), load)?)).unwrap();
            assert_eq!(replaced, Replacement::default(), "{label}");
        }
    }

    /// Without the table, pods would have no host access at all.
    #[test]
    fn a_kernel_that_does_not_count_connections_bounds_their_rate() {
        needs!(root(), binary("nft"));
        let quota = Quota { connections: Some(1), rate: "1/day", burst: 3 };
        let node = Node::new("uncounted", quota).unwrap();
        let changed = Quota { connections: Some(2), ..quota };
        let uncounted = || {
            let replaced = replace(Some(&(table(), changed)), load_uncounted)?;
            anyhow::Ok((replaced.is_changed, replaced.refused.is_some()))
        };
        assert_eq!(node.namespace.run(uncounted).unwrap(), (true, true));
        assert_eq!(node.namespace.run(uncounted).unwrap(), (false, true), "it is as it can be");
        for port in 1..=3 {
            node.open(1, port).unwrap();
        }
        assert_eq!(node.until(3).unwrap(), [1, 2]);
        node.open(1, 4).unwrap();
        node.open(2, 5).unwrap();
        assert!(node.until(5).unwrap().is_empty());
        let counted = node.namespace.run(|| Ok(replace(Some(&(table(), changed)), load)?)).unwrap();
        assert_eq!(counted, Replacement { is_changed: true, refused: None });
    }

    /// A leaf switch takes a connection from the address of a node for that of its BGP speaker.
    #[test]
    fn pods_do_not_reach_the_speaker_of_the_leaf_switch() {
        needs!(root(), binary("nft"));
        let node = Node::new("leaf", Quota::POD).unwrap();
        node.open(7, 179).unwrap();
        node.open(7, 80).unwrap();
        assert_eq!(node.until(80).unwrap(), [0; 0]);
    }

    /// It would have the private address of the pod.
    #[test]
    fn a_segment_of_no_connection_does_not_leave_the_node() {
        needs!(root(), binary("nft"));
        let node = Node::new("invalid", Quota::POD).unwrap();
        // Connection tracking accepts no segment with these flags.
        node.send(7, 80, tcp_flags::SYN | tcp_flags::FIN | tcp_flags::RST).unwrap();
        node.open(7, 81).unwrap();
        assert_eq!(node.until(81).unwrap(), [0; 0]);
    }

    /// Else the table would be replaced at each comparison.
    #[test]
    fn the_table_is_as_nft_lists_it() {
        needs!(root(), binary("nft"));
        let node = Netns::new("nft").unwrap();
        let table = |closed: &[&str]| NatTable {
            tunnels: [4789, 8472].into(),
            closed: closed.iter().map(|name| (*name).to_owned()).collect(),
            ..table()
        };
        let (one, two) = ((table(&[HOST_PORT]), Quota::POD), (table(&[HOST_PORT, "contivh1"]), Quota::POD));
        let replace =
            |table: Option<&(NatTable, Quota)>| node.run(|| Ok(replace(table, load)?.is_changed)).unwrap();
        let changed = [None, Some(&one), Some(&one), Some(&two), Some(&two), None, None].map(replace);
        assert_eq!(changed, [false, true, false, true, false, true, false]);
    }

    #[test]
    fn tables_are_compared_in_one_spelling() {
        let table = NatTable { tunnels: [4789].into(), closed: ["or".to_owned()].into(), ..table() };
        let text = table.text(Quota::POD);
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
        let table = NatTable { tunnels: [4789].into(), ..table() };
        let follow = async {
            replace(Some(&(table, Quota::POD)), load)?;
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
        let compared = Some((Some((table(), Quota::POD)), Instant::now()));
        for (repairs, is_compared) in [(0, true), (1, true), (MAX_REPAIRS, false)] {
            let mut access = HostAccess { compared: compared.clone(), repairs, ..HostAccess::default() };
            access.notice();
            assert_eq!(access.compared.is_none(), is_compared, "{repairs}");
        }
    }
}
