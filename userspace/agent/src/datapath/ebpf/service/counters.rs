//! Counters of services, in memory shared with the programs.

use std::{collections::BTreeSet, num::NonZeroU32};

use aya::maps::MapData;
use contiv_abi::{ServiceCount, ServiceCountRows, maps::SERVICE_COUNTS};

use crate::datapath::{
    Error,
    ebpf::{failure::failed, maps::mmap::MmapArray},
    telemetry::{ServiceCounters, Traffic},
};

/// `ctv_svcnt`. Each service port has a number; the number modulo the capacity selects its entries, which contain the
/// number. Number 0 marks a free entry.
pub(crate) struct CounterMap {
    entries: MmapArray<ServiceCount>,
    rows: ServiceCountRows,
}

impl CounterMap {
    pub(crate) fn new(map: MapData, rows: ServiceCountRows) -> Result<CounterMap, Error> {
        let what = || format!("map {SERVICE_COUNTS} into memory");
        let entries = MmapArray::new(map, rows.entries() as usize).map_err(|error| failed(what(), error))?;
        Ok(CounterMap { entries, rows })
    }

    /// Number of service ports that can have counters.
    pub(crate) fn capacity(&self) -> usize {
        self.rows.slots as usize
    }

    /// Allocates the first number, starting at `from`, whose entries are free, and resets the counters. `None` if no
    /// entry is free.
    pub(crate) fn allocate(&mut self, from: NonZeroU32) -> Option<NonZeroU32> {
        let all = (0..self.rows.slots).map(|offset| from.get().wrapping_add(offset));
        let number = all.filter_map(NonZeroU32::new).find(|number| self.owner(number.get()) == Some(0))?;
        self.fill(number.get(), ServiceCount { number: number.get(), ..ServiceCount::default() });
        Some(number)
    }

    /// Frees the number and resets its counters.
    pub(crate) fn free(&mut self, number: u32) {
        if self.owner(number) == Some(number) {
            self.fill(number, ServiceCount::default());
        }
    }

    /// Frees all other numbers, and allocates those of `numbers` that have no entries.
    pub(crate) fn retain(&mut self, numbers: &BTreeSet<u32>) {
        for index in 0..self.rows.slots {
            let owner = self.owner(index).unwrap_or(0);
            if owner != 0 && !numbers.contains(&owner) {
                self.free(owner);
            }
        }
        for number in numbers.iter().filter_map(|number| NonZeroU32::new(*number)) {
            if self.owner(number.get()) == Some(0) {
                self.fill(number.get(), ServiceCount { number: number.get(), ..ServiceCount::default() });
            }
        }
    }

    /// Allocates this number, and resets the counters; false if its entries are in use.
    pub(crate) fn reserve(&mut self, number: NonZeroU32) -> bool {
        let free = self.owner(number.get()) == Some(0);
        if free {
            self.fill(number.get(), ServiceCount { number: number.get(), ..ServiceCount::default() });
        }
        free
    }

    /// Adds the counters of another map to the numbers that both have.
    pub(crate) fn add(&mut self, other: &CounterMap) {
        for index in 0..self.rows.slots {
            let number = self.owner(index).unwrap_or(0);
            if number == 0 || other.owner(number) != Some(number) {
                continue;
            }
            for row in 0..self.rows.rows.min(other.rows.rows) {
                let (place, theirs) = (self.rows.place(row, number), other.rows.place(row, number));
                if let (Some(mut sum), Some(more)) = (self.entries.get(place), other.entries.get(theirs)) {
                    sum.connections += more.connections;
                    for side in 0..2 {
                        sum.packets[side] += more.packets[side];
                        sum.bytes[side] += more.bytes[side];
                    }
                    self.entries.set(place, sum);
                }
            }
        }
    }

    /// Sums of all rows, by number. Omits numbers whose counters are zero.
    pub(crate) fn sums(&self) -> Vec<(u32, ServiceCounters)> {
        let sums = (0..self.rows.slots).filter_map(|index| match self.owner(index)? {
            0 => None,
            owner => Some((owner, self.sum(owner))),
        });
        sums.filter(|(_, sum)| *sum != ServiceCounters::default()).collect()
    }

    fn sum(&self, number: u32) -> ServiceCounters {
        let mut sum = ServiceCounters::default();
        for row in 0..self.rows.rows {
            let count = self.entries.get(self.rows.place(row, number)).unwrap_or_default();
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

    /// Number to which the entries belong that `number` selects; zero if they are free.
    fn owner(&self, number: u32) -> Option<u32> {
        self.entries.get(self.rows.place(0, number)).map(|count| count.number)
    }

    fn fill(&mut self, number: u32, count: ServiceCount) {
        for row in 0..self.rows.rows {
            self.entries.set(self.rows.place(row, number), count);
        }
    }
}

fn add(sum: &mut Traffic, more: Traffic) {
    sum.packets += more.packets;
    sum.bytes += more.bytes;
}
