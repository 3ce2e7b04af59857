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

/// Set when the first byte of a request is handed to a connection. TLS handshakes and requests to a proxy to connect do not
/// count.
#[derive(Clone, Debug, Default)]
pub(super) struct Sent(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_set: AtomicBool,
    is_proxied: AtomicBool,
}

impl Sent {
    /// Called before each request. `is_proxied`: whether the request goes through a proxy.
    pub(super) fn reset(&self, is_proxied: bool) {
        self.0.is_set.store(false, Relaxed);
        self.0.is_proxied.store(is_proxied, Relaxed);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.is_set.load(Relaxed)
    }
}

/// The last link of a chain of connectors.
#[derive(Debug)]
pub(super) struct Marking(pub(super) Sent);

impl<In: Transport> Connector<In> for Marking {
    type Out = Marked<In>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Marked<In>>, Error> {
        // The same chain connects to the proxy first, without a proxy in the configuration. The connection that the proxy makes
        // is inside of that one.
        let is_to_proxy = self.0.0.is_proxied.load(Relaxed) && details.config.proxy().is_none();
        let sent = (!is_to_proxy).then(|| self.0.clone());
        Ok(chained.map(|inner| Marked { inner, sent }))
    }
}

/// A connection that marks what it sends.
#[derive(Debug)]
pub(super) struct Marked<In> {
    inner: In,
    /// None of a connection to a proxy.
    sent: Option<Sent>,
}

impl<In: Transport> Transport for Marked<In> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        if let Some(sent) = &self.sent {
            sent.0.is_set.store(true, Relaxed);
        }
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
