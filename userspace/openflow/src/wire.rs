//! Reading and writing the bytes: every read is checked, so a decoder cannot run past its input.

use bytes::BufMut;

/// Bytes that are not the OpenFlow message they claim to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("{what}: {want} bytes needed, {have} left")]
    Truncated { what: &'static str, want: usize, have: usize },
    #[error("{what}: a length of {length} is not possible")]
    Length { what: &'static str, length: usize },
    #[error("{what}: value {value:#x} is not known")]
    Value { what: &'static str, value: u64 },
    #[error("match field {header:#010x} is not known")]
    Field { header: u32 },
}

/// A message that does not fit OpenFlow's 16-bit length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {length} bytes does not fit OpenFlow's limit of 65535")]
pub struct TooLong {
    pub length: usize,
}

/// A cursor over received bytes.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    buf: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(buf: &'a [u8], what: &'static str) -> Self {
        Reader { buf, what }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.buf.len()
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

    /// The next `n` bytes as a reader of their own.
    pub(crate) fn take(&mut self, n: usize, what: &'static str) -> Result<Reader<'a>, DecodeError> {
        Ok(Reader { buf: self.bytes(n)?, what })
    }

    pub(crate) fn skip(&mut self, n: usize) -> Result<(), DecodeError> {
        self.bytes(n).map(|_| ())
    }

    /// Padding that some peers leave out at the very end.
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

    /// A big-endian integer of `n` <= 16 bytes.
    pub(crate) fn uint(&mut self, n: usize) -> Result<u128, DecodeError> {
        Ok(self.bytes(n)?.iter().fold(0, |acc, byte| acc << 8 | u128::from(*byte)))
    }

    /// A type-length-value element: the type and the bytes after the four of its header.
    pub(crate) fn tlv(&mut self, what: &'static str) -> Result<(u16, Reader<'a>), DecodeError> {
        let kind = self.u16()?;
        let length = usize::from(self.u16()?);
        let body = length.checked_sub(4).ok_or(DecodeError::Length { what, length })?;
        Ok((kind, self.take(body, what)?))
    }

    /// A fixed field that holds text up to its first NUL.
    pub(crate) fn text(&mut self, n: usize) -> Result<String, DecodeError> {
        let raw = self.bytes(n)?;
        let end = raw.iter().position(|byte| *byte == 0).unwrap_or(raw.len());
        Ok(String::from_utf8_lossy(&raw[..end]).into_owned())
    }
}

/// The lowest `n` bytes of `value`, big-endian.
pub(crate) fn put_uint(out: &mut Vec<u8>, value: u128, n: usize) {
    out.extend_from_slice(&value.to_be_bytes()[16 - n..]);
}

/// Zeroes until the part that began at `start` is a multiple of eight long.
pub(crate) fn pad8(out: &mut Vec<u8>, start: usize) {
    let over = (out.len() - start) % 8;
    if over != 0 {
        out.put_bytes(0, 8 - over);
    }
}

/// Writes the length of the part that began at `start` into its 16-bit field at `start + at`.
///
/// It may wrap here; the message as a whole is then too long as well, and that is refused where
/// messages are framed.
pub(crate) fn patch_length(out: &mut [u8], start: usize, at: usize) {
    let length = (out.len() - start) as u16;
    if let Some(field) = out.get_mut(start + at..start + at + 2) {
        field.copy_from_slice(&length.to_be_bytes());
    }
}

/// A type-length-value element, padded to eight; the length includes the padding.
pub(crate) fn put_tlv(out: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.put_u16(kind);
    out.put_u16(0);
    body(out);
    pad8(out, start);
    patch_length(out, start, 2);
}

/// Text in a fixed field, cut to leave a final NUL.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str, n: usize) {
    let bytes = text.as_bytes();
    let used = bytes.len().min(n.saturating_sub(1));
    out.extend_from_slice(&bytes[..used]);
    out.put_bytes(0, n - used);
}

pub(crate) const EXPERIMENTER_NICIRA: u32 = 0x0000_2320;
pub(crate) const EXPERIMENTER_ONF: u32 = 0x4f4e_4600;
