//! Bodies of responses, which clients must take at some speed.
//!
//! The listener limits the time of a single write. A client that takes a byte now and then would still
//! keep a large body, and its request, for hours.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

use super::in_flight::Slot;

/// Largest piece of a body. The server takes the next one when it has sent most of what it has, so the
/// body is kept until then.
const PIECE: usize = 64 << 10;
/// Least speed of a client in bytes per second, after a pause.
const MIN_SPEED: u64 = 32 << 10;

/// A body that fails if the client is too slow.
pub(super) struct PacedBody {
    body: Body,
    /// What is left of a frame.
    rest: Bytes,
    /// The frame is large. Pieces are copied, so that the last one does not keep the whole frame.
    is_split: bool,
    /// None for a stream, which has no end that a slow client could delay.
    pace: Option<Pace>,
    /// Counts the request until the body has been taken.
    _slot: Option<Slot>,
}

#[derive(Debug, thiserror::Error)]
#[error("the client takes less than {MIN_SPEED} bytes per second of the response")]
struct TooSlow;

/// Time that a client takes.
#[derive(Debug)]
struct Pace {
    /// Time that the client has in addition to that for the bytes.
    pause: Duration,
    /// Bytes that the client was given.
    bytes: u64,
    /// Time in which the client did not take more.
    waited: Duration,
    /// When the client was given the last piece.
    since: Option<Instant>,
}

impl PacedBody {
    /// `pause`: time that the client may take nothing, in sum.
    pub(super) fn new(body: Body, slot: Option<Slot>, pause: Duration) -> PacedBody {
        let pace = body.size_hint().exact().map(|_| Pace::new(pause));
        PacedBody { body, rest: Bytes::new(), is_split: false, pace, _slot: slot }
    }

    fn next_piece(&mut self) -> Bytes {
        let piece = self.rest.split_to(self.rest.len().min(PIECE));
        let piece = if self.is_split { Bytes::copy_from_slice(&piece) } else { piece };
        if let Some(pace) = &mut self.pace {
            pace.give(piece.len(), Instant::now());
        }
        piece
    }
}

impl HttpBody for PacedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.pace.as_mut().is_some_and(|pace| pace.is_exceeded(Instant::now())) {
            return Poll::Ready(Some(Err(axum::Error::new(TooSlow))));
        }
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => (self.is_split, self.rest) = (data.len() > PIECE, data),
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        Poll::Ready(Some(Ok(Frame::data(self.next_piece()))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let hint = self.body.size_hint();
        match hint.exact() {
            Some(size) => SizeHint::with_exact(size + self.rest.len() as u64),
            None => hint,
        }
    }
}

impl Pace {
    fn new(pause: Duration) -> Pace {
        Pace { pause, bytes: 0, waited: Duration::ZERO, since: None }
    }

    fn give(&mut self, bytes: usize, now: Instant) {
        self.bytes += bytes as u64;
        self.since = Some(now);
    }

    /// Notes that the client is ready for more. Returns true if that took too long.
    fn is_exceeded(&mut self, now: Instant) -> bool {
        if let Some(since) = self.since.take() {
            self.waited += now.saturating_duration_since(since);
        }
        self.waited > self.pause + Duration::from_secs(self.bytes / MIN_SPEED)
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use http_body_util::BodyExt as _;
    use prometheus_client::metrics::gauge::Gauge;

    use super::super::in_flight::{Client, InFlight, Limits};
    use super::*;

    const PAUSE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn large_bodies_are_sent_in_pieces() {
        let content: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
        let mut body = PacedBody::new(Body::from(content.clone()), None, PAUSE);
        let (mut left, mut taken) = (content.len(), vec![]);
        while !body.is_end_stream() {
            assert_eq!(body.size_hint().exact(), Some(left as u64));
            let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(piece.len() <= PIECE);
            left -= piece.len();
            taken.extend_from_slice(&piece);
        }
        assert_eq!((left, taken), (0, content));
    }

    #[tokio::test]
    async fn a_request_is_in_flight_until_its_body_is_taken() {
        let gauge = Gauge::default();
        let limits = Limits { requests: 1, client_bytes: 0, bytes: 0 };
        let limit = InFlight::new(limits, gauge.clone());
        let client = || Client::Name("a".into());
        let mut slot = limit.begin(client()).unwrap();
        slot.count_response(PIECE as u64 + 1).unwrap();
        let mut body = PacedBody::new(Body::from(vec![0; PIECE + 1]), Some(slot), PAUSE);
        body.frame().await.unwrap().unwrap();
        assert!(limit.begin(client()).is_err());
        assert_eq!(gauge.get(), PIECE as i64 + 1);
        drop(body);
        assert_eq!(gauge.get(), 0);
        assert!(limit.begin(client()).is_ok());
    }

    #[tokio::test]
    async fn streams_are_passed_on_as_they_come() {
        let items = ["a", "", "b"].map(|text| Ok::<_, std::io::Error>(Bytes::from(text)));
        let body = PacedBody::new(Body::from_stream(stream::iter(items)), None, Duration::ZERO);
        assert!(body.pace.is_none() && body.size_hint().exact().is_none());
        assert_eq!(body.collect().await.unwrap().to_bytes(), "ab");
    }

    #[test]
    fn the_time_of_a_client_follows_what_it_takes() {
        let (mut pace, start) = (Pace::new(PAUSE), Instant::now());
        assert!(!pace.is_exceeded(start + PAUSE * 9), "it was given nothing");
        // At the least speed, for an hour.
        let mut now = start;
        for _ in 0..3600 {
            pace.give(MIN_SPEED as usize, now);
            now += Duration::from_secs(1);
            assert!(!pace.is_exceeded(now));
        }
        // A pause once, and no further one.
        pace.give(1, now);
        now += PAUSE;
        assert!(!pace.is_exceeded(now));
        pace.give(1, now);
        assert!(pace.is_exceeded(now + Duration::from_millis(1)));
    }
}
