//! Bitmaps of the store: allocated addresses, VLANs and VNIs.

mod window;

use std::{fmt, ops::Range};

use base64::{Engine as _, engine::general_purpose::URL_SAFE};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub use window::{BitWindow, BitWindowError};

/// A set of the numbers `0..len`.
///
/// In JSON it has the original's form (INVENTORY section 3): padded URL-safe base64 of the length
/// in bits as a big-endian `u64`, followed by big-endian 64-bit words, word 0 holding the bits 0 to
/// 63 with bit 0 lowest.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Bitset {
    len: usize,
    words: Vec<u64>,
    /// Every word below this index is full: start of the search for a clear bit.
    first_open: usize,
}

/// Why a text is not a bitmap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BitsetError {
    /// The text is not URL-safe base64.
    #[error("bitmap is not URL-safe base64")]
    Base64(#[from] base64::DecodeError),
    /// The length does not match the number of words.
    #[error("bitmap of {bits} bits needs {expected} bytes, has {found}")]
    Length {
        /// Length in bits in the first word.
        bits: u64,
        /// Number of bytes for this length.
        expected: u64,
        /// Number of bytes in the text.
        found: usize,
    },
}

const HEADER: usize = 8;

impl Bitset {
    /// The empty set over `0..len`.
    pub fn new(len: usize) -> Self {
        Bitset { len, words: vec![0; len.div_ceil(64)], first_open: 0 }
    }

    /// The number of bits, set or clear.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if `bit` is set; false beyond the end.
    pub fn contains(&self, bit: usize) -> bool {
        bit < self.len && self.words[bit / 64] >> (bit % 64) & 1 == 1
    }

    /// Sets `bit`. Returns false if it was set or lies beyond the end.
    pub fn insert(&mut self, bit: usize) -> bool {
        if bit >= self.len || self.contains(bit) {
            return false;
        }
        self.words[bit / 64] |= 1 << (bit % 64);
        true
    }

    /// Clears `bit`. Returns false if it was not set.
    pub fn remove(&mut self, bit: usize) -> bool {
        if !self.contains(bit) {
            return false;
        }
        self.words[bit / 64] &= !(1 << (bit % 64));
        self.first_open = self.first_open.min(bit / 64);
        true
    }

    /// Sets the bits of `range` that lie within the length. Returns how many of them were clear.
    pub fn insert_range(&mut self, range: Range<usize>) -> usize {
        self.change_range(range, |word, mask| {
            let changed = mask & !*word;
            *word |= mask;
            changed
        })
    }

    /// Clears the bits of `range`. Returns how many of them were set.
    pub fn remove_range(&mut self, range: Range<usize>) -> usize {
        self.first_open = self.first_open.min(range.start / 64);
        self.change_range(range, |word, mask| {
            let changed = mask & *word;
            *word &= !mask;
            changed
        })
    }

    /// Passes each word of `range`, and the mask of its bits there, to `change`, which returns the bits
    /// that it has changed. Returns their number.
    fn change_range(&mut self, range: Range<usize>, change: impl Fn(&mut u64, u64) -> u64) -> usize {
        let (start, end) = (range.start, range.end.min(self.len));
        if start >= end {
            return 0;
        }
        let (first, last) = (start / 64, (end - 1) / 64);
        let mut changed = 0;
        for (index, word) in self.words.iter_mut().enumerate().take(last + 1).skip(first) {
            let from_start = if index == first { u64::MAX << (start % 64) } else { u64::MAX };
            let to_end = if index == last { u64::MAX >> (63 - (end - 1) % 64) } else { u64::MAX };
            changed += change(word, from_start & to_end).count_ones() as usize;
        }
        changed
    }

    /// The bits from `start`, a multiple of 64, at most `len` of them.
    pub fn part(&self, start: usize, len: usize) -> Bitset {
        let len = len.min(self.len.saturating_sub(start));
        let words = self.words.iter().skip(start / 64).take(len.div_ceil(64)).copied().collect();
        let mut part = Bitset { len, words, first_open: 0 };
        part.clear_tail();
        part
    }

    /// Replaces the bits from `start` by `part`. Returns false and changes nothing unless `start` is a
    /// multiple of 64, and `part` ends at a multiple of 64 or at the last bit.
    pub fn set_part(&mut self, start: usize, part: &Bitset) -> bool {
        let end = start.saturating_add(part.len);
        if !start.is_multiple_of(64) || end > self.len || !(end.is_multiple_of(64) || end == self.len) {
            return false;
        }
        for (word, new) in self.words.iter_mut().skip(start / 64).zip(&part.words) {
            *word = *new;
        }
        self.first_open = self.first_open.min(start / 64);
        true
    }

    /// Clears the bits of the last word beyond the length.
    fn clear_tail(&mut self) {
        let tail = self.len % 64;
        if let (Some(last), 1..) = (self.words.last_mut(), tail) {
            *last &= (1 << tail) - 1;
        }
    }

    /// The lowest clear bit. Amortised constant time: full words at the front are skipped once, not
    /// at each call.
    pub fn first_clear(&mut self) -> Option<usize> {
        while self.words.get(self.first_open).is_some_and(|w| *w == u64::MAX) {
            self.first_open += 1;
        }
        let word = self.words.get(self.first_open)?;
        let bit = self.first_open * 64 + word.trailing_ones() as usize;
        (bit < self.len).then_some(bit)
    }

    /// The lowest set bit at or after `from`.
    pub fn next_set(&self, from: usize) -> Option<usize> {
        self.scan(from, |word| word)
    }

    /// The lowest clear bit at or after `from`.
    pub fn next_clear(&self, from: usize) -> Option<usize> {
        self.scan(from, |word| !word)
    }

    /// The highest clear bit.
    pub fn last_clear(&self) -> Option<usize> {
        self.words.iter().enumerate().rev().find_map(|(index, word)| {
            let bits = (self.len - index * 64).min(64);
            let clear = !word & (u64::MAX >> (64 - bits));
            (clear != 0).then(|| index * 64 + 63 - clear.leading_zeros() as usize)
        })
    }

    fn scan(&self, from: usize, pick: impl Fn(u64) -> u64) -> Option<usize> {
        let mut index = from / 64;
        let mut word = pick(*self.words.get(index)?) & (u64::MAX << (from % 64));
        while word == 0 {
            index += 1;
            word = pick(*self.words.get(index)?);
        }
        let bit = index * 64 + word.trailing_zeros() as usize;
        (bit < self.len).then_some(bit)
    }

    /// The set bits, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let mut next = 0;
        std::iter::from_fn(move || {
            let bit = self.next_set(next)?;
            next = bit + 1;
            Some(bit)
        })
    }

    /// The number of set bits.
    pub fn count(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// The words, bit 0 of word 0 first.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Encodes the set in the form of the store.
    pub fn encode(&self) -> String {
        let mut bytes = Vec::with_capacity(HEADER + self.words.len() * 8);
        bytes.extend_from_slice(&(self.len as u64).to_be_bytes());
        for word in &self.words {
            bytes.extend_from_slice(&word.to_be_bytes());
        }
        URL_SAFE.encode(bytes)
    }

    /// Decodes the form of the store.
    ///
    /// # Errors
    ///
    /// Fails if the text is not URL-safe base64, or if the length does not match.
    pub fn decode(text: &str) -> Result<Self, BitsetError> {
        let bytes = URL_SAFE.decode(text)?;
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word));
        let bits = words.next().unwrap_or(0);
        let expected = bits.div_ceil(64).saturating_mul(8).saturating_add(HEADER as u64);
        if bytes.len() as u64 != expected {
            return Err(BitsetError::Length { bits, expected, found: bytes.len() });
        }
        let mut set = Bitset { len: bits as usize, words: words.collect(), first_open: 0 };
        // They are undefined in the original's bitmaps.
        set.clear_tail();
        Ok(set)
    }
}

impl fmt::Debug for Bitset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bitset({} of {})", self.count(), self.len)
    }
}

impl Serialize for Bitset {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.encode())
    }
}

impl<'de> Deserialize<'de> for Bitset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Bitset::decode(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_encoding_matches_the_original() {
        let mut slash30 = Bitset::new(4);
        slash30.insert(0);
        slash30.insert(3);
        assert_eq!(slash30.encode(), "AAAAAAAAAAQAAAAAAAAACQ==");
        assert_eq!(Bitset::new(0).encode(), "AAAAAAAAAAA=");
        assert_eq!(Bitset::decode("AAAAAAAAAAQAAAAAAAAACQ==").unwrap(), slash30);
    }

    #[test]
    fn invalid_bitmaps_are_refused() {
        for bad in ["", "AAAA", "AAAAAAAAAAQ=", "AAAAAAAAAAAAAAAAAAAACQ==", "!!", "__________8="] {
            assert!(Bitset::decode(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn parts_replace_their_range_only(
            len in 1usize..300,
            at in 0usize..5,
            part in 1usize..4,
            before in prop::collection::btree_set(0usize..300, 0..100),
            after in prop::collection::btree_set(0usize..300, 0..100),
        ) {
            let bits = |numbers: &BTreeSet<usize>| {
                let mut bits = Bitset::new(len);
                numbers.iter().for_each(|n| { bits.insert(*n); });
                bits
            };
            let (start, part) = (at * 64, part * 64);
            let (mut mixed, new) = (bits(&before), bits(&after));
            let cut = new.part(start, part);
            prop_assert_eq!(cut.len(), part.min(len.saturating_sub(start)));
            prop_assert_eq!(&Bitset::decode(&cut.encode()).unwrap(), &cut);
            prop_assert_eq!(mixed.set_part(start, &cut), start <= len);
            let inside = start..start + part;
            let expected = before.iter().filter(|n| !inside.contains(n)).chain(after.iter().filter(|n| inside.contains(n)));
            prop_assert_eq!(mixed, bits(&expected.copied().collect()));
            prop_assert!(!bits(&before).set_part(start + 1, &cut));
        }

        #[test]
        fn ranges_change_as_their_bits_one_by_one(
            len in 0usize..400,
            before in prop::collection::btree_set(0usize..400, 0..200),
            ranges in prop::collection::vec((any::<bool>(), 0usize..450, 0usize..450), 0..20),
        ) {
            let mut bits = Bitset::new(len);
            before.iter().for_each(|n| { bits.insert(*n); });
            let mut one_by_one = bits.clone();
            for (insert, start, end) in ranges {
                let range = start..end;
                let (changed, expected) = match insert {
                    true => (bits.insert_range(range.clone()), range.filter(|n| one_by_one.insert(*n)).count()),
                    false => (bits.remove_range(range.clone()), range.filter(|n| one_by_one.remove(*n)).count()),
                };
                prop_assert_eq!(changed, expected);
                prop_assert_eq!(bits.words(), one_by_one.words());
                prop_assert_eq!(bits.first_clear(), (0..len).find(|n| !one_by_one.contains(*n)));
                prop_assert_eq!(bits.last_clear(), (0..len).rev().find(|n| !one_by_one.contains(*n)));
            }
        }

        #[test]
        fn it_is_a_set_of_numbers(len in 1usize..300, ops in prop::collection::vec((any::<bool>(), 0usize..320), 0..400)) {
            let (mut bits, mut model) = (Bitset::new(len), BTreeSet::new());
            for (add, n) in ops {
                if add {
                    prop_assert_eq!(bits.insert(n), n < len && model.insert(n));
                } else {
                    prop_assert_eq!(bits.remove(n), model.remove(&n));
                }
                prop_assert_eq!(bits.first_clear(), (0..len).find(|n| !model.contains(n)));
                prop_assert_eq!(bits.next_clear(n), (n..len).find(|n| !model.contains(n)));
                prop_assert_eq!(bits.next_set(n), model.range(n..).next().copied());
            }
            prop_assert_eq!(bits.iter().collect::<BTreeSet<_>>(), model);
            let mut back = Bitset::decode(&bits.encode()).unwrap();
            prop_assert_eq!(back.first_clear(), bits.first_clear());
            prop_assert_eq!(back.encode(), bits.encode());
        }
    }
}
