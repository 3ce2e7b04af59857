//! What the programs count of services: for each processor an array with a place for each port of a service, in our memory.

use std::{collections::BTreeSet, num::NonZeroU32};

use aya::{maps::MapData, util::nr_cpus};
use contiv_abi::{
    ServiceCount,
    maps::{SERVICE_COUNTS, SERVICE_COUNTS_CAPACITY},
};

use crate::datapath::{
    Error,
    ebpf::{failure::failed, maps::mmap::Mapping},
    telemetry::{ServiceCounters, Traffic},
};

/// As many places as the map has.
pub(crate) fn size() -> Result<usize, Error> {
    Ok(SERVICE_COUNTS_CAPACITY * processors()? as usize)
}

fn processors() -> Result<u32, Error> {
    nr_cpus().map(|count| count as u32).map_err(|(_, error)| failed("count the CPUs", error))
}

/// The counts. Whoever is given a number has a place that is nobody else's.
pub(crate) struct Counts {
    places: Mapping<ServiceCount>,
    processors: u32,
}

impl Counts {
    pub(crate) fn new(map: MapData) -> Result<Counts, Error> {
        let what = || format!("map {SERVICE_COUNTS} into memory");
        let places = Mapping::new(map, size()?).map_err(|error| failed(what(), error))?;
        Ok(Counts { places, processors: processors()? })
    }

    /// Gives the next number from `from` on that has a place, all its counts zero; `None` when all places are taken.
    pub(crate) fn begin(&mut self, from: NonZeroU32) -> Option<NonZeroU32> {
        let all = (0..SERVICE_COUNTS_CAPACITY as u32).map(|ahead| from.get().wrapping_add(ahead));
        let number = all.filter_map(NonZeroU32::new).find(|number| self.owner(number.get()) == Some(0))?;
        self.fill(number.get(), ServiceCount { number: number.get(), ..ServiceCount::default() });
        Some(number)
    }

    /// What was counted for the number is gone, and nothing is counted for it any more.
    pub(crate) fn end(&mut self, number: u32) {
        if self.owner(number) == Some(number) {
            self.fill(number, ServiceCount::default());
        }
    }

    /// Nobody but these has a place, and they do.
    pub(crate) fn keep(&mut self, numbers: &BTreeSet<u32>) {
        for place in 0..SERVICE_COUNTS_CAPACITY as u32 {
            let owner = self.owner(place).unwrap_or(0);
            if owner != 0 && !numbers.contains(&owner) {
                self.end(owner);
            }
        }
        for number in numbers.iter().filter_map(|number| NonZeroU32::new(*number)) {
            if self.owner(number.get()) == Some(0) {
                self.fill(number.get(), ServiceCount { number: number.get(), ..ServiceCount::default() });
            }
        }
    }

    /// Of each number that anything was counted for.
    pub(crate) fn sums(&self) -> Vec<(u32, ServiceCounters)> {
        let places = 0..SERVICE_COUNTS_CAPACITY as u32;
        let sums = places.filter_map(|place| match self.owner(place)? {
            0 => None,
            owner => Some((owner, self.sum(owner))),
        });
        sums.filter(|(_, sum)| *sum != ServiceCounters::default()).collect()
    }

    fn sum(&self, number: u32) -> ServiceCounters {
        let mut sum = ServiceCounters::default();
        for processor in 0..self.processors {
            let count = self.places.get(ServiceCount::place(processor, number)).unwrap_or_default();
            if count.number == number {
                let [to_backends, to_clients] =
                    [0, 1].map(|side| Traffic { packets: count.packets[side], bytes: count.bytes[side] });
                sum.connections += count.connections;
                add(&mut sum.to_backends, to_backends);
                add(&mut sum.to_clients, to_clients);
            }
        }
        sum
    }

    /// Who has the place of the number; zero for nobody.
    fn owner(&self, number: u32) -> Option<u32> {
        self.places.get(ServiceCount::place(0, number)).map(|count| count.number)
    }

    fn fill(&mut self, number: u32, count: ServiceCount) {
        for processor in 0..self.processors {
            self.places.set(ServiceCount::place(processor, number), count);
        }
    }
}

fn add(sum: &mut Traffic, more: Traffic) {
    sum.packets += more.packets;
    sum.bytes += more.bytes;
}
