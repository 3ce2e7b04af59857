//! A file: what is on the disk, and what was written since the last sync.

use super::random::Random;

/// The unit that a disk writes whole or not at all, in bytes.
pub(super) const SECTOR: usize = 512;

#[derive(Debug, Default)]
pub(super) struct File {
    /// What reads return.
    pub(super) cached: Vec<u8>,
    pub(super) durable: Vec<u8>,
    /// Since the last sync, in order.
    pub(super) pending: Vec<Change>,
}

#[derive(Debug)]
pub(super) enum Change {
    Write(usize, Vec<u8>),
    SetLen(usize),
}

impl File {
    /// Writes a random part of the pending changes and forgets the rest. Returns the number of
    /// sectors that were lost.
    pub(super) fn settle(&mut self, random: &mut Random) -> u64 {
        // Between nothing and everything; a whole prefix as often as single sectors.
        let (percent, cut) = (random.below(5) * 25, random.below(self.pending.len() as u64 + 1));
        let in_order = random.below(3) == 0;
        let mut lost = 0;
        for (i, change) in std::mem::take(&mut self.pending).into_iter().enumerate() {
            let mut keeps = || if in_order { (i as u64) < cut } else { random.below(100) < percent };
            match change {
                Change::SetLen(len) if keeps() => self.durable.resize(len, 0),
                Change::SetLen(_) => {}
                Change::Write(offset, data) => {
                    for (at, sector) in sectors(offset, &data) {
                        if keeps() { put(&mut self.durable, at, sector) } else { lost += 1 }
                    }
                }
            }
        }
        lost
    }
}

/// Parts of a write that the disk writes as a whole, with their offsets.
fn sectors(mut offset: usize, mut data: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    std::iter::from_fn(move || {
        let (sector, rest) = data.split_at((SECTOR - offset % SECTOR).min(data.len()));
        let at = offset;
        (offset, data) = (offset + sector.len(), rest);
        (!sector.is_empty()).then_some((at, sector))
    })
}

pub(super) fn put(file: &mut Vec<u8>, offset: usize, data: &[u8]) {
    let end = offset + data.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset..end].copy_from_slice(data);
}

impl File {
    /// Writes everything that is pending. What an earlier failed sync forgot is dropped from reads.
    pub(super) fn sync(&mut self) {
        self.flush();
        self.cached.clone_from(&self.durable);
    }

    pub(super) fn flush(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            match change {
                Change::Write(offset, data) => put(&mut self.durable, offset, &data),
                Change::SetLen(len) => self.durable.resize(len, 0),
            }
        }
    }
}
