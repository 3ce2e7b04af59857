//! Whether a request has left netctl. The kind of a failure does not tell: "host unreachable" may come from the connection
//! attempt, or from an established connection whose peer has gone.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use ureq::{
    Error,
    unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport},
};

/// Set when the first byte of a request is handed to a connection. TLS handshakes do not count.
#[derive(Clone, Debug, Default)]
pub(super) struct Sent(Arc<AtomicBool>);

impl Sent {
    /// Called before each request.
    pub(super) fn reset(&self) {
        self.0.store(false, Relaxed);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// The last link of a chain of connectors.
#[derive(Debug)]
pub(super) struct Marking(pub(super) Sent);

impl<In: Transport> Connector<In> for Marking {
    type Out = Marked<In>;

    fn connect(&self, _: &ConnectionDetails<'_>, chained: Option<In>) -> Result<Option<Marked<In>>, Error> {
        Ok(chained.map(|inner| Marked { inner, sent: self.0.clone() }))
    }
}

/// A connection that marks what it sends.
#[derive(Debug)]
pub(super) struct Marked<In> {
    inner: In,
    sent: Sent,
}

impl<In: Transport> Transport for Marked<In> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.sent.0.store(true, Relaxed);
        self.inner.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.inner.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}
