use std::{collections::BTreeSet, future::pending, time::Duration};

use contiv_model::name::HostName;
use futures::StreamExt as _;
use rtnetlink::MulticastGroup;
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    access::{HostAccess, TABLE},
    desired::{Desired, Learnt},
    error::Error,
    kernel,
    retention::Retention,
    ruleset::Ruleset,
};
use crate::{bgp::Report, datapath::ebpf, error::one_line, state::Reader};

/// Interval between comparisons with the kernel, and between attempts after an error.
const RESYNC_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum interval between comparisons because of changes in the kernel.
const EVENT_INTERVAL: Duration = Duration::from_millis(100);

const EVENTS: [MulticastGroup; 7] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
];

/// Keeps the kernel in sync.
#[derive(Debug)]
pub struct Task {
    host: HostName,
    tunnels: BTreeSet<u16>,
    reader: Reader,
    sessions: watch::Receiver<Report>,
    warnings: watch::Sender<Vec<String>>,
}

impl Task {
    /// A task that does nothing until [`Task::run`], and its warnings: what is not in effect, one line each. `tunnel_port` is the UDP
    /// port of this node's tunnels.
    pub fn new(
        host: HostName,
        tunnel_port: u16,
        reader: Reader,
        sessions: watch::Receiver<Report>,
    ) -> (Task, watch::Receiver<Vec<String>>) {
        let (warnings, receiver) = watch::channel(vec![]);
        (
            Task {
                host,
                tunnels: [tunnel_port, ebpf::Options::VXLAN_PORT].into(),
                reader,
                sessions,
                warnings,
            },
            receiver,
        )
    }

    /// Follows the state and the BGP session until `stop` is cancelled. The kernel keeps forwarding afterwards.
    ///
    /// # Errors
    ///
    /// If the kernel offers no netlink socket.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        // Before, endpoints that are missing may not have arrived yet.
        if stop.run_until_cancelled(self.reader.synced()).await.is_none() {
            return Ok(());
        }
        let handle = kernel::connect()?;
        let (connection, _, mut events) =
            rtnetlink::new_multicast_connection(&EVENTS).map_err(Error::Connect)?;
        tokio::spawn(connection);
        let (mut access, mut retention) = (HostAccess::default(), Retention::default());
        let mut ruleset = Ruleset::follow()
            .inspect_err(|error| tracing::debug!("no notifications about nftables: {error}"))
            .ok();
        loop {
            let (desired, has_unreadable) = self.reader.with(|state| {
                (Desired::of(state, &self.host, &self.tunnels), state.unplanned().next().is_some())
            });
            retention.update(desired.prefixes(), desired.access.is_some(), has_unreadable);
            let learnt = Learnt::of(&self.sessions.borrow_and_update());
            match kernel::sync(&handle, &mut access, (&desired, &learnt), &retention).await {
                Ok((changes, warnings)) => {
                    if changes > 0 {
                        tracing::debug!(changes, "updated the kernel's routing");
                    }
                    self.report(warnings);
                }
                Err(error) => {
                    self.report(vec![format!("routing in the kernel: {}", one_line(&error))]);
                }
            }
            let changed = self
                .reader
                .wait(|state| (Desired::of(state, &self.host, &self.tunnels) != desired).then_some(()));
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = changed => {}
                Ok(()) = self.sessions.changed() => {}
                () = table_changed(&mut ruleset), if desired.access.is_some() => access.notice(),
                Some(_) = events.next(), if desired.is_needed() => {
                    sleep(EVENT_INTERVAL).await;
                }
                () = sleep(RESYNC_INTERVAL), if desired.is_needed() || retention.is_active() => {}
            }
            while events.try_recv().is_ok() {}
        }
    }

    fn report(&self, warnings: Vec<String>) {
        self.warnings.send_if_modified(|current| {
            let is_changed = *current != warnings;
            if is_changed {
                warnings
                    .iter()
                    .filter(|line| !current.contains(line))
                    .for_each(|line| tracing::warn!("{line}"));
                *current = warnings;
            }
            is_changed
        });
    }
}

/// Waits until the table of host access may have changed.
async fn table_changed(ruleset: &mut Option<Ruleset>) {
    let Some(notifications) = ruleset else { return pending().await };
    if let Err(error) = notifications.changed(TABLE).await {
        tracing::warn!(
            "no more notifications about nftables: {error}; its table is compared every {RESYNC_INTERVAL:?}"
        );
        *ruleset = None;
    }
}
