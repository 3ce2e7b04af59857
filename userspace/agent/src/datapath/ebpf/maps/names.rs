//! What the numbers in the programs stand for.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use contiv_model::name::RuleId;

use crate::datapath::telemetry::ServicePort;

/// Names by number, for those who read counts and events while the datapath is at work.
#[derive(Debug)]
pub(crate) struct Names<T>(Arc<RwLock<HashMap<u32, T>>>);

/// Of rules.
pub(crate) type RuleNames = Names<RuleId>;
/// Of ports of services.
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
    pub(crate) fn learn<'a>(&self, named: impl IntoIterator<Item = (&'a T, &'a u32)>)
    where
        T: 'a,
    {
        self.write().extend(named.into_iter().map(|(name, number)| (*number, name.clone())));
    }

    pub(crate) fn forget(&self, number: u32) {
        self.write().remove(&number);
    }

    pub(crate) fn of<const N: usize>(&self, numbers: [u32; N]) -> Vec<T> {
        let names = self.read();
        numbers.iter().filter_map(|number| names.get(number)).cloned().collect()
    }

    /// Each with its name; those without one are left out.
    pub(crate) fn named<C>(&self, counts: Vec<(u32, C)>) -> Vec<(T, C)> {
        let names = self.read();
        counts.into_iter().filter_map(|(number, count)| Some((names.get(&number)?.clone(), count))).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<u32, T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<u32, T>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
