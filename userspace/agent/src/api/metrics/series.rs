//! Assignment of rules and services to a bounded number of series. A series does not decrease while its objects exist:
//! Prometheus interprets a decrease as a reset to zero, and adds the whole new value.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use contiv_model::name::RuleId;

use crate::datapath::telemetry::{Counters, ServiceCounters, ServicePort, TableUsage, Traffic};

/// Maximum number of series for rules, and for service ports. One more series contains the sum of the other objects. Each
/// endpoint has its own series: their number is bounded by the node's ports.
pub(super) const MAX_SERIES: usize = 1000;

/// Counters of one object.
trait Counts: Copy + Default {
    /// Combines each counter with that of `other`.
    fn zip(self, other: Self, combine: fn(u64, u64) -> u64) -> Self;
}

impl Counts for Traffic {
    fn zip(self, other: Traffic, combine: fn(u64, u64) -> u64) -> Traffic {
        Traffic { packets: combine(self.packets, other.packets), bytes: combine(self.bytes, other.bytes) }
    }
}

impl Counts for ServiceCounters {
    fn zip(self, other: ServiceCounters, combine: fn(u64, u64) -> u64) -> ServiceCounters {
        ServiceCounters {
            connections: combine(self.connections, other.connections),
            to_backends: self.to_backends.zip(other.to_backends, combine),
            to_clients: self.to_clients.zip(other.to_clients, combine),
        }
    }
}

/// Values of the series of one kind of objects.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series<K, V> {
    /// Series of single objects, in the order of their names.
    pub(super) named: Vec<(K, V)>,
    /// Series of all other objects; `None` if there has never been one.
    pub(super) other: Option<V>,
}

impl<K, V> Default for Series<K, V> {
    fn default() -> Self {
        Series { named: vec![], other: None }
    }
}

/// Series of one kind of objects. It has an entry for each object that the datapath counts.
#[derive(Debug)]
struct SeriesTable<K, V> {
    objects: BTreeMap<K, Object<V>>,
    /// Sum of the increases of all objects without a separate series, including removed ones.
    other: Option<V>,
    /// Maximum number of objects with a separate series.
    limit: usize,
}

#[derive(Debug)]
struct Object<V> {
    /// Counters when they were last read.
    last: V,
    /// Sum of the increases, if the object has a separate series, which it keeps as long as it exists.
    own: Option<V>,
}

impl<K: Ord + Clone, V: Counts> SeriesTable<K, V> {
    fn new(limit: usize) -> SeriesTable<K, V> {
        SeriesTable { objects: BTreeMap::new(), other: None, limit }
    }

    /// Adds the increases of the counters since the last call. Objects without counters no longer exist.
    fn update(&mut self, counters: Vec<(K, V)>) -> Series<K, V> {
        let mut sums = BTreeMap::<K, V>::new();
        for (key, counts) in counters {
            let sum = sums.entry(key).or_default();
            *sum = sum.zip(counts, u64::saturating_add);
        }
        self.objects.retain(|key, _| sums.contains_key(key));
        let named = self.objects.values().filter(|object| object.own.is_some()).count();
        let mut free = self.limit.saturating_sub(named);
        for (key, now) in sums {
            let object = self.objects.entry(key).or_insert_with(|| {
                let own = (free > 0).then(V::default);
                free = free.saturating_sub(1);
                Object { last: V::default(), own }
            });
            // A counter that is a sum decreases if a part is removed, such as one of several groups with a rule. In this
            // case the increase is zero.
            let increase = now.zip(object.last, u64::saturating_sub);
            object.last = now;
            let total = match &mut object.own {
                Some(total) => total,
                None => self.other.get_or_insert_default(),
            };
            *total = total.zip(increase, u64::saturating_add);
        }
        let named = self.objects.iter().filter_map(|(key, object)| Some((key.clone(), object.own?)));
        Series { named: named.collect(), other: self.other }
    }
}

/// Counters of the datapath, with those of rules and services by series.
#[derive(Clone, Debug, Default)]
pub struct CounterSeries {
    pub(super) rules: Series<RuleId, Traffic>,
    pub(super) services: Series<ServicePort, ServiceCounters>,
    pub(super) tables: Vec<TableUsage>,
    pub(super) drops: Vec<(&'static str, u64)>,
}

/// Series of rules and services. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct SeriesTables(Arc<Mutex<Tables>>);

#[derive(Debug)]
struct Tables {
    rules: SeriesTable<RuleId, Traffic>,
    services: SeriesTable<ServicePort, ServiceCounters>,
}

impl Default for Tables {
    fn default() -> Tables {
        Tables { rules: SeriesTable::new(MAX_SERIES), services: SeriesTable::new(MAX_SERIES) }
    }
}

impl SeriesTables {
    /// Adds the counters that `read` returns. Only one thread reads at a time, so that its counters are the newest.
    ///
    /// # Errors
    ///
    /// Fails if `read` does. Nothing is added then, and all objects keep their series.
    pub fn read<E>(&self, read: impl FnOnce() -> Result<Counters, E>) -> Result<CounterSeries, E> {
        let mut series = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Counters { rules, services, tables, drops } = read()?;
        let (rules, services) = (series.rules.update(rules), series.services.update(services));
        Ok(CounterSeries { rules, services, tables, drops })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns counters with these numbers of packets.
    fn packets<const N: usize>(counters: [(&'static str, u64); N]) -> Vec<(&'static str, Traffic)> {
        counters.map(|(key, packets)| (key, Traffic { packets, bytes: packets * 100 })).into()
    }

    /// Returns series with these numbers of packets.
    fn series<const N: usize>(named: [(&'static str, u64); N], other: u64) -> Series<&'static str, Traffic> {
        Series { named: packets(named), other: Some(Traffic { packets: other, bytes: other * 100 }) }
    }

    #[test]
    fn series_of_existing_objects_do_not_fall() {
        let mut table = SeriesTable::new(2);
        let few = Series { named: packets([("a", 1)]), other: None };
        assert_eq!(table.update(packets([("a", 1)])), few);
        let all = packets([("a", 1), ("b", 2), ("c", 30), ("d", 40)]);
        assert_eq!(table.update(all), series([("a", 1), ("b", 2)], 70));
        // Counts in the common series stay there.
        assert_eq!(table.update(packets([("b", 2), ("c", 35), ("d", 40)])), series([("b", 2)], 75));
        let more = packets([("a", 1), ("b", 3), ("c", 35), ("d", 41)]);
        assert_eq!(table.update(more), series([("a", 1), ("b", 3)], 76));
        assert_eq!(table.update(packets([("a", 1), ("b", 3)])), series([("a", 1), ("b", 3)], 76));
        // An object that is created again starts at zero.
        let again = packets([("a", 1), ("b", 3), ("c", 4)]);
        assert_eq!(table.update(again), series([("a", 1), ("b", 3)], 80));
    }

    #[test]
    fn parts_of_a_sum_that_are_gone_add_nothing() {
        let mut table = SeriesTable::new(1);
        table.update(packets([("a", 100), ("a", 50), ("b", 7), ("b", 8)]));
        assert_eq!(table.update(packets([("a", 50), ("b", 8)])), series([("a", 150)], 15));
        assert_eq!(table.update(packets([("a", 53), ("b", 9)])), series([("a", 153)], 16));
    }

    #[test]
    fn a_failed_read_changes_nothing() {
        let tables = SeriesTables::default();
        let counters = |packets| {
            let rules = (0..=MAX_SERIES).map(|n| (RuleId::from(format!("{n:04}").as_str()), packets));
            let rules = rules.map(|(rule, packets)| (rule, Traffic { packets, bytes: 0 })).collect();
            Ok::<_, &str>(Counters { rules, ..Counters::default() })
        };
        let other = |packets| tables.read(|| counters(packets)).unwrap().rules.other.unwrap().packets;
        assert_eq!(other(5), 5);
        assert_eq!(tables.read(|| Err("no answer")).unwrap_err(), "no answer");
        assert_eq!(other(6), 6);
    }
}
