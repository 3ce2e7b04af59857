use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use anyhow::bail;
use contiv_bgp::{Announcement, Config, ConfigError, Handle, Speaker, Stop};
use contiv_model::name::HostName;
use ipnet::Ipv4Net;
use tokio::{
    sync::{oneshot, watch},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    announced::{Announced, Ipv6NextHop},
    report::{self, Report},
};
use crate::state::{BgpSpeaker, Reader};

/// Minimum interval between reads of the state, which bounds the work if the cluster changes quickly.
const READ_INTERVAL: Duration = Duration::from_millis(20);

/// Runs the speaker of this node while its `Bgp` object exists.
#[derive(Debug)]
pub struct Task {
    host: HostName,
    reader: Reader,
    reports: watch::Sender<Report>,
}

/// Settings of a session.
fn config(speaker: &BgpSpeaker, restarted: bool) -> Config {
    let BgpSpeaker { router, asn, neighbor, neighbor_as } = *speaker;
    Config {
        source: Some(router.addr().into()),
        restarted,
        ..Config::new(asn, router.addr(), IpAddr::V4(neighbor), neighbor_as)
    }
}

impl Task {
    /// A task that does nothing until [`Task::run`], and its reports.
    pub fn new(host: HostName, reader: Reader) -> (Task, watch::Receiver<Report>) {
        let (reports, receiver) = watch::channel(Report::default());
        (Task { host, reader, reports }, receiver)
    }

    /// Follows the state until `stop` is cancelled.
    ///
    /// # Errors
    ///
    /// If a speaker ends on its own.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        // Before, objects that are missing may not have arrived yet.
        if stop.run_until_cancelled(self.reader.synced()).await.is_none() {
            return Ok(());
        }
        // Endpoints of an earlier process have been forwarded all the time.
        let mut restarted = self.reader.with(|state| state.attachments().next().is_some());
        let mut session: Option<Session> = None;
        let mut next_hop = Ipv6NextHop::default();
        loop {
            let announced = self.reader.with(|state| Announced::of(state, &self.host));
            let settings = announced.speaker.clone().filter(|_| announced.is_routing);
            if let Some(previous) = session.take_if(|session| Some(&session.settings) != settings.as_ref()) {
                // Its routes may have another next hop, or none.
                previous.stop(Stop::Shutdown).await;
            }
            let next_hop_v6 = settings.as_ref().and_then(|speaker| next_hop.of(speaker.router.addr()));
            let mut refused = None;
            match (&session, settings) {
                (None, Some(settings)) => {
                    match Session::start(settings, &announced, next_hop_v6, restarted) {
                        Ok(started) => session = Some(started),
                        Err(error) => refused = Some(error.to_string()),
                    }
                }
                (None, None) if announced.speaker.is_some() => {
                    refused =
                        Some("the Bgp object has no effect: the forward mode is not routing".to_owned());
                }
                (Some(session), _) => session.announce(&announced, next_hop_v6),
                (None, None) => {}
            }
            restarted = false;
            self.report(session.as_ref(), refused);
            let changed =
                self.reader.wait(|state| (Announced::of(state, &self.host) != announced).then_some(()));
            tokio::select! {
                () = stop.cancelled() => {
                    if let Some(session) = session {
                        session.stop(Stop::Restart).await;
                    }
                    return Ok(());
                }
                () = async { sleep(READ_INTERVAL).await; changed.await } => {}
                alive = Session::changed(session.as_mut()) => if !alive {
                    bail!("the BGP speaker ended");
                },
                () = sleep(Ipv6NextHop::INTERVAL) => {}
            }
        }
    }

    fn report(&self, session: Option<&Session>, refused: Option<String>) {
        let report = match (session, refused) {
            (Some(session), _) => Report::Running(Box::new(report::Running {
                status: session.handle.status.borrow().clone(),
                learnt: session.handle.learnt.borrow().clone(),
                addresses: session.announced(),
            })),
            (None, Some(why)) => Report::Refused(why),
            (None, None) => Report::Absent,
        };
        self.reports.send_if_modified(|current| {
            let changed = *current != report;
            *current = report;
            changed
        });
    }
}

/// A speaker that runs as a task.
struct Session {
    /// The session restarts if they change.
    settings: BgpSpeaker,
    announcement: watch::Sender<Option<Announcement>>,
    handle: Handle,
    stop: oneshot::Sender<Stop>,
    task: AbortOnDropHandle<()>,
}

impl Session {
    fn start(
        settings: BgpSpeaker,
        announced: &Announced,
        next_hop_v6: Option<Ipv6Addr>,
        restarted: bool,
    ) -> Result<Session, ConfigError> {
        let announcement = Announcement { addresses: Arc::clone(&announced.addresses), next_hop_v6 };
        let (announcement, receiver) = watch::channel(Some(announcement));
        let (speaker, handle) = Speaker::new(config(&settings, restarted), receiver)?;
        let BgpSpeaker { router, asn, neighbor, neighbor_as } = settings;
        tracing::info!(%router, asn, %neighbor, neighbor_as, restarted, "starting the BGP speaker");
        if !announced.routes_vlans {
            tracing::warn!(
                "this node does not route VLAN networks (--netmode vlan --datapath ovs do): what the neighbor sends to announced \
                 addresses is forwarded by the routes of this node's kernel"
            );
        }
        log_next_hop(router, next_hop_v6);
        let (stop, stopped) = oneshot::channel();
        // Without a sender the task is about to be aborted.
        let stopped = async { stopped.await.unwrap_or(Stop::Restart) };
        let task = AbortOnDropHandle::new(tokio::spawn(speaker.run(stopped)));
        Ok(Session { settings, announcement, handle, stop, task })
    }

    fn announce(&self, announced: &Announced, next_hop_v6: Option<Ipv6Addr>) {
        let now = Announcement { addresses: Arc::clone(&announced.addresses), next_hop_v6 };
        self.announcement.send_if_modified(|current| {
            if current.as_ref().is_some_and(|current| current.next_hop_v6 != next_hop_v6) {
                log_next_hop(self.settings.router, next_hop_v6);
            }
            let changed = current.as_ref() != Some(&now);
            *current = Some(now);
            changed
        });
    }

    /// Addresses that have a next hop.
    fn announced(&self) -> Arc<BTreeSet<IpAddr>> {
        match &*self.announcement.borrow() {
            Some(Announcement { addresses, next_hop_v6: Some(_) }) => Arc::clone(addresses),
            Some(Announcement { addresses, next_hop_v6: None }) => {
                Arc::new(addresses.iter().copied().filter(IpAddr::is_ipv4).collect())
            }
            None => Arc::default(),
        }
    }

    /// Waits for another status or other routes; false if the speaker has ended. Without a session it waits forever.
    async fn changed(session: Option<&mut Session>) -> bool {
        match session {
            Some(session) => tokio::select! {
                changed = session.handle.status.changed() => changed.is_ok(),
                changed = session.handle.learnt.changed() => changed.is_ok(),
            },
            None => std::future::pending().await,
        }
    }

    async fn stop(self, how: Stop) {
        let router = self.settings.router;
        // An error means that the speaker has ended.
        let _ = self.stop.send(how);
        if let Err(error) = self.task.await {
            tracing::error!(%router, "stop the BGP speaker: {error}");
        }
    }
}

fn log_next_hop(router: Ipv4Net, next_hop_v6: Option<Ipv6Addr>) {
    match next_hop_v6 {
        Some(next_hop) => tracing::info!(%router, %next_hop, "next hop of IPv6 routes"),
        None => tracing::info!(
            "IPv6 routes are not announced: the interface with the router IP {router} has no global IPv6 address"
        ),
    }
}
