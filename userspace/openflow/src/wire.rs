//! Primitives of the codec. Every read checks the remaining length, so that decoders cannot read past their input.

use bytes::BufMut;

/// Decoding error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The input ends within a structure.
    #[error("decode {what}: need {want} bytes, have {have}")]
    Truncated {
        /// Structure that was decoded.
        what: &'static str,
        /// Bytes required.
        want: usize,
        /// Bytes available.
        have: usize,
    },
    /// A length field is inconsistent.
    #[error("decode {what}: invalid length {length}")]
    Length {
        /// Structure that was decoded.
        what: &'static str,
        /// Length in bytes.
        length: usize,
    },
    /// A type, command or reason is unknown.
    #[error("decode {what}: unknown value {value:#x}")]
    Value {
        /// Field that was decoded.
        what: &'static str,
        /// Unknown value.
        value: u64,
    },
    /// Actions are nested too deeply.
    #[error("decode {what}: nested more than {limit} levels deep")]
    Nesting {
        /// Structure that was decoded.
        what: &'static str,
        /// Levels that are decoded.
        limit: u8,
    },
    /// A match field is unknown.
    #[error("decode match field: unknown header {header:#010x}")]
    Field {
        /// OXM or NXM header.
        header: u32,
    },
}

/// Encoding error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A message exceeds the 16-bit length field.
    #[error("encode message: {length} bytes exceed the maximum of 65535")]
    TooLong {
        /// Length of the message in bytes.
        length: usize,
    },
    /// The encoding of an action has no room for one of its values.
    #[error("encode action {action}: {why}")]
    Action {
        /// Action in the syntax of `ovs-ofctl`.
        action: String,
        /// What does not fit.
        why: &'static str,
    },
    /// The encoding of a match has no room for the value of a field.
    #[error("encode match: the value exceeds the width of {field}")]
    Match {
        /// Name of the field with the value.
        field: &'static str,
    },
    /// As [`EncodeError::Action`] or [`EncodeError::Match`], for a packed flow, which does not keep the value.
    #[error(
        "encode packed flow: the encoding of the match or of an action has no room for one of its values"
    )]
    Packed,
}

/// Levels of actions inside actions that are decoded: `ct` and `clone` contain actions. Open vSwitch accepts 100; the limit bounds the
/// stack that decoding, and every walk over the actions, needs.
const NESTING: u8 = 16;

/// A cursor over received bytes.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    buf: &'a [u8],
    what: &'static str,
    depth: u8,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(buf: &'a [u8], what: &'static str) -> Self {
        Reader { buf, what, depth: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.buf.len()
    }

    pub(crate) fn as_slice(&self) -> &'a [u8] {
        self.buf
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.buf)
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        match self.buf.split_at_checked(n) {
            Some((head, tail)) => {
                self.buf = tail;
                Ok(head)
            }
            None => Err(DecodeError::Truncated { what: self.what, want: n, have: self.buf.len() }),
        }
    }

    /// Returns a reader of the next `n` bytes.
    pub(crate) fn take(&mut self, n: usize, what: &'static str) -> Result<Reader<'a>, DecodeError> {
        Ok(Reader { buf: self.bytes(n)?, what, depth: self.depth })
    }

    /// Reads a structure that begins with its 16-bit length, of at least `fixed` bytes. Returns a reader of all of it.
    pub(crate) fn sized(&mut self, fixed: usize, what: &'static str) -> Result<Reader<'a>, DecodeError> {
        let mut ahead = *self;
        let length = usize::from(ahead.u16()?);
        if length < fixed { Err(DecodeError::Length { what, length }) } else { self.take(length, what) }
    }

    /// Returns a reader of the rest, for structures of the kind that contains them; their depth is limited.
    pub(crate) fn nested(&mut self, what: &'static str) -> Result<Reader<'a>, DecodeError> {
        if self.depth == NESTING {
            return Err(DecodeError::Nesting { what, limit: NESTING });
        }
        Ok(Reader { buf: self.rest(), what, depth: self.depth + 1 })
    }

    pub(crate) fn skip(&mut self, n: usize) -> Result<(), DecodeError> {
        self.bytes(n).map(|_| ())
    }

    /// Skips padding that some peers omit at the end of a message.
    pub(crate) fn skip_up_to(&mut self, n: usize) {
        self.buf = self.buf.get(n..).unwrap_or_default();
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// Reads a big-endian integer of `n` <= 16 bytes.
    pub(crate) fn uint(&mut self, n: usize) -> Result<u128, DecodeError> {
        Ok(self.bytes(n)?.iter().fold(0, |acc, byte| acc << 8 | u128::from(*byte)))
    }

    /// Reads a type-length-value element: returns the type and the bytes after the 4-byte header.
    pub(crate) fn tlv(&mut self, what: &'static str) -> Result<(u16, Reader<'a>), DecodeError> {
        let kind = self.u16()?;
        let length = usize::from(self.u16()?);
        let body = length.checked_sub(4).ok_or(DecodeError::Length { what, length })?;
        Ok((kind, self.take(body, what)?))
    }

    /// Reads a type-length-value element whose length includes padding to a multiple of 8 bytes.
    pub(crate) fn padded_tlv(&mut self, what: &'static str) -> Result<(u16, Reader<'a>), DecodeError> {
        let (kind, body) = self.tlv(what)?;
        let length = body.len() + 4;
        if length % 8 == 0 { Ok((kind, body)) } else { Err(DecodeError::Length { what, length }) }
    }

    /// Reads a fixed-size text field, which ends at its first NUL. Bytes that are not UTF-8 are replaced; the text still fits.
    pub(crate) fn text(&mut self, n: usize) -> Result<String, DecodeError> {
        let raw = self.bytes(n)?;
        let end = raw.iter().position(|byte| *byte == 0).unwrap_or(raw.len());
        let mut text = String::from_utf8_lossy(&raw[..end]).into_owned();
        text.truncate(text.floor_char_boundary(n.saturating_sub(1)));
        Ok(text)
    }
}

/// Writes the lowest `n` bytes of `value`, big-endian.
pub(crate) fn put_uint(out: &mut Vec<u8>, value: u128, n: usize) {
    out.extend_from_slice(&value.to_be_bytes()[16 - n..]);
}

/// Pads the structure that begins at `start` with zeros to a multiple of 8 bytes.
pub(crate) fn pad8(out: &mut Vec<u8>, start: usize) {
    let over = (out.len() - start) % 8;
    if over != 0 {
        out.put_bytes(0, 8 - over);
    }
}

/// Writes the length of the structure that begins at `start` to its 16-bit field at `start + at`.
///
/// The length can wrap; then the whole message is too long and `Message::encode` rejects it.
pub(crate) fn patch_length(out: &mut [u8], start: usize, at: usize) {
    let length = (out.len() - start) as u16;
    if let Some(field) = out.get_mut(start + at..start + at + 2) {
        field.copy_from_slice(&length.to_be_bytes());
    }
}

/// Writes a type-length-value element, padded to a multiple of 8 bytes. The length includes the padding.
pub(crate) fn put_tlv(out: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.put_u16(kind);
    out.put_u16(0);
    body(out);
    pad8(out, start);
    patch_length(out, start, 2);
}

/// Writes text to a field of `n` bytes, truncated so that a final NUL remains.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str, n: usize) {
    let bytes = text.as_bytes();
    let used = bytes.len().min(n.saturating_sub(1));
    out.extend_from_slice(&bytes[..used]);
    out.put_bytes(0, n - used);
}

pub(crate) const EXPERIMENTER_NICIRA: u32 = 0x0000_2320;
pub(crate) const EXPERIMENTER_ONF: u32 = 0x4f4e_4600;
