//! Framing: splits a byte stream into messages by the length field of their headers (OpenFlow 1.3.5 section 7.1).

use bytes::{Buf, BytesMut};
use tokio_util::codec::Decoder;

use crate::message::{HEADER, Message};
use crate::wire::DecodeError;

/// A frame of the stream. The stream remains usable when the frame does not decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Message type of the header (`ofp_type`).
    pub kind: u8,
    /// Transaction id of the header.
    pub xid: u32,
    /// Decoded message, or the reason why it does not decode.
    pub message: Result<Message, DecodeError>,
}

/// Decoder for [`tokio_util::codec::FramedRead`].
///
/// It fails with [`std::io::ErrorKind::InvalidData`] when a header contains a length below 8; the stream cannot be
/// resynchronised then.
#[derive(Clone, Copy, Debug, Default)]
pub struct Codec;

impl Decoder for Codec {
    type Item = Received;
    type Error = std::io::Error;

    fn decode(&mut self, src: &mut BytesMut) -> Result<Option<Received>, std::io::Error> {
        let Some(header) = src.first_chunk::<HEADER>() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let xid = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        if length < HEADER {
            let text = format!("decode OpenFlow header: length {length} is less than 8");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text));
        }
        if src.len() < length {
            src.reserve(length - src.len());
            return Ok(None);
        }
        let (kind, message) = (header[1], Message::decode(&src[..length]));
        src.advance(length);
        Ok(Some(Received { kind, xid, message }))
    }
}
