//! Destinations that the node reaches outside of the cluster's networks. The route to an endpoint on a VLAN network takes
//! precedence over other routes: an endpoint with such an address would receive packets that the node sends there.

use std::{
    collections::BTreeSet,
    fs, io,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    addresses,
    datapath::{
        KERNEL_PORT,
        host_access::{HOST_PORT, is_no_host},
    },
    state::{Attacher, Surroundings},
};

/// Interval between lookups.
const INTERVAL: Duration = Duration::from_secs(5);
/// Time to look up a name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// IPv4 routes in the network namespace of the calling thread (proc_net(5)).
const ROUTES: &str = "/proc/thread-self/net/route";

/// Keeps the state in sync until `stop` is cancelled.
pub(super) async fn follow(
    attacher: Attacher,
    mut leader: watch::Receiver<Option<String>>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let (mut known, mut netmaster) = (None, BTreeSet::new());
    loop {
        let current = leader.borrow_and_update().clone();
        if current.is_some() && current != known {
            let found = addresses_of(current.as_slice()).await;
            // Otherwise it is looked up again.
            if !found.is_empty() {
                (netmaster, known) = (found, current);
            }
        }
        update(&attacher, &netmaster);
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            Ok(()) = leader.changed() => {}
            () = sleep(INTERVAL) => {}
        }
    }
}

/// Sets the surroundings that can be read now. `netmaster` contains the addresses of the leader.
pub(super) fn update(attacher: &Attacher, netmaster: &BTreeSet<IpAddr>) {
    match read(netmaster) {
        Ok(surroundings) => attacher.surround(surroundings),
        // The surroundings do not change.
        Err(error) => tracing::warn!("read the addresses of this node: {error}"),
    }
}

fn read(netmaster: &BTreeSet<IpAddr>) -> io::Result<Surroundings> {
    let is_host = |ip: IpAddr| !is_no_host(ip) && !ip.is_loopback();
    let interfaces = addresses::read()?.into_iter();
    let networks = interfaces
        .filter(|(name, address)| ![HOST_PORT, KERNEL_PORT].contains(&&**name) && is_host(address.addr()))
        .map(|(name, address)| (name, address.trunc()));
    // The file may be missing.
    let routes = fs::read_to_string(ROUTES).unwrap_or_default();
    let others = default_gateways(&routes).into_iter().filter(|ip| is_host(*ip));
    Ok(Surroundings {
        addresses: netmaster.iter().copied().chain(others).collect(),
        networks: networks.collect(),
    })
}

/// Gateways of the default routes: destination and gateway are the second and third column, as numbers in the byte order of the
/// machine.
fn default_gateways(text: &str) -> Vec<IpAddr> {
    let gateway = |line: &str| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let mut address = || {
            let number = u32::from_str_radix(columns.next()?, 16).ok()?;
            Some(Ipv4Addr::from(number.to_ne_bytes()))
        };
        let (to, gateway) = (address()?, address()?);
        (to.is_unspecified() && !gateway.is_unspecified()).then_some(IpAddr::V4(gateway))
    };
    text.lines().filter_map(gateway).collect()
}

/// Addresses of endpoints of the store, or of netmaster. An endpoint whose name cannot be resolved now, or that is a
/// socket, has none.
pub(super) async fn addresses_of(endpoints: &[String]) -> BTreeSet<IpAddr> {
    let lookups = endpoints.iter().filter(|endpoint| !endpoint.starts_with("unix:")).map(|endpoint| async move {
        let authority = endpoint.rsplit_once("//").map_or(endpoint.as_str(), |(_, authority)| authority);
        let authority = authority.trim_end_matches('/').to_owned();
        match timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host(authority)).await {
            Ok(Ok(found)) => found.map(|address| address.ip()).collect(),
            Ok(Err(_)) | Err(_) => {
                tracing::warn!(
                    endpoint,
                    "no address of this endpoint of the store or of netmaster is known: a pod on a VLAN network can have it; use its \
                     IP address instead of a name"
                );
                vec![]
            }
        }
    });
    let found = futures::future::join_all(lookups).await;
    found.into_iter().flatten().filter(|ip| !ip.is_loopback()).collect()
}

#[cfg(test)]
mod tests {
    use testkit::{Netns, needs};

    use super::*;

    #[test]
    fn the_node_reaches_its_own_networks_and_its_gateway() {
        needs!(root(), binary("ip"));
        let (node, other) = (Netns::new("around").unwrap(), Netns::new("other").unwrap());
        node.up("lo").unwrap();
        for (link, peer, address) in [
            ("eth0", "p0", "192.0.2.1/24"),
            (HOST_PORT, "p1", "172.19.255.254/16"),
            (KERNEL_PORT, "p2", "10.9.0.1/24"),
        ] {
            node.veth(link, &other, peer).unwrap();
            node.address(link, address).unwrap();
            node.up(link).unwrap();
            other.up(peer).unwrap();
        }
        node.ip("route add default via 192.0.2.254").unwrap();
        node.ip("route add 198.51.100.0/24 via 192.0.2.253").unwrap();
        let netmaster = BTreeSet::from([IpAddr::from([203, 0, 113, 1])]);
        let found = node.run(|| Ok(read(&netmaster)?)).unwrap();
        let networks: Vec<_> =
            found.networks.iter().map(|(link, network)| format!("{link} {network}")).collect();
        assert_eq!(networks, ["eth0 192.0.2.0/24"]);
        let has = |ip: [u8; 4]| found.addresses.contains(&ip.into());
        assert!(has([203, 0, 113, 1]) && has([192, 0, 2, 254]) && !has([192, 0, 2, 253]), "{found:?}");
    }
}
