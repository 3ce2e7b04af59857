//! What pods may take of the node's connection tracking by host access.
//!
//! All pods together have half of the kernel's table (`nf_conntrack_max`), in equal shares, so that no pod takes that of another one. The
//! kernel counts the connections of each pod, and not those of all: it reads the list of what it counts when a connection is added, up
//! to once in each tick of its clock. With a list of all pods, they could occupy a CPU.

use crate::sysctl::{self, Tracking};

/// Connections of a pod at most. See above for what more would cost.
const MAX_CONNECTIONS: u32 = 8192;
/// Number of pods that the table is divided among at least. Shares change when the number of pods exceeds a power of two.
const MIN_PODS: u32 = 16;
/// Part of the kernel's table that is left to the node.
const NODE_SHARE: u32 = 2;
/// Steps in which the use of the kernel's table counts.
const STEPS: u64 = 8;

/// What one pod may take of the node's connection tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quota {
    /// Connections at once; `None` if the kernel cannot count them. Those that TCP has closed stay for two minutes longer, and are not
    /// among them: the rate bounds these.
    pub(super) connections: Option<u32>,
    /// New connections in a time, as `nft` writes it. In each tick the kernel takes up to nine ended connections from the list, with
    /// 100 ticks 900 per second: if more were added, the list would grow without bound.
    pub(super) rate: &'static str,
    /// New connections at once.
    pub(super) burst: u32,
}

impl Quota {
    /// Of a node with few pods, and a kernel's table of 262,144 connections.
    pub(super) const POD: Quota =
        Quota { connections: Some(MAX_CONNECTIONS), rate: "500/second", burst: 2000 };
}

/// Rounds a number of pods up to one by which the table is divided.
pub(super) fn rounded(pods: usize) -> u32 {
    let pods = u32::try_from(pods).unwrap_or(u32::MAX);
    pods.max(MIN_PODS).checked_next_power_of_two().unwrap_or(u32::MAX)
}

/// The kernel's default for machines with 1 GiB or more, until connection tracking is loaded.
const DEFAULT: Tracking = Tracking { used: 0, max: 262_144 };

/// The kernel's table of connections.
pub(super) fn tracking() -> Tracking {
    sysctl::tracking().unwrap_or(DEFAULT)
}

/// Share of one of `pods` pods.
///
/// A table of nftables that is written anew does not count the connections that exist. So of a kernel's table that is in use, pods have
/// half of the part that is free.
fn share(Tracking { used, max }: Tracking, pods: u32) -> u32 {
    if max == 0 {
        return MAX_CONNECTIONS;
    }
    let free = u64::from(max.saturating_sub(used));
    let steps = (free * STEPS).div_ceil(u64::from(max)).max(1);
    let all = u64::from(max / NODE_SHARE) * steps / STEPS;
    let share = u32::try_from(all / u64::from(pods.max(1))).unwrap_or(u32::MAX);
    share.clamp(1, MAX_CONNECTIONS)
}

/// Division of the kernel's table among the pods.
#[derive(Debug, Default)]
pub(super) struct Division {
    /// Size of the kernel's table and number of pods of the current shares.
    basis: Option<(u32, u32)>,
    share: u32,
}

impl Division {
    /// Quota of each of `pods` pods. It changes with the size of the kernel's table, when there are more pods than before, and when the
    /// kernel's table has become free. A changed quota is a new table, which forgets what it has counted, so it changes for nothing else.
    pub(super) fn quota(&mut self, pods: u32, tracking: Tracking) -> Quota {
        let pods = self.basis.map_or(pods, |(_, before)| pods.max(before));
        let (basis, share) = (Some((tracking.max, pods)), share(tracking, pods));
        if self.basis != basis || share / 2 >= self.share {
            (self.basis, self.share) = (basis, share);
        }
        Quota { connections: Some(self.share), ..Quota::POD }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_together_have_half_of_the_kernels_table() {
        for max in [1024, 65_536, 262_144, 1_048_576] {
            for pods in [0, 1, 16, 17, 110, 500] {
                let divided = rounded(pods);
                let share =
                    Division::default().quota(divided, Tracking { used: 0, max }).connections.unwrap();
                assert!((1..=MAX_CONNECTIONS.min(max / 32)).contains(&share), "{max} {pods}: {share}");
                assert!(share == 1 || share * divided <= max / 2, "{max} {pods}: {share}");
                assert!(usize::try_from(divided).unwrap() >= pods);
            }
        }
        let of = |max, pods| share(Tracking { used: 0, max }, rounded(pods));
        assert_eq!([of(262_144, 16), of(262_144, 17), of(262_144, 110)], [8192, 4096, 1024]);
        assert_eq!([of(65_536, 1), of(1_048_576, 110), of(0, 110)], [2048, 4096, 8192]);
    }

    /// Else a pod that has filled its share would get another one.
    #[test]
    fn connections_that_are_not_counted_leave_less_to_the_pods() {
        let of = |used| share(Tracking { used, max: 262_144 }, 16);
        assert_eq!(
            [of(0), of(30_000), of(131_072), of(262_144), of(300_000)],
            [8192, 8192, 4096, 1024, 1024]
        );
    }

    #[test]
    fn a_quota_changes_with_the_table_and_with_more_pods_only() {
        let mut division = Division::default();
        let mut of = |pods, max, used| division.quota(rounded(pods), Tracking { used, max }).connections;
        assert_eq!(of(3, 262_144, 0), Some(8192));
        assert_eq!(of(16, 262_144, 200_000), Some(8192), "use alone changes nothing");
        assert_eq!(of(40, 262_144, 0), Some(2048));
        assert_eq!(of(3, 262_144, 0), Some(2048), "fewer pods");
        assert_eq!(of(3, 65_536, 65_536), Some(64), "another table, which is full");
        assert_eq!(of(3, 65_536, 30_000), Some(320), "it has become free");
        assert_eq!(of(3, 65_536, 0), Some(320));
    }
}
