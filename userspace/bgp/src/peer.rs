//! One neighbor: its session, the routing tables, and graceful restart.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use bytes::{BufMut as _, Bytes, BytesMut};
use ipnet::IpNet;
use rustbgpd_wire::{
    EncodeError, Message, NotificationCode, NotificationMessage, RouteRefreshMessage, UpdateMessage,
    notification::cease_subcode,
};

use crate::{
    Action, Attributes, Config, Counters, Event, Failure, Family, Learnt, Negotiated, Path, Route, Session,
    Source, State, Status, Timer,
    rib::{input::AdjRibIn, input::Full, output::AdjRibOut, selection::is_selected},
    update::{self, Update},
};

/// A neighbor. Pure: events in, actions out.
#[derive(Debug)]
pub struct Peer {
    session: Session,
    input: AdjRibIn,
    output: AdjRibOut,
    /// Next hop of announced IPv6 routes.
    next_hop_v6: Option<Ipv6Addr>,
    /// Agreement of the last session, which tells what to keep when it ends.
    last: Option<Negotiated>,
    /// Families whose End-of-RIB marker is awaited in the session; empty if `complete`.
    awaited: BTreeSet<Family>,
    complete: bool,
    /// Whether the time to wait for the first routes has been extended, which happens once: the neighbor has restarted, or restarts.
    extended: bool,
    /// Whether the session is established.
    up: bool,
    failure: Option<Failure>,
    counters: Counters,
    learnt: Learnt,
    changed: bool,
}

impl Peer {
    /// A neighbor without a session.
    pub fn new(config: Config) -> Peer {
        let complete = !config.has_earlier_routes;
        Peer {
            input: AdjRibIn::new(config.max_prefixes),
            session: Session::new(config),
            output: AdjRibOut::default(),
            next_hop_v6: None,
            last: None,
            awaited: BTreeSet::new(),
            complete,
            extended: false,
            up: false,
            failure: None,
            counters: Counters::default(),
            learnt: Learnt { complete, ..Learnt::default() },
            changed: false,
        }
    }

    /// Sets the addresses to announce, and the next hop of those of IPv6. Nothing is announced before the first call, and no IPv6
    /// address without a next hop. With another next hop, IPv6 routes are announced again, which replaces them.
    pub fn originate(&mut self, addresses: &BTreeSet<IpAddr>, next_hop_v6: Option<Ipv6Addr>) {
        let ipv6 = next_hop_v6.is_some();
        let announced = addresses.iter().copied().filter(|address| ipv6 || address.is_ipv4());
        self.output.want(announced.map(IpNet::from).collect());
        if mem::replace(&mut self.next_hop_v6, next_hop_v6) != next_hop_v6 {
            self.output.refresh(Family::Ipv6);
        }
        self.changed = true;
    }

    /// Handles an event.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        match &event {
            Event::Received(message) => {
                self.counters.received += 1;
                self.counters.updates_received += u64::from(matches!(message, Message::Update(_)));
            }
            Event::Expired(Timer::Stale) => {
                for family in Family::ALL {
                    self.changed |= self.input.remove_stale(family);
                }
            }
            Event::Expired(Timer::Deferral) => self.complete(),
            _ => {}
        }
        // The neighbor may be restarting, too.
        let is_first = event == Event::Start && self.counters.established == 0 && !self.complete;
        let deferral = is_first.then(|| self.defer());
        let message = match (&event, self.session.state()) {
            (
                Event::Received(message @ (Message::Update(_) | Message::RouteRefresh(_))),
                State::Established,
            ) => Some(message.clone()),
            _ => None,
        };
        let actions = self.session.handle(event);
        let mut all = self.follow(actions);
        all.extend(deferral);
        all.extend(match message {
            Some(Message::Update(update)) => self.update(&update),
            Some(Message::RouteRefresh(refresh)) => self.refresh(&refresh),
            _ => vec![],
        });
        all
    }

    /// The next UPDATE messages, a bounded number; empty if the neighbor is up to date. To be called when the messages before
    /// have been sent.
    pub fn next_updates(&mut self) -> Vec<Action> {
        let Some(negotiated) =
            self.session.negotiated().filter(|_| self.session.state() == State::Established)
        else {
            return vec![];
        };
        let (negotiated, config) = (negotiated.clone(), self.session.config().clone());
        match self.encode(&config, &negotiated) {
            Ok(messages) => self.send(messages),
            Err(error) => {
                let cause = format!("encode an UPDATE: {error}");
                let failure = Failure::Protocol { neighbor: config.neighbor.ip(), cause };
                self.fail(None, failure)
            }
        }
    }

    fn encode(&mut self, config: &Config, negotiated: &Negotiated) -> Result<Vec<Message>, EncodeError> {
        let mut messages = vec![];
        for changes in self.output.take_changes(&negotiated.families) {
            messages.extend(update::withdraw(negotiated, changes.family, &changes.withdrawn)?);
            let announced = (changes.family, &changes.announced[..]);
            messages.extend(update::announce(config, negotiated, self.next_hop_v6, announced)?);
            if changes.end_of_rib {
                messages.push(update::end_of_rib(negotiated, changes.family)?);
            }
        }
        Ok(messages)
    }

    /// Status now, without the time of `established`.
    pub fn status(&self) -> Status {
        let config = self.session.config();
        Status {
            state: self.session.state(),
            established: None,
            failure: self.failure.clone(),
            local_as: config.local_as,
            router_id: config.router_id,
            neighbor: config.neighbor.ip(),
            neighbor_as: config.neighbor_as,
            negotiated: self.session.negotiated().cloned(),
            received: self.input.routes().len(),
            stale: self.input.stale(),
            advertised: self.output.advertised(),
            counters: self.counters,
        }
    }

    /// Whether [`learnt`](Self::learnt) has to select the routes anew.
    pub fn has_changed(&self) -> bool {
        self.changed
    }

    /// The selected routes. Recomputed after changes only.
    pub fn learnt(&mut self) -> &Learnt {
        if mem::take(&mut self.changed) {
            self.learnt = self.select();
        }
        &self.learnt
    }

    /// Loc-RIB without the speaker's own routes.
    fn select(&self) -> Learnt {
        let config = self.session.config();
        let router_id = self.last.as_ref().map_or(config.router_id, |negotiated| negotiated.router_id);
        let source =
            Source::Neighbor { external: !config.is_internal(), router_id, address: config.neighbor.ip() };
        let selected = self.input.routes().iter().filter(|(prefix, route)| {
            is_selected(prefix, Path { source, attributes: &route.attributes }, self.output.wanted())
        });
        let routes: BTreeMap<IpNet, Route> =
            selected.map(|(prefix, route)| (*prefix, route.clone())).collect();
        Learnt { routes: Arc::new(routes), complete: self.complete }
    }

    fn send(&mut self, messages: Vec<Message>) -> Vec<Action> {
        let actions = messages.into_iter().map(Action::Send).collect();
        self.follow(actions)
    }

    fn fail(&mut self, notification: Option<NotificationMessage>, failure: Failure) -> Vec<Action> {
        let actions = self.session.fail(notification, failure);
        self.follow(actions)
    }

    /// Does what the actions of the session mean for the tables.
    fn follow(&mut self, actions: Vec<Action>) -> Vec<Action> {
        let mut all = vec![];
        for action in actions {
            let more = match &action {
                Action::Up(negotiated) => self.up(negotiated.clone()),
                Action::Down(failure) => self.down(failure.clone(), &all),
                Action::Send(message) => {
                    self.counters.sent += 1;
                    self.counters.updates_sent += u64::from(matches!(message, Message::Update(_)));
                    vec![]
                }
                _ => vec![],
            };
            all.push(action);
            all.extend(more);
        }
        if self.awaits_neighbor() {
            all.iter_mut().for_each(|action| self.limit_retry_delay(action));
        }
        all
    }

    /// Whether learnt routes may be deleted for want of a session: those that are stale, or those that an earlier run has
    /// installed. Sessions that end one after the other are no restart of the neighbor.
    fn awaits_neighbor(&self) -> bool {
        !self.session.is_unstable() && (!self.complete || self.input.stale() > 0)
    }

    /// Starts the time to wait for the first routes of a neighbor that restarts, or may do so.
    fn defer(&self) -> Action {
        Action::StartTimer(Timer::Deferral, self.session.config().stale_time)
    }

    /// Extends the time to wait for the first routes, once. A neighbor that has restarted announces nothing until its own neighbors
    /// have sent their End-of-RIB markers.
    fn extend_deferral(&mut self) -> Option<Action> {
        let is_extended = !self.complete && !mem::replace(&mut self.extended, true);
        is_extended.then(|| self.defer())
    }

    /// With growing delays, a neighbor that is back within its restart time might not be dialed before the time has passed.
    fn limit_retry_delay(&self, action: &mut Action) {
        if let Action::StartTimer(Timer::IdleHold | Timer::ConnectRetry, delay) = action {
            *delay = self.session.config().connect_retry.min(*delay);
        }
    }

    fn up(&mut self, negotiated: Negotiated) -> Vec<Action> {
        self.up = true;
        self.failure = None;
        self.counters.established += 1;
        self.changed = true;
        self.output.restart(&negotiated.families);
        // The session before may have had other families, and its routes may be gone.
        if !self.complete {
            self.awaited = negotiated.families.iter().copied().collect();
        }
        // RFC 4724 section 4.2: routes of a family stay stale only if the neighbor kept forwarding for it.
        let preserved = |family: Family| {
            let families = negotiated.graceful_restart.as_ref().map(|restart| &restart.families);
            families.is_some_and(|families| families.contains(&(family, true)))
                && negotiated.families.contains(&family)
        };
        for family in Family::ALL {
            if !preserved(family) {
                self.input.remove_stale(family);
            }
        }
        let has_restarted = negotiated.graceful_restart.as_ref().is_some_and(|restart| restart.restarted);
        self.last = Some(negotiated);
        let is_first = self.counters.established == 1 && !self.complete;
        let deferral = match has_restarted {
            true => self.extend_deferral(),
            false => {
                is_first.then(|| Action::StartTimer(Timer::Deferral, self.session.config().convergence_time))
            }
        };
        let stale = match self.input.stale() {
            0 => Action::StopTimer(Timer::Stale),
            // The neighbor may never send its End-of-RIB markers. It defers them until its own neighbors have sent theirs.
            _ => Action::StartTimer(Timer::Stale, self.session.config().stale_time),
        };
        deferral.into_iter().chain([stale]).collect()
    }

    /// `before` are the actions that lead to this: a NOTIFICATION among them, or one of the neighbor, ends graceful restart.
    fn down(&mut self, failure: Failure, before: &[Action]) -> Vec<Action> {
        let was_up = mem::take(&mut self.up);
        let notified = before.iter().any(|action| matches!(action, Action::Send(Message::Notification(_))));
        let graceful = matches!(failure, Failure::Lost { .. }) && !notified;
        self.failure = Some(failure);
        self.output.clear();
        if !was_up {
            return vec![];
        }
        self.changed = true;
        let restart = self.last.as_ref().and_then(|negotiated| {
            let restart = negotiated.graceful_restart.as_ref()?;
            let kept = restart.families.iter().map(|(family, _)| *family);
            let kept: Vec<_> = kept.filter(|family| negotiated.families.contains(family)).collect();
            Some((restart.restart_time, kept))
        });
        match restart {
            Some((seconds, families)) if graceful && seconds > 0 => {
                self.input.retain_as_stale(&families);
                let stale = Action::StartTimer(Timer::Stale, Duration::from_secs(seconds.into()));
                self.extend_deferral().into_iter().chain([stale]).collect()
            }
            _ => {
                self.input.clear();
                vec![Action::StopTimer(Timer::Stale)]
            }
        }
    }

    fn update(&mut self, message: &UpdateMessage) -> Vec<Action> {
        let Some(negotiated) = self.session.negotiated() else { return vec![] };
        let neighbor = self.session.config().neighbor.ip();
        match update::decode(message, negotiated, self.session.config()) {
            Ok(Update::EndOfRib(family)) => {
                self.changed |= self.input.remove_stale(family);
                if self.awaited.remove(&family) && self.awaited.is_empty() {
                    self.complete();
                }
                vec![]
            }
            Ok(Update::Routes { withdrawn, announced, attributes, ignored, malformed }) => {
                self.counters.updates_malformed += u64::from(malformed.is_some());
                let mut actions: Vec<_> = malformed.map(Action::Warn).into_iter().collect();
                self.ignore(&ignored);
                self.changed = true;
                withdrawn.iter().for_each(|prefix| self.input.withdraw(prefix));
                let taken = attributes.map_or(Ok(()), |attributes| self.announced(&announced, &attributes));
                if let Err(Full(family)) = taken {
                    actions.extend(self.too_many(family));
                }
                actions
            }
            Err((notification, cause)) => {
                let cause = format!("malformed UPDATE: {cause}");
                self.fail(Some(notification), Failure::Protocol { neighbor, cause })
            }
        }
    }

    /// Counts prefixes that are ignored, and logs the first one: the neighbor may send any number.
    fn ignore(&mut self, prefixes: &[IpNet]) {
        if let Some(prefix) = prefixes.first()
            && self.counters.prefixes_ignored == 0
        {
            let neighbor = self.session.config().neighbor.ip();
            tracing::warn!(
                %neighbor,
                "announced prefix {prefix} ignored, and others like it: loopback, link-local, multicast or broadcast addresses; \
                 filter them at the neighbor"
            );
        }
        self.counters.prefixes_ignored += prefixes.len() as u64;
    }

    fn announced(&mut self, announced: &[(IpNet, IpAddr)], attributes: &Arc<Attributes>) -> Result<(), Full> {
        let config = self.session.config();
        // RFC 4271 section 9.1.2: a path with the own AS number is a loop.
        let looped = attributes.as_path.contains(&config.local_as);
        let own = self.next_hop_v6.map(IpAddr::V6);
        for (prefix, next_hop) in announced {
            if looped || config.is_own_address(*next_hop) || own == Some(*next_hop) {
                self.input.withdraw(prefix);
            } else {
                self.input.announce(*prefix, *next_hop, attributes)?;
            }
        }
        Ok(())
    }

    fn too_many(&mut self, family: Family) -> Vec<Action> {
        let config = self.session.config();
        let (neighbor, limit) = (config.neighbor.ip(), config.max_prefixes);
        let mut data = BytesMut::new();
        // RFC 4486 section 4: AFI, SAFI, limit.
        data.put_u16(match family {
            Family::Ipv4 => 1,
            Family::Ipv6 => 2,
        });
        data.put_u8(1);
        data.put_u32(u32::try_from(limit).unwrap_or(u32::MAX));
        let data: Bytes = data.freeze();
        let notification =
            NotificationMessage::new(NotificationCode::Cease, cease_subcode::MAX_PREFIXES, data);
        self.fail(Some(notification), Failure::MaxPrefixes { neighbor, limit, family })
    }

    fn refresh(&mut self, refresh: &RouteRefreshMessage) -> Vec<Action> {
        let family = refresh.afi().zip(refresh.safi()).and_then(|(afi, safi)| Family::from_wire(afi, safi));
        if let Some(family) = family {
            self.output.refresh(family);
        }
        vec![]
    }

    fn complete(&mut self) {
        self.complete = true;
        self.awaited.clear();
        self.changed = true;
    }
}
