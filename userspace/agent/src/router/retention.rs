use std::collections::BTreeSet;

use ipnet::IpNet;

/// Keeps what an earlier process has put into the kernel, while records are unreadable: it may be of their objects.
///
/// This ends when all records are readable for the first time. Since then the kernel has only what this process has put there.
#[derive(Debug, Default)]
pub(super) struct Retention {
    is_over: bool,
    /// Prefixes to which this process has had routes, or has refused them.
    own: BTreeSet<IpNet>,
    /// Whether this process has given host access.
    has_given_access: bool,
}

impl Retention {
    /// Keeps nothing.
    pub(super) fn over() -> Retention {
        Retention { is_over: true, ..Retention::default() }
    }

    /// Notes that it is known whether the kernel shall have routes to these prefixes, and whether it shall give host access.
    pub(super) fn update(
        &mut self,
        prefixes: impl IntoIterator<Item = IpNet>,
        gives_access: bool,
        has_unreadable: bool,
    ) {
        self.is_over |= !has_unreadable;
        if self.is_over {
            self.own.clear();
            return;
        }
        self.own.extend(prefixes);
        self.has_given_access |= gives_access;
    }

    /// Whether there may be something to keep.
    pub(super) fn is_active(&self) -> bool {
        !self.is_over
    }

    /// Whether a route that is not desired stays.
    pub(super) fn keeps(&self, prefix: &IpNet) -> bool {
        !self.is_over && !self.own.contains(prefix)
    }

    /// Whether host access that is not desired stays.
    pub(super) fn keeps_access(&self) -> bool {
        !self.is_over && !self.has_given_access
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_of_an_earlier_process_stay_while_records_are_unreadable() {
        let [earlier, own] = ["10.1.0.1/32", "10.1.0.2/32"].map(|prefix| prefix.parse::<IpNet>().unwrap());
        let mut retention = Retention::default();
        retention.update([own], false, true);
        retention.update([], false, true);
        assert!(retention.keeps(&earlier) && !retention.keeps(&own), "its pod was deleted");
        assert!(retention.is_active() && retention.keeps_access());
        retention.update([], true, true);
        assert!(!retention.keeps_access());
        retention.update([own], false, false);
        assert!(!retention.keeps(&earlier));
        // Of a record that becomes unreadable, the last valid version stays in effect.
        retention.update([own], false, true);
        assert!(!retention.is_active() && !retention.keeps(&earlier) && !retention.keeps_access());
    }
}
