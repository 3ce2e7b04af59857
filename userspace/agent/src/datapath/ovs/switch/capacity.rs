//! How many connections the zones of connection tracking may have, so that a tenant that begins many leaves others room in the table.
//!
//! Only in the userspace datapath, which has a counter for each zone, and forgets the limits when ovs-vswitchd restarts. The kernel reads
//! a list of the connections of a zone for each new one, and old kernels let the list grow without bound.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
};

use super::unixctl;
use crate::datapath::ovs::options::{DatapathType, Options};

const DATAPATH: &str = "netdev@ovs-netdev";

/// Connections of a zone for each of an eBPF node: those that have ended stay for their timeout, where they give way to new ones on eBPF
/// nodes.
const FACTOR: u32 = 8;

/// Gives these zones their limit, and takes it from those that are released. Returns the number of changes.
pub(crate) async fn set(
    options: &Options,
    zones: &BTreeSet<u16>,
    released: &[u16],
) -> Result<u64, unixctl::Error> {
    let is_idle = zones.is_empty() && released.is_empty();
    if options.datapath_type == DatapathType::System || is_idle {
        return Ok(0);
    }
    let present = unixctl::run(&options.socket, "dpctl/ct-get-limits", &[DATAPATH.to_owned()]).await?;
    let limit = options.connections.saturating_mul(FACTOR);
    let mut changes = 0;
    for (command, arguments) in commands(&limits(&present), zones, released, limit) {
        if !arguments.is_empty() {
            changes += arguments.len() as u64;
            let words: Vec<String> = iter::once(DATAPATH.to_owned()).chain(arguments).collect();
            unixctl::run(&options.socket, command, &words).await?;
        }
    }
    Ok(changes)
}

/// Limits by their zone, as ovs-vswitchd shows them.
fn limits(text: &str) -> BTreeMap<u16, u32> {
    let limit = |line: &str| {
        let (zone, rest) = line.strip_prefix("zone=")?.split_once(",limit=")?;
        let limit = rest.split(',').next()?;
        Some((zone.parse().ok()?, limit.parse().ok()?))
    };
    text.lines().filter_map(limit).collect()
}

/// Commands and their arguments; those without any are not needed.
fn commands(
    present: &BTreeMap<u16, u32>,
    zones: &BTreeSet<u16>,
    released: &[u16],
    limit: u32,
) -> [(&'static str, Vec<String>); 2] {
    let unlimited = released.iter().filter(|zone| present.contains_key(*zone));
    let unlimited: Vec<String> = unlimited.map(u16::to_string).collect();
    let unlimited = (!unlimited.is_empty()).then(|| format!("zone={}", unlimited.join(",")));
    let limited = zones.iter().filter(|zone| present.get(*zone) != Some(&limit));
    let limited = limited.map(|zone| format!("zone={zone},limit={limit}"));
    [("dpctl/ct-del-limits", unlimited.into_iter().collect()), ("dpctl/ct-set-limits", limited.collect())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_set() {
        let zones = ["zone=5,limit=800,count=3", "zone=6,limit=7,count=0", "zone=9,limit=800,count=0"];
        let present = limits(&format!("default limit=0\n{}\n", zones.join("\n")));
        assert_eq!(present, BTreeMap::from([(5, 800), (6, 7), (9, 800)]));
        let of = |zones: &[u16], released: &[u16]| {
            let zones = zones.iter().copied().collect();
            commands(&present, &zones, released, 800).map(|(_, arguments)| arguments.join(" "))
        };
        assert_eq!(of(&[5], &[]), ["", ""]);
        assert_eq!(of(&[5, 6, 7], &[8]), ["", "zone=6,limit=800 zone=7,limit=800"]);
        assert_eq!(of(&[5], &[6, 8, 9]), ["zone=6,9", ""]);
    }
}
