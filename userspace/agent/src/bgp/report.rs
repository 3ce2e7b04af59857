use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use contiv_bgp::{Learnt, State, Status};
use contiv_model::{bgp::Oper, name::HostName};
use ipnet::{IpNet, Ipv4Net};

/// What the agent knows of the node's BGP session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Report {
    /// The settings are not known yet.
    #[default]
    Unknown,
    /// The node has no `Bgp` object.
    Absent,
    /// The speaker does not run, with the reason.
    Refused(String),
    /// The speaker runs.
    Running(Box<Running>),
}

/// A speaker that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Status of the session.
    pub status: Status,
    /// Routes of the neighbor.
    pub learnt: Learnt,
    /// Address of the speaker, with the prefix length of its subnet.
    pub router: Ipv4Net,
    /// Addresses that are announced.
    pub addresses: Arc<BTreeSet<IpAddr>>,
    /// Whether settings and addresses are those of an earlier process or run, because the state is not complete yet.
    pub is_remembered: bool,
}

/// `gobgp`'s words for the administrative state.
pub(super) const UP: &str = "up";
const DOWN: &str = "down";

impl Report {
    /// The running speaker, if there is one.
    pub fn running(&self) -> Option<&Running> {
        match self {
            Report::Running(running) => Some(running),
            _ => None,
        }
    }

    /// Degraded condition, one line: the session is down, or does not follow the state.
    pub fn degraded(&self) -> Option<String> {
        match self {
            Report::Unknown | Report::Absent => None,
            Report::Refused(why) => Some(format!("BGP: {why}")),
            Report::Running(running) => {
                let status = &running.status;
                let failure = running.failure().map(|failure| format!(": {failure}")).unwrap_or_default();
                let (neighbor, state) = (status.neighbor, status.state);
                match state {
                    State::Established => running.is_remembered.then(|| {
                        format!(
                            "BGP session with {neighbor}: announcing what this node announced last until the state has arrived from \
                             the store"
                        )
                    }),
                    _ => Some(format!("BGP session with {neighbor} is {state}{failure}")),
                }
            }
        }
    }

    /// The record for netmaster; `None` without a `Bgp` object.
    pub(super) fn oper(&self, host: &HostName) -> Option<Oper> {
        let host = host.to_string();
        match self {
            Report::Unknown | Report::Absent => None,
            Report::Refused(why) => {
                Some(Oper { host, admin_status: DOWN.into(), failure: why.clone(), ..Oper::default() })
            }
            Report::Running(running) => {
                let table = running.table();
                Some(Oper {
                    host,
                    admin_status: UP.into(),
                    neighbor_status: running.status.state.to_string(),
                    num_routes: table.len() as u64,
                    routes: table.keys().take(Oper::MAX_ROUTES).map(ToString::to_string).collect(),
                    failure: running.failure().unwrap_or_default(),
                })
            }
        }
    }
}

impl Running {
    /// Prefixes of the routing table: those announced, and those learnt, which have a next hop.
    pub(super) fn table(&self) -> BTreeMap<IpNet, Option<IpAddr>> {
        let learnt = self.learnt.routes.iter().map(|(prefix, route)| (*prefix, Some(route.next_hop)));
        let own = self.addresses.iter().map(|address| (IpNet::from(*address), None));
        learnt.chain(own).collect()
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.status.failure.as_ref().map(ToString::to_string)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::Ipv4Addr;

    use contiv_bgp::{Attributes, Counters, Failure, Origin, Route};

    use super::*;

    /// A speaker with the route 20.0.0.0/8 of its neighbor that announces 10.1.1.5.
    pub(in crate::bgp) fn running(state: State, failure: Option<Failure>) -> Report {
        let attributes = Attributes {
            origin: Origin::Igp,
            as_path: vec![65001],
            as_path_length: 1,
            med: None,
            local_pref: None,
        };
        let route = Route { next_hop: [50, 1, 1, 2].into(), attributes: Arc::new(attributes), stale: false };
        let routes = [("20.0.0.0/8".parse().unwrap(), route)].into();
        let status = Status {
            state,
            established: None,
            failure,
            local_as: 65000,
            router_id: Ipv4Addr::new(50, 1, 1, 1),
            neighbor: [50, 1, 1, 2].into(),
            neighbor_as: 65001,
            negotiated: None,
            received: 1,
            stale: 0,
            advertised: 1,
            counters: Counters { established: 1, ..Counters::default() },
        };
        Report::Running(Box::new(Running {
            status,
            learnt: Learnt { routes: Arc::new(routes), complete: true },
            router: "50.1.1.1/24".parse().unwrap(),
            addresses: Arc::new([[10, 1, 1, 5].into()].into()),
            is_remembered: false,
        }))
    }

    /// As [`running`], of an agent whose state is not complete.
    fn remembered(state: State) -> Report {
        let mut report = running(state, None);
        if let Report::Running(running) = &mut report {
            running.is_remembered = true;
        }
        report
    }

    #[test]
    fn session_that_is_down_or_lacks_the_state_is_degraded() {
        let lost = Failure::Lost { neighbor: [50, 1, 1, 2].into(), cause: "reset".into() };
        let lines = [
            running(State::Established, None),
            running(State::Active, Some(lost)),
            running(State::Connect, None),
            remembered(State::Established),
            remembered(State::Connect),
            Report::Refused("no".into()),
            Report::Absent,
        ]
        .map(|report| report.degraded().unwrap_or_default());
        assert_eq!(
            lines,
            [
                "",
                "BGP session with 50.1.1.2 is active: connection to BGP neighbor 50.1.1.2: reset",
                "BGP session with 50.1.1.2 is connect",
                "BGP session with 50.1.1.2: announcing what this node announced last until the state has arrived from the store",
                "BGP session with 50.1.1.2 is connect",
                "BGP: no",
                "",
            ]
        );
    }

    #[test]
    fn record_has_the_routing_table() {
        let oper = running(State::Established, None).oper(&"n1".into()).unwrap();
        assert_eq!((oper.admin_status.as_str(), oper.neighbor_status.as_str()), ("up", "established"));
        assert_eq!((oper.num_routes, oper.routes), (2, vec!["10.1.1.5/32".into(), "20.0.0.0/8".into()]));
        assert_eq!(Report::Absent.oper(&"n1".into()), None);
        let refused = Report::Refused("no".into()).oper(&"n1".into()).unwrap();
        assert_eq!((refused.admin_status.as_str(), refused.failure.as_str()), ("down", "no"));
    }
}
