//! Metrics of the store's database.

use contiv_store::{Alarm, Database};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};
use prometheus_client::registry::{Registry, Unit};

#[derive(Clone, Debug)]
pub struct DatabaseMetrics {
    /// Compactions of etcd's history by this netmaster.
    pub compactions: Counter,
    size: Gauge,
    in_use: Gauge,
    alarms: Family<[(&'static str, String); 1], Gauge>,
}

impl Default for DatabaseMetrics {
    fn default() -> DatabaseMetrics {
        let (compactions, size, in_use) = Default::default();
        let metrics = DatabaseMetrics { compactions, size, in_use, alarms: Family::default() };
        // Every alarm has a sample from the start.
        metrics.set_alarms(&[]);
        metrics
    }
}

impl DatabaseMetrics {
    pub fn set_size(&self, database: Database) {
        let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.size.set(bytes(database.size));
        self.in_use.set(bytes(database.in_use));
    }

    /// Sets the active alarms.
    pub fn set_alarms(&self, alarms: &[Alarm]) {
        for alarm in Alarm::ALL {
            let active = i64::from(alarms.contains(&alarm));
            self.alarms.get_or_create(&[("alarm", alarm.to_string())]).set(active);
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "store_compactions",
            "Compactions of etcd's history by this netmaster",
            self.compactions.clone(),
        );
        registry.register_with_unit(
            "store_database_size",
            "Size of the store's database, which etcd compares with its quota",
            Unit::Bytes,
            self.size.clone(),
        );
        registry.register_with_unit(
            "store_database_in_use",
            "Part of the store's database that is in use; defragmentation frees the rest",
            Unit::Bytes,
            self.in_use.clone(),
        );
        registry.register(
            "store_alarm",
            "Whether the alarm of the store is active (1) or not (0)",
            self.alarms.clone(),
        );
    }
}
