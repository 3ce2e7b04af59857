//! A real neighbor: BIRD 2 in a network namespace of its own.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    net::IpAddr,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use contiv_bgp::{Announcement, Config, Failure, Handle, Learnt, Speaker, State, Status, Stop};
use nix::sys::signal::Signal;
use testkit::{Bird, Netns, needs, wait_until};
use tokio::sync::{oneshot, watch};

use crate::memory::{LEAF, NODE, NODE_V6, addresses, node};

const TIMEOUT: Duration = Duration::from_secs(120);

/// Two namespaces with a link between them.
struct Link {
    node: Netns,
    leaf: Netns,
}

impl Link {
    fn new() -> Result<Link> {
        let link = Link { node: Netns::new("node")?, leaf: Netns::new("leaf")? };
        link.node.veth("eth0", &link.leaf, "eth0")?;
        for (namespace, number) in [(&link.node, 1), (&link.leaf, 2)] {
            namespace.address("eth0", &format!("10.9.0.{number}/24"))?;
            namespace.address("eth0", &format!("2001:db8:9::{number}/64"))?;
            namespace.up("eth0")?;
        }
        Ok(link)
    }
}

/// Settings of BIRD.
struct Leaf {
    local_as: u32,
    neighbor_as: u32,
    options: &'static str,
    routes: Vec<&'static str>,
}

impl Default for Leaf {
    fn default() -> Leaf {
        Leaf {
            local_as: 65001,
            neighbor_as: 65000,
            options: "graceful restart on; graceful restart time 120;",
            routes: vec!["20.1.0.0/16", "20.2.0.0/16", "2001:db8:20::/48"],
        }
    }
}

impl Leaf {
    fn configuration(&self) -> Result<String> {
        let mut text = format!(
            "log stderr all;\nrouter id {LEAF};\nprotocol device {{}}\nprotocol bgp node {{\n\
             local {LEAF} as {};\nneighbor {NODE} as {};\npassive on; error wait time 1, 2;\n{}\n\
             ipv4 {{ import all; export where source = RTS_STATIC; }};\n\
             ipv6 {{ import all; export where source = RTS_STATIC; next hop address 2001:db8:9::2; }};\n}}\n",
            self.local_as, self.neighbor_as, self.options
        );
        for (name, ipv6) in [("ipv4", false), ("ipv6", true)] {
            let routes = self.routes.iter().filter(|route| route.contains(':') == ipv6);
            let routes: String = routes.map(|route| format!("route {route} blackhole; ")).collect();
            writeln!(text, "protocol static {{ {name}; {routes}}}")?;
        }
        Ok(text)
    }

    fn start(&self, link: &Link) -> Result<Bird> {
        Bird::start(&link.leaf, &self.configuration()?)
    }
}

/// A speaker that runs on a thread in the namespace of the node.
struct Running {
    handle: Handle,
    announcement: watch::Sender<Option<Announcement>>,
    stop: oneshot::Sender<Stop>,
    thread: JoinHandle<()>,
}

impl Running {
    fn start(link: &Link, config: Config, announced: &[&str]) -> Result<Running> {
        let (announcement, receiver) = watch::channel(Some(announcement_of(announced)));
        let (stop, stopped) = oneshot::channel();
        let (speaker, handle) = Speaker::new(config, receiver)?;
        let thread = link.node.run(|| {
            Ok(thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(speaker.run(async { stopped.await.unwrap_or(Stop::Restart) }));
            }))
        })?;
        Ok(Running { handle, announcement, stop, thread })
    }

    fn status(&self) -> Status {
        self.handle.status.borrow().clone()
    }

    fn learnt(&self) -> Learnt {
        self.handle.learnt.borrow().clone()
    }

    fn announce(&self, announced: &[&str]) {
        self.announcement.send_replace(Some(announcement_of(announced)));
    }

    fn wait(&self, what: &str, condition: impl Fn(&Status) -> bool) -> Result<Status> {
        wait_until(TIMEOUT, what, || {
            let status = self.status();
            if condition(&status) { Ok(Some(status)) } else { bail!("{status:?}") }
        })
    }

    fn wait_established(&self) -> Result<Status> {
        self.wait("the session", |status| status.state == State::Established)
    }

    fn expect_learnt(&self, expected: &[&str]) -> Result<Learnt> {
        let expected: BTreeSet<_> = expected.iter().map(ToString::to_string).collect();
        wait_until(TIMEOUT, &format!("the speaker to learn {expected:?}"), || {
            let learnt = self.learnt();
            let found: BTreeSet<_> = learnt.routes.keys().map(ToString::to_string).collect();
            if found == expected { Ok(Some(learnt)) } else { bail!("{found:?}, {:?}", self.status()) }
        })
    }

    fn stop(self, how: Stop) -> Result<()> {
        let Ok(()) = self.stop.send(how) else {
            bail!("the speaker has ended: {:?}", self.handle.status.borrow())
        };
        if self.thread.join().is_err() {
            bail!("the speaker panicked");
        }
        Ok(())
    }
}

fn announcement_of(announced: &[&str]) -> Announcement {
    Announcement { addresses: Arc::new(addresses(announced)), next_hop_v6: Some(NODE_V6) }
}

fn config() -> Config {
    let mut config = node();
    config.source = Some(NODE.into());
    config.connect_retry = Duration::from_millis(200);
    config
}

const ALL: [&str; 3] = ["20.1.0.0/16", "20.2.0.0/16", "2001:db8:20::/48"];

#[test]
fn routes_are_exchanged_with_bird() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"));
    let link = Link::new()?;
    let bird = Leaf::default().start(&link)?;
    let speaker = Running::start(&link, config(), &["10.1.0.5", "2001:db8:1::5"])?;
    let status = speaker.wait_established()?;
    let negotiated = status.negotiated.context("negotiated")?;
    assert_eq!((negotiated.peer_as, negotiated.router_id, negotiated.four_octet_as), (65001, LEAF, true));
    assert_eq!(negotiated.graceful_restart.context("graceful restart")?.restart_time, 120);

    bird.expect_routes(
        "node",
        &[("10.1.0.5/32", "via 10.9.0.1"), ("2001:db8:1::5/128", "via 2001:db8:9::1")],
    )?;
    let learnt = speaker.expect_learnt(&ALL)?;
    let next_hop = |prefix: &str| learnt.routes[&prefix.parse().unwrap()].next_hop;
    assert_eq!(next_hop("20.1.0.0/16"), IpAddr::from(LEAF));
    assert_eq!(next_hop("2001:db8:20::/48"), "2001:db8:9::2".parse::<IpAddr>()?);
    assert_eq!(learnt.routes[&"20.1.0.0/16".parse()?].attributes.as_path, [65001]);
    wait_until(TIMEOUT, "both End-of-RIB markers", || Ok(speaker.learnt().complete.then_some(())))?;

    // Changes: one address goes, two come.
    speaker.announce(&["10.1.0.6", "10.1.0.7", "2001:db8:1::5"]);
    bird.expect_routes(
        "node",
        &[("10.1.0.6/32", "via"), ("10.1.0.7/32", "via"), ("2001:db8:1::5/128", "via")],
    )?;
    bird.command(&["disable", "static1"])?;
    speaker.expect_learnt(&["2001:db8:20::/48"])?;
    bird.command(&["enable", "static1"])?;
    speaker.expect_learnt(&ALL)?;

    // BIRD asks for the routes again.
    let sent = speaker.status().counters.updates_sent;
    bird.command(&["reload", "in", "node"])?;
    speaker.wait("the routes to be sent again", |status| status.counters.updates_sent >= sent + 2)?;

    speaker.stop(Stop::Shutdown)?;
    bird.expect_routes("node", &[])
}

#[test]
fn two_octets_are_enough() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"));
    let link = Link::new()?;
    let leaf = Leaf { options: "enable as4 off;", ..Leaf::default() };
    let bird = leaf.start(&link)?;
    let speaker = Running::start(&link, config(), &["10.1.0.5"])?;
    let negotiated = speaker.wait_established()?.negotiated.context("negotiated")?;
    assert!(!negotiated.four_octet_as);
    bird.expect_routes("node", &[("10.1.0.5/32", "via 10.9.0.1")])?;
    let learnt = speaker.expect_learnt(&ALL)?;
    assert_eq!(learnt.routes[&"20.1.0.0/16".parse()?].attributes.as_path, [65001]);
    speaker.stop(Stop::Shutdown)
}

#[test]
fn as_numbers_of_four_octets() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"));
    let link = Link::new()?;
    let leaf = Leaf { local_as: 4_200_000_001, neighbor_as: 4_200_000_000, ..Leaf::default() };
    let bird = leaf.start(&link)?;
    let mut config = config();
    (config.local_as, config.neighbor_as) = (4_200_000_000, 4_200_000_001);
    let speaker = Running::start(&link, config, &["10.1.0.5"])?;
    speaker.wait_established()?;
    let learnt = speaker.expect_learnt(&ALL)?;
    assert_eq!(learnt.routes[&"20.1.0.0/16".parse()?].attributes.as_path, [4_200_000_001]);
    bird.expect_routes("node", &[("10.1.0.5/32", "AS4200000000i")])?;
    speaker.stop(Stop::Shutdown)
}

#[test]
fn routes_of_a_killed_neighbor_are_kept_for_its_restart_time() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"));
    let link = Link::new()?;
    let leaf = Leaf { options: "graceful restart on; graceful restart time 6;", ..Leaf::default() };
    let mut bird = leaf.start(&link)?;
    let speaker = Running::start(&link, config(), &["10.1.0.5"])?;
    speaker.expect_learnt(&ALL)?;
    bird.process.kill()?;
    let killed = Instant::now();
    let status = speaker.wait("the end of the session", |status| status.state != State::Established)?;
    assert_eq!((status.received, status.stale), (3, 3));
    assert!(speaker.learnt().routes.values().all(|route| route.stale));
    speaker.expect_learnt(&[])?;
    assert!(killed.elapsed() >= Duration::from_secs(5), "{:?}", killed.elapsed());
    speaker.stop(Stop::Shutdown)
}

#[test]
fn restarted_neighbor_keeps_its_routes() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"));
    let link = Link::new()?;
    let mut leaf = Leaf::default();
    let mut bird = leaf.start(&link)?;
    let speaker = Running::start(&link, config(), &["10.1.0.5"])?;
    speaker.expect_learnt(&ALL)?;
    bird.process.kill()?;
    speaker.wait("the end of the session", |status| status.stale == 3)?;
    // One route is gone when BIRD is back. `-R`: recover from a graceful restart.
    leaf.routes.retain(|route| *route != "20.2.0.0/16");
    let bird = Bird::start_in(&link.leaf, &leaf.configuration()?, bird.folder(), &["-R"])?;
    let learnt = speaker.expect_learnt(&["20.1.0.0/16", "2001:db8:20::/48"])?;
    assert!(learnt.routes.values().all(|route| !route.stale));
    assert_eq!(speaker.status().counters.established, 2);
    bird.expect_routes("node", &[("10.1.0.5/32", "via 10.9.0.1")])?;
    speaker.stop(Stop::Shutdown)
}

#[test]
fn neighbor_keeps_the_routes_of_a_speaker_that_restarts() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"));
    let link = Link::new()?;
    let bird = Leaf::default().start(&link)?;
    let speaker = Running::start(&link, config(), &["10.1.0.5", "10.1.0.6", "2001:db8:1::5"])?;
    let three = [("10.1.0.5/32", "via"), ("10.1.0.6/32", "via"), ("2001:db8:1::5/128", "via")];
    bird.expect_routes("node", &three)?;
    speaker.stop(Stop::Restart)?;
    let waits = || Ok((!bird.is_established("node")?).then_some(()));
    wait_until(TIMEOUT, "BIRD to lose the session", waits)?;
    bird.expect_routes("node", &three)?;

    // One endpoint is gone; nothing is known of the others at first.
    let (mut config, none) = (config(), &[][..]);
    config.restarted = true;
    let speaker = Running::start(&link, config, none)?;
    speaker.announcement.send_replace(None);
    speaker.wait_established()?;
    speaker.announce(&["10.1.0.5", "2001:db8:1::5"]);
    bird.expect_routes("node", &[three[0], three[2]])?;
    speaker.stop(Stop::Shutdown)
}

#[test]
fn wrong_as_numbers_are_explained() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"));
    let link = Link::new()?;
    let bird = Leaf { local_as: 65099, ..Leaf::default() }.start(&link)?;
    let speaker = Running::start(&link, config(), &[])?;
    let status =
        speaker.wait("a failure", |status| matches!(status.failure, Some(Failure::BadPeerAs { .. })))?;
    assert_eq!(
        status.failure.context("failure")?.to_string(),
        "BGP neighbor 10.9.0.2 is in AS 65099, expected AS 65001; set neighbor-as of the Bgp object to 65099, or correct the \
         neighbor"
    );
    speaker.stop(Stop::Shutdown)?;
    drop(bird);

    let _bird = Leaf { neighbor_as: 65077, ..Leaf::default() }.start(&link)?;
    let speaker = Running::start(&link, config(), &[])?;
    let status =
        speaker.wait("a failure", |status| matches!(status.failure, Some(Failure::Notification { .. })))?;
    let text = status.failure.context("failure")?.to_string();
    assert!(text.contains("Bad Peer AS: it does not expect AS 65000; set as of the Bgp object"), "{text}");
    speaker.stop(Stop::Shutdown)
}

#[test]
fn silent_neighbor_is_noticed() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"));
    let link = Link::new()?;
    let bird = Leaf::default().start(&link)?;
    let mut config = config();
    config.hold_time = 6;
    let speaker = Running::start(&link, config, &["10.1.0.5"])?;
    speaker.expect_learnt(&ALL)?;
    bird.process.freeze()?;
    let expired = |status: &Status| matches!(status.failure, Some(Failure::HoldTimer { seconds: 6, .. }));
    let status = speaker.wait("the hold timer", expired)?;
    assert_eq!(status.received, 0, "a NOTIFICATION ends graceful restart");
    speaker.expect_learnt(&[])?;
    bird.process.signal(Signal::SIGCONT)?;
    speaker.wait_established()?;
    speaker.expect_learnt(&ALL)?;
    speaker.stop(Stop::Shutdown)
}

#[test]
fn connection_problems_are_explained() -> Result<()> {
    needs!(root());
    let link = Link::new()?;
    let mut config = config();
    let speaker = Running::start(&link, config.clone(), &[])?;
    let failed = |status: &Status| status.failure.is_some();
    // The first attempt is lost if the kernel has not seen the carrier of the new link.
    let refused = |status: &Status| {
        status.failure.as_ref().is_some_and(|failure| failure.to_string().contains("Connection refused"))
    };
    let text = speaker.wait("a refused connection", refused)?.failure.context("failure")?.to_string();
    assert!(text.contains("check that"), "{text}");
    speaker.stop(Stop::Shutdown)?;
    config.source = Some([10, 9, 0, 77].into());
    let speaker = Running::start(&link, config, &[])?;
    let text = speaker.wait("a failure", failed)?.failure.context("failure")?.to_string();
    assert!(text.contains("bind 10.9.0.77: Cannot assign requested address"), "{text}");
    speaker.stop(Stop::Shutdown)
}
