//! Count of the changes that the agent makes in the kernel.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Counter of kernel writes: map entries, attachments, interfaces. Clones share the counter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writes(Arc<AtomicU64>);

impl Writes {
    pub(crate) fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
