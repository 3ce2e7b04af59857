use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use anyhow::bail;
use contiv_bgp::{Addresses, Config, ConfigError, Handle, Speaker, Stop};
use contiv_model::name::HostName;
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

/// What a session depends on: it restarts if one of them changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Settings {
    speaker: BgpSpeaker,
    next_hop_v6: Option<Ipv6Addr>,
}

impl Settings {
    fn config(&self, restarted: bool) -> Config {
        let BgpSpeaker { router, asn, neighbor, neighbor_as } = self.speaker;
        Config {
            source: Some(router.addr().into()),
            next_hop_v6: self.next_hop_v6,
            restarted,
            ..Config::new(asn, router.addr(), IpAddr::V4(neighbor), neighbor_as)
        }
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
            let settings = announced
                .speaker
                .clone()
                .filter(|_| announced.is_routing)
                .map(|speaker| Settings { next_hop_v6: next_hop.of(speaker.router.addr()), speaker });
            if let Some(previous) = session.take_if(|session| Some(&session.settings) != settings.as_ref()) {
                // Its routes may have another next hop, or none.
                previous.stop(Stop::Shutdown).await;
            }
            let mut refused = None;
            match (&session, settings) {
                (None, Some(settings)) => match Session::start(settings, &announced, restarted) {
                    Ok(started) => session = Some(started),
                    Err(error) => refused = Some(error.to_string()),
                },
                (None, None) if announced.speaker.is_some() => {
                    refused =
                        Some("the Bgp object has no effect: the forward mode is not routing".to_owned());
                }
                (Some(session), _) => session.announce(&announced),
                (None, None) => {}
            }
            restarted = false;
            self.report(session.as_ref(), refused, &announced);
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

    fn report(&self, session: Option<&Session>, refused: Option<String>, announced: &Announced) {
        let report = match (session, refused) {
            (Some(session), _) => Report::Running(Box::new(report::Running {
                status: session.handle.status.borrow().clone(),
                learnt: session.handle.learnt.borrow().clone(),
                addresses: session.announced(announced),
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
    settings: Settings,
    addresses: watch::Sender<Addresses>,
    handle: Handle,
    stop: oneshot::Sender<Stop>,
    task: AbortOnDropHandle<()>,
}

impl Session {
    fn start(settings: Settings, announced: &Announced, restarted: bool) -> Result<Session, ConfigError> {
        let (addresses, receiver) = watch::channel(Some(Arc::clone(&announced.addresses)));
        let (speaker, handle) = Speaker::new(settings.config(restarted), receiver)?;
        let BgpSpeaker { router, asn, neighbor, neighbor_as } = settings.speaker;
        tracing::info!(%router, asn, %neighbor, neighbor_as, restarted, "starting the BGP speaker");
        if !announced.routes_vlans {
            tracing::warn!(
                "this node does not route VLAN networks (--netmode vlan --datapath ovs do): what the neighbor sends to announced \
                 addresses is forwarded by the routes of this node's kernel"
            );
        }
        if settings.next_hop_v6.is_none() {
            tracing::info!(
                "IPv6 routes are not announced: the interface with the router IP {router} has no global IPv6 address"
            );
        }
        let (stop, stopped) = oneshot::channel();
        // Without a sender the task is about to be aborted.
        let stopped = async { stopped.await.unwrap_or(Stop::Restart) };
        let task = AbortOnDropHandle::new(tokio::spawn(speaker.run(stopped)));
        Ok(Session { settings, addresses, handle, stop, task })
    }

    fn announce(&self, announced: &Announced) {
        self.addresses.send_if_modified(|current| {
            let changed = current.as_ref() != Some(&announced.addresses);
            *current = Some(Arc::clone(&announced.addresses));
            changed
        });
    }

    /// Addresses that have a next hop.
    fn announced(&self, announced: &Announced) -> Arc<BTreeSet<IpAddr>> {
        match self.settings.next_hop_v6 {
            Some(_) => Arc::clone(&announced.addresses),
            None => Arc::new(announced.addresses.iter().copied().filter(IpAddr::is_ipv4).collect()),
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
        let router = self.settings.speaker.router;
        // An error means that the speaker has ended.
        let _ = self.stop.send(how);
        if let Err(error) = self.task.await {
            tracing::error!(%router, "stop the BGP speaker: {error}");
        }
    }
}
