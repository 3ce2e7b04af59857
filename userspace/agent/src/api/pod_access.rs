//! Access of pods to the API. They reach the node by infra networks.

use std::net::IpAddr;

use contiv_model::endpoint::Endpoint;

/// Paths that are open to pods.
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// Whether a request is refused, because its client is or may be a pod.
pub(super) fn is_refused(path: &str, from: IpAddr, is_assigned: impl FnOnce(IpAddr) -> bool) -> bool {
    !OPEN.contains(&path) && is_pod(from, is_assigned)
}

/// Pods have link-local addresses as well, which are not in their records.
fn is_pod(from: IpAddr, is_assigned: impl FnOnce(IpAddr) -> bool) -> bool {
    let from = from.to_canonical();
    let is_link_local = match from {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    is_link_local || !from.is_loopback() && is_assigned(from)
}

/// Whether the address is assigned to the endpoint.
pub(super) fn has(endpoint: &Endpoint, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => endpoint.ip == address,
        IpAddr::V6(address) => endpoint.ip6 == Some(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_see_health_and_metrics_only() {
        let pod = "10.1.0.9".parse().unwrap();
        for (path, open) in [
            ("/healthz", true),
            ("/readyz", true),
            ("/metrics", true),
            ("/inspect/driver", false),
            ("/monitor", false),
            ("/trace", false),
            ("/svcstats", false),
            ("/debug/reclaimEndpoint/a", false),
            ("/metrics/../inspect/driver", false),
        ] {
            assert_eq!(is_refused(path, pod, |from| from == pod), !open, "{path}");
        }
    }

    #[test]
    fn pods_are_recognised_by_all_their_addresses() {
        let assigned = ["10.1.0.9", "2001:db8::9", "127.0.0.1"].map(|ip| ip.parse::<IpAddr>().unwrap());
        for (from, pod) in [
            ("10.1.0.9", true),
            ("::ffff:10.1.0.9", true),
            ("2001:db8::9", true),
            ("fe80::2:aff:fe01:9", true),
            ("169.254.1.1", true),
            ("10.1.0.8", false),
            ("127.0.0.1", false),
            ("::1", false),
        ] {
            assert_eq!(is_pod(from.parse().unwrap(), |from| assigned.contains(&from)), pod, "{from}");
        }
    }
}
