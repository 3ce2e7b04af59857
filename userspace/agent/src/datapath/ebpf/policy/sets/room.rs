//! Which places of an array are free. Pure.

/// Places are given in any order: what needs many does not need them in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Room {
    capacity: u32,
    /// From here on, none has been taken.
    fresh: u32,
    /// Free before that.
    free: Vec<u32>,
}

impl Room {
    pub(super) fn new(capacity: u32) -> Room {
        Room { capacity, fresh: 0, free: vec![] }
    }

    /// With these places taken.
    pub(super) fn around(taken: &[bool]) -> Room {
        let fresh = taken.iter().rposition(|taken| *taken).map_or(0, |last| last as u32 + 1);
        let free =
            (0..fresh).zip(taken).filter(|(_, taken)| !**taken).map(|(place, _)| place).rev().collect();
        Room { capacity: taken.len() as u32, fresh, free }
    }

    pub(super) fn used(&self) -> usize {
        self.fresh as usize - self.free.len()
    }

    /// So many places, or none when there are not so many.
    pub(super) fn take(&mut self, count: usize) -> Option<Vec<u32>> {
        if self.capacity as usize - self.used() < count {
            return None;
        }
        let again = self.free.len().min(count);
        let mut places = self.free.split_off(self.free.len() - again);
        let fresh = self.fresh..self.fresh + (count - again) as u32;
        self.fresh = fresh.end;
        places.extend(fresh);
        Some(places)
    }

    /// What was taken is free again.
    pub(super) fn give(&mut self, places: Vec<u32>) {
        self.free.extend(places);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_taken_again_and_no_place_twice() {
        let mut room = Room::new(8);
        let first = room.take(5).unwrap();
        assert_eq!(room.take(4), None);
        assert_eq!(room.used(), 5);
        let second = room.take(3).unwrap();
        room.give(first);
        let mut all = [second, room.take(5).unwrap()].concat();
        all.sort_unstable();
        assert_eq!(all, (0..8).collect::<Vec<u32>>());
        assert_eq!(room.take(1), None);
        assert_eq!(room.take(0), Some(vec![]));
    }

    #[test]
    fn what_is_known_to_be_taken_is_not_given() {
        let mut room = Room::around(&[false, true, false, true, false]);
        assert_eq!(room.used(), 2);
        let mut all = room.take(3).unwrap();
        all.sort_unstable();
        assert_eq!(all, [0, 2, 4]);
        assert_eq!(Room::around(&[false; 5]), Room::new(5));
    }
}
