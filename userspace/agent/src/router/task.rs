use std::{collections::BTreeSet, future::pending, time::Duration};

use contiv_model::name::HostName;
use futures::{FutureExt as _, Stream, StreamExt as _};
use rtnetlink::{Handle, MulticastGroup};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    access::HostAccess,
    desired::{Desired, Learnt},
    error::Error,
    firewall::Firewall,
    kernel,
    nat_table::TABLE,
    retention::Retention,
    ruleset::Ruleset,
};
use crate::{bgp::Report, datapath::ebpf, error::one_line, state::Reader};

/// Interval between comparisons with the kernel, and between attempts after an error.
const RESYNC_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum interval between comparisons because of changes in the kernel, and of the leaf's routes.
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
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        // Before, endpoints that are missing may not have arrived yet.
        if stop.run_until_cancelled(self.reader.synced()).await.is_none() {
            return Ok(());
        }
        self.follow(kernel::connect, subscribe, stop).await
    }

    /// As [`run`](Self::run) from the complete state on. Netlink sockets may close, such as for want of memory: `connect` opens
    /// one for requests, and `subscribe` one for the kernel's notifications.
    async fn follow<Events: Stream + Unpin>(
        mut self,
        mut connect: impl FnMut() -> Result<Handle, Error>,
        mut subscribe: impl FnMut() -> Result<Events, Error>,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let (mut handle, mut events) = (connect()?, Some(subscribe()?));
        let (mut access, mut retention) = (HostAccess::default(), Retention::default());
        let mut firewall = Firewall::default();
        let mut ruleset = Ruleset::follow()
            .inspect_err(|error| tracing::debug!("no notifications about nftables: {error}"))
            .ok();
        loop {
            // Without notifications the kernel is compared at intervals.
            events = events.or_else(|| {
                let opened = subscribe();
                opened.inspect_err(|error| tracing::warn!("{}", one_line(error))).ok()
            });
            let (desired, has_unreadable) = self.reader.with(|state| {
                (Desired::of(state, &self.host, &self.tunnels), state.unplanned().next().is_some())
            });
            retention.update(desired.prefixes(), desired.access.is_some(), has_unreadable);
            let learnt = Learnt::of(&self.sessions.borrow_and_update());
            let synced = kernel::sync(&handle, &mut access, (&desired, &learnt), &retention).await;
            // What is left, such as forwarding, is removed also when nothing is needed any more.
            let is_unfinished = synced.is_err() || retention.is_active();
            match synced {
                Ok((changes, mut warnings)) => {
                    if changes > 0 {
                        tracing::debug!(changes, "updated the kernel's routing");
                    }
                    warnings.extend(firewall.check(&desired).await);
                    self.report(warnings);
                }
                Err(error) => {
                    self.report(vec![format!("routing in the kernel: {}", one_line(&error))]);
                    if error.is_of_connection() {
                        match connect() {
                            Ok(opened) => handle = opened,
                            Err(error) => tracing::warn!("{}", one_line(&error)),
                        }
                    }
                }
            }
            let is_needed = desired.is_needed() || access.is_ending();
            let changed = self
                .reader
                .wait(|state| (Desired::of(state, &self.host, &self.tunnels) != desired).then_some(()));
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = changed => {}
                () = learnt_changed(&mut self.sessions, &learnt) => {}
                () = table_changed(&mut ruleset), if desired.access.is_some() => access.notice(),
                () = kernel_changed(&mut events, is_needed) => sleep(EVENT_INTERVAL).await,
                () = sleep(RESYNC_INTERVAL), if is_needed || is_unfinished => {}
            }
            while events.as_mut().and_then(|events| events.next().now_or_never()).flatten().is_some() {}
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

/// Waits until the kernel shall have other routes of the leaf switch than `current`. A report changes with each message of the leaf,
/// and a comparison with the kernel reads all routes.
async fn learnt_changed(sessions: &mut watch::Receiver<Report>, current: &Learnt) {
    while sessions.changed().await.is_ok() {
        sleep(EVENT_INTERVAL).await;
        if Learnt::of(&sessions.borrow_and_update()) != *current {
            return;
        }
    }
    // The speaker's task has ended.
    pending::<()>().await;
}

/// Subscribes to the kernel's notifications. They queue up without limit unless they are taken.
fn subscribe() -> Result<impl Stream + Unpin, Error> {
    let (connection, _, events) = rtnetlink::new_multicast_connection(&EVENTS).map_err(Error::Connect)?;
    tokio::spawn(connection);
    Ok(events)
}

/// Waits for a notification of the kernel. Takes them also while none matters, and then goes on waiting. Without a subscription it
/// waits until the next attempt to subscribe.
async fn kernel_changed(events: &mut Option<impl Stream + Unpin>, matters: bool) {
    while let Some(notifications) = events {
        match notifications.next().await {
            Some(_) if matters => return,
            Some(_) => {}
            None => *events = None,
        }
    }
    sleep(RESYNC_INTERVAL).await;
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

#[cfg(test)]
pub(super) mod tests {
    use std::{
        mem,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use anyhow::{Context as _, bail};
    use futures::stream;
    use nix::{
        mount::{MntFlags, MsFlags, mount, umount2},
        sched::{CloneFlags, unshare},
    };
    use testkit::{Netns, needs};
    use tokio::time::timeout;

    use super::*;
    use crate::state;

    /// Pairs of interfaces that come and go.
    const PAIRS: usize = 20;
    const TIMEOUT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn reports_without_other_routes_lead_to_no_comparison() {
        let (sender, mut sessions) = watch::channel(Report::Absent);
        let current = Learnt::of(&Report::Absent);
        sender.send_replace(Report::Refused("no routes either".into()));
        let changed = timeout(3 * EVENT_INTERVAL, learnt_changed(&mut sessions, &current)).await;
        assert!(changed.is_err());
        // Routes of an earlier process would stay.
        sender.send_replace(Report::Unknown);
        let changed = timeout(TIMEOUT, learnt_changed(&mut sessions, &current)).await;
        assert!(changed.is_ok());
    }

    /// Waits until the warnings of the task have, or have not, this part.
    async fn expect(
        warnings: &mut watch::Receiver<Vec<String>>,
        part: &str,
        is_reported: bool,
    ) -> anyhow::Result<()> {
        let has = |lines: &Vec<String>| lines.iter().any(|line| line.contains(part)) == is_reported;
        timeout(TIMEOUT, warnings.wait_for(has))
            .await
            .with_context(|| format!("{part}: {is_reported}"))??;
        Ok(())
    }

    /// Makes a parameter of the kernel read-only for the calling thread.
    pub(in crate::router) fn protect(path: &str) -> anyhow::Result<()> {
        unshare(CloneFlags::CLONE_NEWNS)?;
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        mount(Some(path), path, none, MsFlags::MS_BIND, none)?;
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
        Ok(mount(none, path, none, flags, none)?)
    }

    /// Else the interface with the router IP would forward until the agent restarts.
    #[test]
    fn the_end_of_routing_is_tried_again() {
        needs!(root(), binary("ip"));
        let node = Netns::new("end").unwrap();
        let parameter = "/proc/sys/net/ipv4/conf/eth1/forwarding";
        for words in ["link add eth1 type veth peer name leaf", "rule add pref 2984 iif eth1 blackhole"] {
            node.ip(words).unwrap();
        }
        node.sysctl("net/ipv4/ip_forward", "0").unwrap();
        node.sysctl("net/ipv4/conf/eth1/forwarding", "1").unwrap();
        let run = || {
            protect(parameter)?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let (_writer, _attacher, reader, _changes) = state::new([]);
                let (_sender, sessions) = watch::channel(Report::Absent);
                let (task, mut warnings) = Task::new("h".into(), 4789, reader, sessions);
                let ends = async {
                    expect(&mut warnings, "interface eth1", true).await?;
                    umount2(parameter, MntFlags::MNT_DETACH)?;
                    expect(&mut warnings, "interface eth1", false).await
                };
                tokio::select! {
                    ended = task.follow(kernel::connect, subscribe, CancellationToken::new()) => {
                        bail!("the task ended: {ended:?}")
                    }
                    result = ends => result,
                }
            })
        };
        node.run(run).unwrap();
        assert_eq!(node.output("cat", &[parameter]).unwrap().trim(), "0");
        assert!(!node.ip("rule show").unwrap().contains("2984"));
    }

    #[test]
    fn sockets_that_have_closed_are_opened_again() {
        needs!(root());
        let node = Netns::new("sockets").unwrap();
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let (_writer, _attacher, reader, _changes) = state::new([]);
                let (_sender, sessions) = watch::channel(Report::Absent);
                let (task, mut warnings) = Task::new("h".into(), 4789, reader, sessions);
                let mut is_first = true;
                let connect = || match mem::take(&mut is_first) {
                    // Its connection is closed.
                    true => Ok(rtnetlink::new_connection_with_strict_check().map_err(Error::Connect)?.1),
                    false => kernel::connect(),
                };
                let subscriptions = AtomicUsize::new(0);
                let subscribe = || match subscriptions.fetch_add(1, Ordering::Relaxed) {
                    0 => Ok(stream::empty().boxed()),
                    _ => Ok(subscribe()?.map(drop).boxed()),
                };
                let opened = async {
                    expect(&mut warnings, "routing in the kernel", true).await?;
                    expect(&mut warnings, "routing in the kernel", false).await?;
                    while subscriptions.load(Ordering::Relaxed) < 2 {
                        sleep(EVENT_INTERVAL).await;
                    }
                    anyhow::Ok(())
                };
                tokio::select! {
                    ended = task.follow(connect, subscribe, CancellationToken::new()) => {
                        bail!("the task ended: {ended:?}")
                    }
                    opened = timeout(TIMEOUT, opened) => opened?,
                }
            })
        };
        node.run(run).unwrap();
    }

    /// In forward mode `bridge` the kernel has nothing of the agent, and nothing follows from a notification.
    #[test]
    fn notifications_are_taken_also_while_none_matters() {
        needs!(root(), binary("ip"));
        let node = Netns::new("router").unwrap();
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let (_writer, _attacher, reader, _changes) = state::new([]);
                let (_sender, sessions) = watch::channel(Report::default());
                let (task, _warnings) = Task::new("h".into(), 4789, reader, sessions);
                let taken = Arc::new(AtomicUsize::new(0));
                let count = Arc::clone(&taken);
                let subscribe = || {
                    let count = Arc::clone(&count);
                    Ok(subscribe()?.inspect(move |_| _ = count.fetch_add(1, Ordering::Relaxed)))
                };
                let links = async {
                    for pair in 1..=PAIRS {
                        node.veth("v0", &node, "v1")?;
                        node.ip("link del v0")?;
                        // At least one of an interface that came, and one of an interface that went.
                        while taken.load(Ordering::Relaxed) < 2 * pair {
                            sleep(Duration::from_millis(2)).await;
                        }
                    }
                    anyhow::Ok(())
                };
                tokio::select! {
                    // It subscribes before.
                    biased;
                    ended = task.follow(kernel::connect, subscribe, CancellationToken::new()) => {
                        bail!("the task ended: {ended:?}")
                    }
                    all = timeout(TIMEOUT, links) => all.context("notifications are left")?,
                }
            })
        };
        node.run(run).unwrap();
    }
}
