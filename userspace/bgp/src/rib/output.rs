//! Adj-RIB-Out: the routes that the neighbor has been told of.

use std::collections::BTreeSet;

use ipnet::IpNet;

use crate::Family;

/// Differences that one step sends, so that a slow neighbor delays changes instead of queueing them.
const STEP: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct AdjRibOut {
    /// `None` until the speaker's routes are known.
    wanted: Option<BTreeSet<IpNet>>,
    advertised: BTreeSet<IpNet>,
    /// Families whose End-of-RIB marker is to be sent.
    unfinished: BTreeSet<Family>,
}

/// What is to be sent for a family next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) family: Family,
    pub(crate) withdrawn: Vec<IpNet>,
    pub(crate) announced: Vec<IpNet>,
    pub(crate) end_of_rib: bool,
}

impl AdjRibOut {
    pub(crate) fn want(&mut self, prefixes: BTreeSet<IpNet>) {
        self.wanted = Some(prefixes);
    }

    /// Prefixes that the speaker originates.
    pub(crate) fn wanted(&self) -> Option<&BTreeSet<IpNet>> {
        self.wanted.as_ref()
    }

    pub(crate) fn advertised(&self) -> usize {
        self.advertised.len()
    }

    /// A session is established: the neighbor knows no route.
    pub(crate) fn restart(&mut self, families: &[Family]) {
        self.advertised.clear();
        self.unfinished = families.iter().copied().collect();
    }

    pub(crate) fn clear(&mut self) {
        self.restart(&[]);
    }

    /// Sends all routes of a family again. Withdrawals that have not been sent yet are still sent.
    pub(crate) fn refresh(&mut self, family: Family) {
        let Some(wanted) = &self.wanted else { return };
        self.advertised.retain(|prefix| Family::of(prefix) != family || !wanted.contains(prefix));
    }

    /// Takes the next changes for each family of `families`. Withdrawals come before announcements.
    pub(crate) fn take_changes(&mut self, families: &[Family]) -> Vec<Changes> {
        let Some(wanted) = &self.wanted else { return vec![] };
        let mut changes = vec![];
        for family in families.iter().copied() {
            let of_family = |prefix: &&IpNet| Family::of(prefix) == family;
            let withdrawn: Vec<_> =
                self.advertised.difference(wanted).filter(of_family).take(STEP).copied().collect();
            let announced: Vec<_> = wanted
                .difference(&self.advertised)
                .filter(of_family)
                .take(STEP - withdrawn.len())
                .copied()
                .collect();
            let complete = withdrawn.len() + announced.len() < STEP;
            let end_of_rib = complete && self.unfinished.remove(&family);
            if !withdrawn.is_empty() || !announced.is_empty() || end_of_rib {
                changes.push(Changes { family, withdrawn, announced, end_of_rib });
            }
        }
        for change in &changes {
            for prefix in &change.withdrawn {
                self.advertised.remove(prefix);
            }
            self.advertised.extend(change.announced.iter().copied());
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(range: std::ops::Range<u16>) -> BTreeSet<IpNet> {
        let net = |n: u16| format!("10.0.{}.{}/32", n >> 8, n & 255).parse().unwrap();
        range.map(net).collect()
    }

    #[test]
    fn nothing_is_sent_before_the_routes_are_known() {
        let mut table = AdjRibOut::default();
        table.restart(&[Family::Ipv4]);
        assert_eq!(table.take_changes(&[Family::Ipv4]), []);
        table.want(BTreeSet::new());
        let end = Changes { family: Family::Ipv4, withdrawn: vec![], announced: vec![], end_of_rib: true };
        assert_eq!(table.take_changes(&[Family::Ipv4]), [end]);
        assert_eq!(table.take_changes(&[Family::Ipv4]), []);
    }

    #[test]
    fn changes_are_sent_in_steps_and_only_once() {
        let mut table = AdjRibOut::default();
        table.restart(&[Family::Ipv4]);
        table.want(prefixes(0..2500));
        let sent: Vec<_> = std::iter::from_fn(|| table.take_changes(&[Family::Ipv4]).pop())
            .map(|change| (change.announced.len(), change.end_of_rib))
            .collect();
        assert_eq!(sent, [(1000, false), (1000, false), (500, true)]);
        table.want(prefixes(1..2501));
        let change = table.take_changes(&[Family::Ipv4]).pop().unwrap();
        assert_eq!(change.withdrawn, ["10.0.0.0/32".parse().unwrap()]);
        assert_eq!(change.announced, ["10.0.9.196/32".parse().unwrap()]);
        assert!(!change.end_of_rib);
        assert_eq!(table.advertised(), 2500);
    }

    #[test]
    fn refresh_sends_a_family_again() {
        let mut table = AdjRibOut::default();
        let families = [Family::Ipv4, Family::Ipv6];
        table.restart(&families);
        table.want(["10.0.0.1/32", "2001:db8::1/128"].map(|text| text.parse().unwrap()).into());
        assert_eq!(table.take_changes(&families).len(), 2);
        table.refresh(Family::Ipv6);
        let again = table.take_changes(&families);
        assert_eq!(again.iter().map(|change| change.family).collect::<Vec<_>>(), [Family::Ipv6]);
    }

    #[test]
    fn refresh_forgets_no_withdrawal() {
        let mut table = AdjRibOut::default();
        table.restart(&[Family::Ipv4]);
        table.want(prefixes(0..2));
        assert_eq!(table.take_changes(&[Family::Ipv4]).len(), 1);
        table.want(prefixes(1..2));
        table.refresh(Family::Ipv4);
        let change = table.take_changes(&[Family::Ipv4]).pop().unwrap();
        assert_eq!(change.withdrawn, prefixes(0..1).into_iter().collect::<Vec<_>>());
        assert_eq!(change.announced, prefixes(1..2).into_iter().collect::<Vec<_>>());
    }
}
