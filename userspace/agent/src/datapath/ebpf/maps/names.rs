//! Names behind the numbers that the programs use.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use contiv_model::name::RuleId;

use crate::datapath::telemetry::ServicePort;

/// Names by number. Clones share the table, so telemetry tasks can resolve numbers while the datapath changes them.
#[derive(Debug)]
pub(crate) struct Names<T>(Arc<RwLock<HashMap<u32, T>>>);

/// Names of rules.
pub(crate) type RuleNames = Names<RuleId>;
/// Names of service ports.
pub(crate) type ServiceNames = Names<ServicePort>;

impl<T> Clone for Names<T> {
    fn clone(&self) -> Self {
        Names(Arc::clone(&self.0))
    }
}

impl<T> Default for Names<T> {
    fn default() -> Self {
        Names(Arc::default())
    }
}

impl<T: Clone> Names<T> {
    pub(crate) fn insert<'a>(&self, names: impl IntoIterator<Item = (&'a T, &'a u32)>)
    where
        T: 'a,
    {
        self.write().extend(names.into_iter().map(|(name, number)| (*number, name.clone())));
    }

    pub(crate) fn remove(&self, number: u32) {
        self.write().remove(&number);
    }

    /// Names of the numbers. Omits unknown numbers.
    pub(crate) fn lookup<const N: usize>(&self, numbers: [u32; N]) -> Vec<T> {
        let names = self.read();
        numbers.iter().filter_map(|number| names.get(number)).cloned().collect()
    }

    /// Replaces the number of each counter with its name. Omits unknown numbers.
    pub(crate) fn resolve<C>(&self, counters: Vec<(u32, C)>) -> Vec<(T, C)> {
        let names = self.read();
        let resolve = |(number, counter)| Some((names.get(&number)?.clone(), counter));
        counters.into_iter().filter_map(resolve).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<u32, T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<u32, T>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
