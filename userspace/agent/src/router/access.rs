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
mod tests;
