//! A TCP connection that carries BGP messages.

use std::{
    io,
    net::{IpAddr, Shutdown, SocketAddr},
    time::Duration,
};

use bytes::{Buf as _, BytesMut};
use rustbgpd_wire::{
    DecodeError, EncodeError, MAX_MESSAGE_LEN, Message, decode_message, encode_message, peek_message_length,
};
use tokio::{
    io::Interest,
    net::{TcpSocket, TcpStream},
    time::Instant,
};

/// Bytes that one read takes.
const READ_SIZE: usize = 64 * 1024;
/// UPDATE messages wait while more than this is queued.
const QUEUE: usize = 64 * 1024;
/// The connection ends if nothing could be sent for this time (RFC 9687 section 6).
const SEND_HOLD_TIME: Duration = Duration::from_secs(480);

pub(crate) struct Connection {
    stream: TcpStream,
    input: BytesMut,
    output: BytesMut,
    /// When bytes were sent last, or the queue was empty.
    progress: Instant,
}

impl Connection {
    pub(crate) async fn connect(source: Option<IpAddr>, neighbor: SocketAddr) -> io::Result<Connection> {
        let socket = match neighbor {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }?;
        if let Some(source) = source {
            let context = |error: io::Error| io::Error::new(error.kind(), format!("bind {source}: {error}"));
            socket.bind(SocketAddr::new(source, 0)).map_err(context)?;
        }
        let stream = socket.connect(neighbor).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, input: BytesMut::new(), output: BytesMut::new(), progress: Instant::now() })
    }

    /// Whether there is room for UPDATE messages.
    pub(crate) fn has_room(&self) -> bool {
        self.output.len() < QUEUE
    }

    /// Queues a message.
    pub(crate) fn send(&mut self, message: &Message) -> Result<(), EncodeError> {
        if self.output.is_empty() {
            self.progress = Instant::now();
        }
        self.output.extend_from_slice(&encode_message(message)?);
        Ok(())
    }

    /// Sends and receives what is possible now, and waits until something is. Cancel-safe.
    pub(crate) async fn exchange(&mut self) -> io::Result<()> {
        let interest = match self.output.is_empty() {
            true => Interest::READABLE,
            false => Interest::READABLE | Interest::WRITABLE,
        };
        let stalled = self.progress + SEND_HOLD_TIME;
        let ready = tokio::select! {
            ready = self.stream.ready(interest) => ready?,
            () = tokio::time::sleep_until(stalled), if !self.output.is_empty() => {
                let seconds = SEND_HOLD_TIME.as_secs();
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("nothing could be sent for {seconds} s")));
            }
        };
        let flushed = if ready.is_writable() { self.flush() } else { Ok(()) };
        if ready.is_readable() {
            let received = self.input.len();
            let read = self.receive();
            // The neighbor may have said why it has closed the connection.
            if flushed.is_err() && self.input.len() > received {
                return Ok(());
            }
            read?;
        }
        flushed
    }

    fn receive(&mut self) -> io::Result<()> {
        self.input.reserve(READ_SIZE);
        match self.stream.try_read_buf(&mut self.input) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the neighbor")),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sends as much of the queue as the kernel takes.
    fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.stream.try_write(&self.output) {
                Ok(count) => {
                    self.output.advance(count);
                    self.progress = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next message that has arrived whole.
    pub(crate) fn next(&mut self) -> Result<Option<Message>, DecodeError> {
        next_message(&mut self.input)
    }

    /// Sends the rest of the queue, as far as the kernel takes it, and closes the connection.
    pub(crate) fn close(mut self) -> io::Result<()> {
        self.flush()?;
        self.stream.into_std()?.shutdown(Shutdown::Both)
    }
}

/// Removes the first message from `input`, if it is complete.
fn next_message(input: &mut BytesMut) -> Result<Option<Message>, DecodeError> {
    match peek_message_length(input, MAX_MESSAGE_LEN)? {
        Some(length) if input.len() >= usize::from(length) => {
            let mut message = input.split_to(length.into()).freeze();
            decode_message(&mut message, MAX_MESSAGE_LEN).map(Some)
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_whole() {
        let keepalive = encode_message(&Message::Keepalive).unwrap();
        let mut input = BytesMut::from(&keepalive[..]);
        input.extend_from_slice(&keepalive[..10]);
        assert_eq!(next_message(&mut input), Ok(Some(Message::Keepalive)));
        assert_eq!(next_message(&mut input), Ok(None));
        input.extend_from_slice(&keepalive[10..]);
        assert_eq!(next_message(&mut input), Ok(Some(Message::Keepalive)));
        assert!(input.is_empty());
    }
}
