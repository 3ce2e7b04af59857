//! State changes for the service manager (sd_notify(3)); without `NOTIFY_SOCKET` in the environment nothing is sent.

use sd_notify::NotifyState;

/// The daemon is ready: a unit of `Type=notify` counts as started.
pub fn ready() {
    send(&[NotifyState::Ready]);
}

/// The daemon shuts down in order.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// One line for `systemctl status`.
pub fn status(line: &str) {
    send(&[NotifyState::Status(line)]);
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("notify the service manager: {error}");
    }
}
