//! Cutting a stream of bytes into messages.

use bytes::{Buf, BytesMut};
use tokio_util::codec::Decoder;

use crate::message::{HEADER, Message};
use crate::wire::DecodeError;

/// What came over the wire: a message, or one that could not be understood. The stream itself is sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub xid: u32,
    pub message: Result<Message, DecodeError>,
}

/// Frames messages by the length in their header.
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
            let text = format!("an OpenFlow message of {length} bytes is not possible");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text));
        }
        if src.len() < length {
            src.reserve(length - src.len());
            return Ok(None);
        }
        let message = Message::decode(&src[..length]);
        src.advance(length);
        Ok(Some(Received { xid, message }))
    }
}
