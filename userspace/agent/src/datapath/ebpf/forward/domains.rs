//! Numbers of routing domains.
//!
//! A bridged network is its own domain. Its subnet may overlap others: the original Contiv refuses overlapping subnets of
//! one tenant, but compares address ranges as they were written, so that `10.1.1.10-10.1.1.20/24` and
//! `10.1.1.30-10.1.1.40/24` are two networks with the same prefix. Networks of different tenants may have equal subnets.
//! Link-local addresses and addresses of hosts on the physical network, which are unique only on one link, are not unique
//! in a tenant. The number of the domain is that of the network, so that nothing has to be stored.
//!
//! Networks of one VRF that are routed to each other share a domain. Its number is stored with the name of the VRF,
//! because flows contain it. It does not change when the agent restarts, is upgraded, or removes all networks of the VRF
//! for a while. No number is reused.

use std::collections::BTreeSet;

use contiv_abi::{
    Domain, DomainName, Segment,
    maps::{DOMAINS, DOMAINS_CAPACITY},
};
use contiv_model::vrf::Vrf;

use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{batch, btf, pins::Pins, table::Table, writes::Writes},
    },
    telemetry::TableUsage,
};

/// `ctv_domains`.
pub(crate) struct Domains {
    numbers: Table<DomainName, u32>,
}

impl Domains {
    /// Opens the map. Numbers of other ABI versions are adopted.
    pub(crate) fn open(pins: &Pins, writes: &Writes) -> Result<Self, Error> {
        let map = pins.open_map(DOMAINS)?;
        let mut domains = Domains { numbers: Table::new(DOMAINS, DOMAINS_CAPACITY, map, writes.clone()) };
        domains.numbers.read()?;
        let own = pins.open_data(DOMAINS)?;
        for other in pins.other_abi_versions().iter().filter(|other| other.map(DOMAINS).exists()) {
            let map = other.open_data(DOMAINS)?;
            if btf::are_alike(&own, &map) {
                domains.adopt(batch::entries(DOMAINS, &map)?)?;
            }
        }
        Ok(domains)
    }

    /// Adds names with their numbers, unless the name or the number is known.
    fn adopt(&mut self, others: Vec<(DomainName, u32)>) -> Result<(), Error> {
        let known: BTreeSet<u32> = self.numbers.iter().map(|(_, number)| *number).collect();
        for (name, number) in others {
            if self.numbers.get(&name).is_none() && !known.contains(&number) {
                self.numbers.set(name, number)?;
            }
        }
        Ok(())
    }

    pub(crate) fn usage(&self) -> TableUsage {
        self.numbers.usage()
    }

    /// The domain of a network; `None` if the VRF has no number yet.
    pub(crate) fn of_network(&self, vrf: &Vrf, segment: Segment) -> Option<Domain> {
        match vrf {
            Vrf::Network(_) => Some(Domain::of_segment(segment)),
            Vrf::Tenant(_) => self.of_vrf(vrf),
        }
    }

    /// The domain of a VRF of several networks.
    pub(crate) fn of_vrf(&self, vrf: &Vrf) -> Option<Domain> {
        let Vrf::Tenant(tenant) = vrf else { return None };
        self.numbers.get(&DomainName::new(tenant.as_str())?).map(|number| Domain::of_vrf(*number))
    }

    /// Allocates a number for a VRF of several networks, unless it has one. `used` are the domains of the networks in the kernel.
    pub(crate) fn allocate(
        &mut self,
        vrf: &Vrf,
        used: impl FnOnce() -> BTreeSet<Domain>,
    ) -> Result<(), Error> {
        let (Vrf::Tenant(tenant), None) = (vrf, self.of_vrf(vrf)) else { return Ok(()) };
        let refused = |cause: String| failed(format!("number the routing domain of the {vrf}"), cause);
        let name = DomainName::new(tenant.as_str())
            .ok_or_else(|| refused(format!("the name has more than {} bytes", DomainName::LEN)))?;
        let next = next(self.numbers.iter().map(|(_, number)| *number))
            .ok_or_else(|| refused("all numbers have been used".to_owned()))?;
        if self.numbers.usage().entries >= DOMAINS_CAPACITY {
            let numbers = self.numbers.iter().map(|(name, number)| (*name, *number)).collect();
            for name in removable(numbers, &used()) {
                self.numbers.remove(&name)?;
            }
        }
        self.numbers.set(name, next)
    }
}

/// Returns the number after all used numbers.
fn next(numbers: impl Iterator<Item = u32>) -> Option<u32> {
    let last = numbers.max().unwrap_or(0);
    (last < Domain::MAX_VRF).then_some(last + 1)
}

/// Returns the names of VRFs without networks. The highest number is kept, so that it is not reused: the flow table may
/// still contain flows of its tenant.
fn removable(mut numbers: Vec<(DomainName, u32)>, used: &BTreeSet<Domain>) -> Vec<DomainName> {
    numbers.sort_unstable_by_key(|(_, number)| *number);
    numbers.pop();
    let is_unused = |(_, number): &(DomainName, u32)| !used.contains(&Domain::of_vrf(*number));
    numbers.into_iter().filter(is_unused).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DomainName {
        DomainName::new(text).unwrap()
    }

    #[test]
    fn numbers_are_not_used_twice() {
        assert_eq!(next([].into_iter()), Some(1));
        assert_eq!(next([7, 3].into_iter()), Some(8));
        assert_eq!(next([Domain::MAX_VRF].into_iter()), None);
        let numbers = vec![(name("red"), 3), (name("blue"), 1), (name("green"), 2)];
        assert_eq!(removable(numbers.clone(), &BTreeSet::new()), [name("blue"), name("green")]);
        assert_eq!(removable(numbers, &[Domain::of_vrf(1)].into()), [name("green")]);
        assert_eq!(removable(vec![], &BTreeSet::new()), []);
    }
}
