//! The log of stages (`--bpf-log-stages`).

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Result, ensure};
use contiv_abi::maps::FROM_POD;
use contiv_model::policy::{Action, Direction, Rule, UDP};
use netplugin::datapath::{
    Datapath as _, Object, Op,
    ebpf::{LogEndpoint, Options},
};
use testkit::{
    needs,
    packet::{BROADCAST, Packet},
};
use tracing_subscriber::fmt::MakeWriter;

use crate::{
    node::{Endpoint, Node, Pod, network, runtime, vxlan},
    policy::{group, pod, rule},
    run::Target,
};

const LOGGED: Endpoint = Endpoint(1);
const SECOND: Endpoint = Endpoint(2);
const THIRD: Endpoint = Endpoint(3);
const DENIED: u16 = 7001;

/// Lines of the agent's log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn take(&self) -> String {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        self.clone()
    }
}

/// The lines about stages that the agent logs while the pods send these frames.
fn logged(endpoint: LogEndpoint, sent: &[(usize, Vec<u8>)]) -> Result<Vec<String>> {
    let log = |options: &mut Options| options.log_stages = Some(endpoint);
    let mut node = Node::with("stagelog", log)?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1);
    let mut pods: Vec<Pod> = vec![];
    for (endpoint, number) in [(LOGGED, 1), (SECOND, 2), (THIRD, 1)] {
        pods.push(pod(&mut node, &n1, endpoint, number)?);
    }
    let deny = Rule {
        protocol: Some(UDP),
        ports: Some(DENIED.into()),
        ..rule("deny", Direction::In, Action::Deny, 1)
    };
    node.want(Object::Group(group(2, vec![deny])));
    let lines = Lines::default();
    let ns = node.ns.clone();
    ns.run(|| {
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(lines.clone()).finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        runtime()?.block_on(async {
            node.datapath.observe(&node.desired).await?;
            let ops: Vec<Op> = node.desired.iter().map(|(_, object)| Op::Set(object.clone())).collect();
            let failed = node.datapath.apply(&ops).await?;
            ensure!(failed.is_empty(), "{failed:?}");
            ensure!(node.datapath.warnings().iter().any(|warning| warning.contains("--bpf-log-stages")));
            for (pod, frame) in sent {
                Target::new(&node, FROM_POD, &pods[*pod].local.port)?.give(frame)?;
            }
            // The agent reads the log of what has been sent.
            let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
            let mut text = lines.take();
            while !text.contains("verdict") && tokio::time::Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(20)).await;
                text += &lines.take();
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            text += &lines.take();
            let stages = text.lines().filter_map(|line| Some(line.split_once(" stage ")?.1.to_owned()));
            Ok(of_ipv4(stages))
        })
    })
}

/// The lines of IPv4 frames: the kernel of a pod sends reports of multicast listeners.
fn of_ipv4(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut frames: Vec<Vec<String>> = vec![];
    for line in lines {
        // The first stage of a frame from a pod, or of one that another program has begun.
        match frames.last_mut() {
            Some(frame) if !line.starts_with("source") => frame.push(line),
            _ => frames.push(vec![line]),
        }
    }
    frames.retain(|frame| frame.iter().any(|line| line.contains(": 10.1.1.")));
    frames.concat()
}

fn between(from: Endpoint, to: Endpoint) -> Packet {
    Packet::eth(to.mac(), from.mac()).ipv4(from.ip(), to.ip())
}

#[test]
fn stages_of_an_endpoints_frames_are_logged_and_of_no_other() -> Result<()> {
    needs!(root());
    let ping = between(LOGGED, SECOND).icmp_echo_request(1, 1).build();
    let denied = between(LOGGED, SECOND).udp(1000, DENIED).build();
    let others = [(2, between(THIRD, SECOND).udp(1000, 53).build())];
    let everyone = Packet::eth(BROADCAST, THIRD.mac()).ipv4(THIRD.ip(), SECOND.ip()).udp(1, 2).build();
    for endpoint in [LogEndpoint::from("10.1.1.1"), LogEndpoint::from("vvport1")] {
        let sent = [(0, ping.clone()), (0, ping.clone()), (0, denied.clone()), (2, everyone.clone())];
        let sent: Vec<_> = sent.into_iter().chain(others.clone()).collect();
        let lines = logged(endpoint, &sent)?;
        let tuple = "10.1.1.1 port 1000 to 10.1.1.2 port 7001, protocol 17";
        let texts: Vec<&str> = lines.iter().map(|line| line.split(": 10.").next().unwrap()).collect();
        assert_eq!(
            texts,
            [
                // The first ping, the second ping, and the denied connection.
                "source: passed",
                "track: no flow",
                "verdict: continues in ctv_slow_path",
                "service: not for a service",
                "policy: allowed",
                "insert: flow inserted",
                "verdict: to a local port",
                "source: passed",
                "track: flow found",
                "verdict: to a local port",
                "source: passed",
                "track: no flow",
                "verdict: continues in ctv_slow_path",
                "service: not for a service",
                "policy: dropped, policy",
                "verdict: dropped, policy",
            ],
            "{lines:#?}"
        );
        assert!(lines.last().unwrap().ends_with(tuple), "{lines:?}");
    }
    Ok(())
}
