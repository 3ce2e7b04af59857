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
    time::{Instant, sleep, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    announced::{Announced, Ipv6NextHop},
    file::SpeakerFile,
    report::{self, Report},
};
use crate::state::{BgpSpeaker, Reader, State};

/// Minimum interval between reads of the state after its changes, and between those after changes of the session. It bounds the work if
/// the cluster changes quickly, or the neighbor sends many messages.
const READ_INTERVAL: Duration = Duration::from_millis(20);

/// Runs the speaker of this node while its `Bgp` object exists.
///
/// Until the state is complete, it announces what it announced last, by another run of the agent or by an earlier process, as far as
/// the endpoints have interfaces: the switch forwards to them.
#[derive(Debug)]
pub struct Task {
    host: HostName,
    followed: watch::Receiver<Option<Followed>>,
    file: SpeakerFile,
    /// What the file has.
    last: Announced,
    /// Settings of the last session, also of one that has ended: the kernel may still have its routes.
    earlier: Option<BgpSpeaker>,
    reports: watch::Sender<Report>,
}

/// The state of a run of the agent.
#[derive(Clone, Debug)]
pub struct Followed {
    /// The state. From the start it has the interfaces on this node.
    pub reader: Reader,
    /// Whether the settings of the cluster are known, and do not contradict those of this node. Before, the state counts as incomplete.
    pub is_settled: bool,
}

impl Followed {
    /// Whether no objects are missing that have not arrived yet.
    fn is_complete(&self) -> bool {
        self.is_settled && self.reader.awaited().is_empty()
    }
}

/// Settings of a session. `earlier` are those of the session before, also of an earlier process, whose routes the kernel may have.
fn config(speaker: &BgpSpeaker, earlier: Option<&BgpSpeaker>, restarted: bool) -> Config {
    let BgpSpeaker { router, asn, neighbor, neighbor_as } = *speaker;
    let has_same_ends =
        |earlier: &BgpSpeaker| earlier.router.addr() == router.addr() && earlier.neighbor == neighbor;
    Config {
        source: Some(router.addr().into()),
        restarted,
        // Those of another leaf switch lead to it, or leave by another interface.
        has_earlier_routes: earlier.is_none_or(has_same_ends),
        ..Config::new(asn, router.addr(), IpAddr::V4(neighbor), neighbor_as)
    }
}

impl Task {
    /// A task that does nothing until [`Task::run`], and its reports. It runs from the file until the state that it follows is
    /// complete.
    pub fn new(
        host: HostName,
        file: SpeakerFile,
        followed: watch::Receiver<Option<Followed>>,
    ) -> (Task, watch::Receiver<Report>) {
        let (reports, receiver) = watch::channel(Report::default());
        let last = file.read().unwrap_or_default();
        let earlier = last.speaker.clone();
        (Task { host, followed, file, last, earlier, reports }, receiver)
    }

    /// Follows the states until `stop` is cancelled. The leaf keeps the routes afterwards, for the time of a graceful restart.
    ///
    /// # Errors
    ///
    /// If a speaker ends on its own.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let first = stop.run_until_cancelled(self.first()).await.flatten();
        let Some(mut followed) = first else { return Ok(()) };
        // Endpoints of an earlier process have been forwarded all the time.
        let mut restarted = followed.reader.with(|state| state.attachments().next().is_some());
        let mut session: Option<Session> = None;
        let mut next_hop = Ipv6NextHop::default();
        // When the next change of the session is reported.
        let mut due = Instant::now();
        loop {
            let is_complete = followed.is_complete();
            let (host, last) = (&self.host, self.last.clone());
            let read = |state: &State| match is_complete {
                true => Announced::of(state, host, &last),
                false => last.attached(state),
            };
            let announced = followed.reader.with(read);
            let earlier = (self.earlier.as_ref(), restarted);
            let refused = update(&mut session, &announced, &mut next_hop, earlier).await;
            if let Some(session) = &session {
                self.earlier = Some(session.settings.clone());
            }
            restarted &= !is_complete && session.is_none();
            if is_complete {
                let kept = if session.is_some() { announced.clone() } else { Announced::default() };
                if kept != self.last {
                    self.file.save(&kept);
                    self.last = kept;
                }
            }
            self.report(session.as_ref(), refused, is_complete);
            let changed = followed.reader.wait(|state| (read(state) != announced).then_some(()));
            tokio::select! {
                () = stop.cancelled() => {
                    if let Some(session) = session {
                        session.stop(Stop::Restart).await;
                    }
                    return Ok(());
                }
                () = async { sleep(READ_INTERVAL).await; changed.await } => {}
                () = followed.reader.synced(), if followed.is_settled && !is_complete => {}
                // An error means that the agent stops.
                Ok(()) = self.followed.changed() => {}
                alive = async { sleep_until(due).await; Session::changed(session.as_mut()).await } => {
                    if !alive {
                        bail!("the BGP speaker ended");
                    }
                    due = Instant::now() + READ_INTERVAL;
                }
                () = sleep(Ipv6NextHop::INTERVAL) => {}
            }
            let newest = self.followed.borrow_and_update().clone();
            followed = newest.unwrap_or(followed);
        }
    }

    /// Waits for a state; `None` if the agent stops.
    async fn first(&mut self) -> Option<Followed> {
        self.followed.wait_for(Option::is_some).await.ok()?.clone()
    }

    fn report(&self, session: Option<&Session>, refused: Option<String>, is_complete: bool) {
        let report = match (session, refused) {
            (Some(session), _) => Report::Running(Box::new(report::Running {
                status: session.handle.status.borrow().clone(),
                learnt: session.handle.learnt.borrow().clone(),
                router: session.settings.router,
                addresses: session.announced(),
                is_remembered: !is_complete,
            })),
            (None, Some(why)) => Report::Refused(why),
            (None, None) if is_complete => Report::Absent,
            (None, None) => Report::Unknown,
        };
        self.reports.send_if_modified(|current| {
            let changed = *current != report;
            *current = report;
            changed
        });
    }
}

/// Makes the session announce this, starts it or stops it. `earlier` are the settings of the session before, and whether forwarding
/// continued. Returns why it does not run although there are settings.
async fn update(
    session: &mut Option<Session>,
    announced: &Announced,
    next_hop: &mut Ipv6NextHop,
    earlier: (Option<&BgpSpeaker>, bool),
) -> Option<String> {
    let settings = announced.speaker.clone().filter(|_| announced.is_routing);
    if let Some(previous) = session.take_if(|session| Some(&session.settings) != settings.as_ref()) {
        // Its routes may have another next hop, or none.
        previous.stop(Stop::Shutdown).await;
    }
    let Some(settings) = settings else {
        let has_no_effect = "the Bgp object has no effect: the forward mode is not routing";
        return announced.speaker.is_some().then(|| has_no_effect.to_owned());
    };
    let announcement =
        Announcement { addresses: announced.addresses(), next_hop_v6: next_hop.of(settings.router.addr()) };
    if let Some(session) = session {
        session.announce(announcement);
        return None;
    }
    match Session::start(settings, announcement, announced.routes_vlans, earlier) {
        Ok(started) => *session = Some(started),
        Err(error) => return Some(error.to_string()),
    }
    None
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
        announcement: Announcement,
        routes_vlans: bool,
        (earlier, restarted): (Option<&BgpSpeaker>, bool),
    ) -> Result<Session, ConfigError> {
        let next_hop_v6 = announcement.next_hop_v6;
        let (announcement, receiver) = watch::channel(Some(announcement));
        let config = config(&settings, earlier, restarted);
        let keeps_routes = config.has_earlier_routes;
        let (speaker, handle) = Speaker::new(config, receiver)?;
        let BgpSpeaker { router, asn, neighbor, neighbor_as } = settings;
        tracing::info!(%router, asn, %neighbor, neighbor_as, restarted, keeps_routes, "starting the BGP speaker");
        if !routes_vlans {
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

    fn announce(&self, now: Announcement) {
        self.announcement.send_if_modified(|current| {
            if current.as_ref().is_some_and(|current| current.next_hop_v6 != now.next_hop_v6) {
                log_next_hop(self.settings.router, now.next_hop_v6);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Those of another leaf switch would lead pods to it for minutes.
    #[test]
    fn routes_of_the_same_leaf_switch_only_are_kept() {
        let speaker = |router: &str, neighbor: u8, neighbor_as: u32| BgpSpeaker {
            router: router.parse().unwrap(),
            asn: 65000,
            neighbor: [50, 1, 1, neighbor].into(),
            neighbor_as,
        };
        let now = speaker("50.1.1.1/24", 2, 65001);
        let keeps = |earlier: Option<&BgpSpeaker>| config(&now, earlier, true).has_earlier_routes;
        assert!(keeps(None), "the file is lost");
        assert!(keeps(Some(&now)));
        assert!(keeps(Some(&speaker("50.1.1.1/25", 2, 65009))), "another AS number");
        assert!(!keeps(Some(&speaker("50.1.1.1/24", 3, 65001))));
        assert!(!keeps(Some(&speaker("50.1.1.9/24", 2, 65001))));
    }
}
