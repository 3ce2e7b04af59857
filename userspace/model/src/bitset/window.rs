//! Bitmaps of which only a part is kept.

use std::{fmt, ops::Range};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::Bitset;

/// A bitmap of the numbers `0..len` whose clear bits are in a window. Only the window is kept: all bits
/// outside of it are set.
///
/// In JSON it has the clear bits as ranges (`{"len": 8388608, "clear": "100-4999, 5007"}`) or, if that
/// is longer, as the bitmap of the part that contains them (`{"len": 8388608, "first": 64, "bits": "..."}`).
#[derive(Clone, Default)]
pub struct BitWindow {
    len: usize,
    /// Number of the window's first bit, a multiple of [`BLOCK`].
    first: usize,
    /// Ends at a multiple of [`BLOCK`] or at the last bit.
    bits: Bitset,
}

/// Why a value is not a bitmap with a window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BitWindowError {
    /// It is longer than the address bitmap of the largest network.
    #[error("bitmap of {len} bits: the limit is {MAX_LEN}")]
    Length {
        /// Length in bits.
        len: usize,
    },
    /// It has neither or both of the two forms.
    #[error("expected either clear or bits")]
    Form,
    /// The clear bits are not ranges of bits.
    #[error("clear bits {0:?}: expected ranges such as \"1-5, 7\"")]
    Clear(String),
    /// The bits do not begin and end at words of the bitmap.
    #[error("{bits} bits from {first} are no part of a bitmap of {len} bits")]
    Part {
        /// Number of the first bit.
        first: usize,
        /// Number of bits.
        bits: usize,
        /// Length of the bitmap in bits.
        len: usize,
    },
}

/// Bits by which the window grows, a multiple of 64.
const BLOCK: usize = 4096;
/// Addresses of a /8, the largest network that addresses are allocated from.
const MAX_LEN: usize = 1 << 24;
/// Bytes of a range in the list of clear bits, at most: two numbers of 8 digits, `-` and `, `.
const RANGE_BYTES: usize = 19;
/// A list of this many bytes or less is not compared with the bitmap.
const SHORT_LIST: usize = 256;

impl BitWindow {
    /// A bitmap of `len` bits, all set but those of `clear`.
    pub fn with_clear(len: usize, clear: Range<usize>) -> Self {
        let mut window = BitWindow { len, ..BitWindow::default() };
        window.remove_range(clear);
        window
    }

    /// The number of bits, set or clear.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of bits in the window.
    pub fn kept(&self) -> usize {
        self.bits.len()
    }

    /// The number of clear bits.
    pub fn count_clear(&self) -> usize {
        self.bits.len() - self.bits.count()
    }

    /// Returns true if `bit` is set; false beyond the end.
    pub fn contains(&self, bit: usize) -> bool {
        bit < self.len && (!self.range().contains(&bit) || self.bits.contains(bit - self.first))
    }

    /// Sets the bits of `range` that lie within the length. Returns how many of them were clear.
    pub fn insert_range(&mut self, range: Range<usize>) -> usize {
        let first = self.first;
        self.bits.insert_range(range.start.saturating_sub(first)..range.end.saturating_sub(first))
    }

    /// Clears the bits of `range` that lie within the length. Returns how many of them were set.
    pub fn remove_range(&mut self, range: Range<usize>) -> usize {
        let range = range.start..range.end.min(self.len);
        if range.is_empty() {
            return 0;
        }
        self.extend(&range);
        self.bits.remove_range(range.start - self.first..range.end - self.first)
    }

    /// The lowest set bit at or after `from`.
    pub fn next_set(&self, from: usize) -> Option<usize> {
        let kept = self.range();
        if !kept.contains(&from) {
            return (from < self.len).then_some(from);
        }
        match self.bits.next_set(from - self.first) {
            Some(bit) => Some(self.first + bit),
            None => (kept.end < self.len).then_some(kept.end),
        }
    }

    /// The lowest clear bit at or after `from`.
    pub fn next_clear(&self, from: usize) -> Option<usize> {
        Some(self.first + self.bits.next_clear(from.saturating_sub(self.first))?)
    }

    /// Ranges of set bits, as far as they lie within `range`, lowest first.
    pub fn set_ranges(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let end = range.end.min(self.len);
        ranges(range.start..end, move |from| self.next_set(from), move |from| self.next_clear(from))
    }

    /// Ranges of clear bits, as far as they lie within `range`, lowest first.
    pub fn clear_ranges(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let end = range.end.min(self.len);
        ranges(range.start..end, move |from| self.next_clear(from), move |from| self.next_set(from))
    }

    /// The bits from `start`, a multiple of 64, at most `len` of them.
    pub fn part(&self, start: usize, len: usize) -> Bitset {
        let len = len.min(self.len.saturating_sub(start));
        let (mut part, kept) = (Bitset::new(len), self.range());
        part.insert_range(0..len);
        let common = start.max(kept.start)..(start + len).min(kept.end);
        if !common.is_empty() {
            let bits = self.bits.part(common.start - kept.start, common.len());
            part.set_part(common.start - start, &bits);
        }
        part
    }

    /// Replaces the bits from `start` by `part`. Returns false and changes nothing unless `start` is a
    /// multiple of 64, and `part` ends at a multiple of 64 or at the last bit.
    pub fn set_part(&mut self, start: usize, part: &Bitset) -> bool {
        let end = start.saturating_add(part.len());
        if !start.is_multiple_of(64) || end > self.len || !(end.is_multiple_of(64) || end == self.len) {
            return false;
        }
        if part.count() == part.len() {
            self.insert_range(start..end);
            return true;
        }
        self.extend(&(start..end));
        self.bits.set_part(start - self.first, part)
    }

    /// Reduces the window to what contains the clear bits.
    pub fn shrink(&mut self) {
        let Some(clear) = self.span_of_clear() else {
            (self.first, self.bits) = (0, Bitset::default());
            return;
        };
        let Range { start, end } = self.in_blocks(&clear);
        if end - start < self.bits.len() {
            (self.bits, self.first) = (self.bits.part(start - self.first, end - start), start);
        }
    }

    /// All bits.
    pub fn into_bitset(self) -> Bitset {
        if self.bits.len() == self.len { self.bits } else { self.part(0, self.len) }
    }

    /// The bits of the window.
    fn range(&self) -> Range<usize> {
        self.first..self.first + self.bits.len()
    }

    /// From the lowest to the highest clear bit; none if all are set.
    fn span_of_clear(&self) -> Option<Range<usize>> {
        Some(self.next_clear(0)?..self.first + self.bits.last_clear()? + 1)
    }

    /// The smallest window that contains the bits of `range`.
    fn in_blocks(&self, range: &Range<usize>) -> Range<usize> {
        range.start / BLOCK * BLOCK..range.end.next_multiple_of(BLOCK).min(self.len)
    }

    /// Extends the window to the bits of `range`, which is not empty and lies within the length.
    fn extend(&mut self, range: &Range<usize>) {
        let kept = self.range();
        if kept.start <= range.start && range.end <= kept.end {
            return;
        }
        let span = match kept.is_empty() {
            true => range.clone(),
            false => kept.start.min(range.start)..kept.end.max(range.end),
        };
        let Range { start, end } = self.in_blocks(&span);
        let mut bits = Bitset::new(end - start);
        bits.insert_range(0..end - start);
        if !kept.is_empty() {
            bits.set_part(kept.start - start, &self.bits);
        }
        (self.first, self.bits) = (start, bits);
    }
}

/// Ranges within `range` that begin at what `first` finds and end before what `end` finds.
fn ranges(
    range: Range<usize>,
    first: impl Fn(usize) -> Option<usize>,
    end: impl Fn(usize) -> Option<usize>,
) -> impl Iterator<Item = Range<usize>> {
    let mut next = range.start;
    std::iter::from_fn(move || {
        let start = first(next).filter(|start| *start < range.end)?;
        next = end(start).map_or(range.end, |end| end.min(range.end));
        Some(start..next)
    })
}

impl From<Bitset> for BitWindow {
    /// All bits are in the window.
    fn from(bits: Bitset) -> Self {
        BitWindow { len: bits.len(), first: 0, bits }
    }
}

impl PartialEq for BitWindow {
    /// Compares the bits, whatever the windows.
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.clear_ranges(0..self.len).eq(other.clear_ranges(0..other.len))
    }
}

impl Eq for BitWindow {}

impl fmt::Debug for BitWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BitWindow({} clear of {})", self.count_clear(), self.len)
    }
}

/// The form in JSON. It has either `clear` or `bits`.
#[derive(Serialize, Deserialize)]
struct Stored {
    len: usize,
    /// Clear bits, such as `100-4999, 5007`.
    #[serde(skip_serializing_if = "Option::is_none")]
    clear: Option<String>,
    /// Number of the first one of `bits`, a multiple of 64.
    #[serde(default, skip_serializing_if = "is_zero")]
    first: usize,
    /// All other bits are set.
    #[serde(skip_serializing_if = "Option::is_none")]
    bits: Option<Bitset>,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Stored {
    fn of(window: &BitWindow) -> Stored {
        let len = window.len;
        let clear = window.span_of_clear().unwrap_or_default();
        let (first, end) = (clear.start / 64 * 64, clear.end.next_multiple_of(64).min(len));
        // Base64 takes a byte for six bits.
        let bitmap = (end - first) / 6;
        if window.clear_ranges(clear.clone()).count() * RANGE_BYTES <= bitmap.max(SHORT_LIST) {
            let ranges: Vec<String> = window.clear_ranges(clear).map(|range| text(&range)).collect();
            return Stored { len, clear: Some(ranges.join(", ")), first: 0, bits: None };
        }
        Stored { len, clear: None, first, bits: Some(window.part(first, end - first)) }
    }

    fn window(self) -> Result<BitWindow, BitWindowError> {
        let Stored { len, clear, first, bits } = self;
        if len > MAX_LEN {
            return Err(BitWindowError::Length { len });
        }
        let mut window = BitWindow { len, ..BitWindow::default() };
        match (clear, bits) {
            (Some(clear), None) => {
                let ranges = read(&clear, len).ok_or(BitWindowError::Clear(clear))?;
                // One extension instead of one for each range.
                let start = ranges.iter().map(|range| range.start).min();
                let end = ranges.iter().map(|range| range.end).max();
                if let Some((start, end)) = start.zip(end) {
                    window.extend(&(start..end));
                }
                for range in ranges {
                    window.remove_range(range);
                }
            }
            (None, Some(bits)) => {
                if !window.set_part(first, &bits) {
                    return Err(BitWindowError::Part { first, bits: bits.len(), len });
                }
            }
            _ => return Err(BitWindowError::Form),
        }
        Ok(window)
    }
}

/// A range in the list of clear bits: first and last number.
fn text(range: &Range<usize>) -> String {
    match range.len() {
        1 => range.start.to_string(),
        _ => format!("{}-{}", range.start, range.end - 1),
    }
}

/// Reads a list of ranges of the bits `0..len`.
fn read(list: &str, len: usize) -> Option<Vec<Range<usize>>> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last && last < len).then(|| first..last + 1)
    };
    list.split(", ").filter(|text| !text.is_empty()).map(range).collect()
}

impl Serialize for BitWindow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Stored::of(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for BitWindow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Stored::deserialize(deserializer)?.window().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
