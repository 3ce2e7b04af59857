//! Bandwidth limits that the programs enforce themselves because a port has no queue. The model's token buckets
//! predict which packets pass.
//!
//! The exact time at which a program reads the clock is unknown, but it lies between two known times. One bucket is
//! filled as late as possible, one as early as possible. Where they differ, both results are allowed, and the case is
//! counted.

use std::{
    collections::HashMap,
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use aya::maps::{HashMap as KernelMap, Map, MapData};
use contiv_abi::{
    DropReason, Port,
    maps::{FROM_POD, METERS, PORTS},
    policy::{Meter, MeterKey},
};
use contiv_model::{group::Rate, token_bucket::TokenBucket};
use netplugin::datapath::{Group, Object, Op};
use proptest::{
    collection::vec,
    option,
    prelude::*,
    sample::select,
    test_runner::{Config, TestCaseError, TestRunner},
};
use testkit::{needs, packet::Packet};

use super::forget;
use crate::{
    node::{Endpoint, Node, Pod, network, vxlan},
    policy::{self, pod},
    run::{Code, Target},
};

const PODS: u8 = 3;

/// Rates of the pods' groups, and packets.
#[derive(Clone, Debug)]
struct Scene {
    rates: Vec<Option<Rate>>,
    sent: Vec<Sent>,
}

#[derive(Clone, Debug)]
struct Sent {
    from: u8,
    /// A packet from one of the pods to another.
    to: u8,
    payload: usize,
    pause: Duration,
}

fn scenes() -> impl Strategy<Value = Scene> {
    let bits = select(vec![8_000_u64, 64_000, 1_048_000, 10_485_000, 1_073_741_000]);
    let burst = select(vec![0_u64, 1, 100, 1500, 5000, 125_000]);
    let rate = (bits, burst).prop_map(|(bits_per_second, burst_bytes)| Rate { bits_per_second, burst_bytes });
    let pause = prop_oneof![4 => Just(0_u64), 1 => 0..2000_u64];
    let sent = (0..PODS, 1..PODS, 0..1400_usize, pause).prop_map(|(from, step, payload, pause)| Sent {
        from,
        to: (from + step) % PODS,
        payload,
        pause: Duration::from_micros(pause),
    });
    (vec(option::weighted(0.7, rate), PODS as usize), vec(sent, 1..80))
        .prop_map(|(rates, sent)| Scene { rates, sent })
}

/// Bounds of the tokens in a bucket.
struct Bounds {
    least: TokenBucket,
    most: TokenBucket,
}

impl Bounds {
    fn full(rate: Rate, now: u64) -> Bounds {
        // The programs compute in whole nanoseconds; one byte covers the rounding errors of all packets.
        let burst = |burst_bytes| TokenBucket::full(Rate { burst_bytes, ..rate }, now);
        Bounds { least: burst(rate.burst_bytes.saturating_sub(1)), most: burst(rate.burst_bytes + 1) }
    }

    /// Whether a packet between these times certainly passes, and whether it may pass.
    fn passes(&self, time: [u64; 2]) -> (bool, bool) {
        (self.least.admits(time[0]), self.most.admits(time[1]))
    }

    fn take(&mut self, time: [u64; 2], bytes: u64) {
        self.least.take(time[1], bytes);
        self.most.take(time[0], bytes);
    }
}

#[derive(Default, Debug)]
struct EventState {
    passed: usize,
    dropped: usize,
    either: usize,
}

struct Rig {
    pods: Vec<(Pod, Target)>,
    node: Node,
}

impl Rig {
    fn new() -> Result<Rig> {
        let mut node = Node::new("meters")?;
        let n1 = network("n1.t", vxlan(10_001));
        node.want_network(&n1);
        let pods = (0..PODS)
            .map(|n| pod(&mut node, &n1, Endpoint(n + 1), u32::from(n) + 1))
            .collect::<Result<Vec<_>>>()?;
        node.converge()?;
        for pod in &pods {
            // Multicasts of the pod's kernel would use its buckets.
            pod.ns.sysctl("net/ipv6/conf/eth0/disable_ipv6", "1")?;
        }
        let target = |pod: Pod| Ok((Target::new(&node, FROM_POD, &pod.local.port)?, pod));
        let pods = pods.into_iter().map(target).collect::<Result<Vec<_>>>()?;
        Ok(Rig { pods: pods.into_iter().map(|(target, pod)| (pod, target)).collect(), node })
    }

    /// Sets groups with these rates, ports without queues, and full buckets.
    fn set(&mut self, rates: &[Option<Rate>]) -> Result<()> {
        let group =
            |(number, rate): (u32, &Option<Rate>)| Group { rate: *rate, ..policy::group(number, vec![]) };
        let ops: Vec<_> = (1..).zip(rates).map(|pair| Op::Set(Object::Group(group(pair)))).collect();
        let failed = self.node.apply(&ops)?;
        ensure!(failed.is_empty(), "{failed:?}");
        let maps = self.node.datapath.maps_directory();
        let mut ports: KernelMap<MapData, u32, Port> =
            Map::from_map_data(MapData::from_pin(maps.join(PORTS))?)?.try_into()?;
        for (pod, _) in &self.pods {
            let index = self.node.ifindex(&pod.local.port)?;
            let port = ports.get(&index, 0)?;
            ports.insert(index, Port { queue: 0, ..port }, 0)?;
        }
        forget::<MeterKey, Meter>(&maps.join(METERS))
    }

    fn check(&mut self, scene: &Scene, reported: &mut EventState) -> Result<()> {
        self.set(&scene.rates)?;
        let mut buckets = HashMap::new();
        for (number, rate) in scene.rates.iter().enumerate() {
            for direction in [MeterKey::SENDS, MeterKey::RECEIVES] {
                let Some(rate) = rate else { continue };
                buckets.insert((number as u8, direction), Bounds::full(*rate, now()));
            }
        }
        let Rig { pods, node } = &*self;
        node.ns.run(|| {
            for (number, sent) in scene.sent.iter().enumerate() {
                packet(pods, &mut buckets, sent, reported)
                    .with_context(|| format!("packet {number}, {sent:?}"))?;
            }
            Ok(())
        })
    }
}

fn packet(
    pods: &[(Pod, Target)],
    buckets: &mut HashMap<(u8, u32), Bounds>,
    sent: &Sent,
    reported: &mut EventState,
) -> Result<()> {
    thread::sleep(sent.pause);
    let (from, to) = (Endpoint(sent.from + 1), Endpoint(sent.to + 1));
    let packet = Packet::eth(to.mac(), from.mac()).ipv4(from.ip(), to.ip());
    let frame = packet.udp(5000, 5000).payload(&vec![7; sent.payload]).build();
    let before = now();
    let (code, bytes) = pods[usize::from(sent.from)].1.give(&frame)?;
    let (time, len) = ([before, now()], frame.len() as u64);
    let ends = [(sent.from, MeterKey::SENDS), (sent.to, MeterKey::RECEIVES)];
    let [sends, receives] =
        ends.map(|end| buckets.get(&end).map_or((true, true), |bucket| bucket.passes(time)));
    let (surely, maybe) = (sends.0 && receives.0, sends.1 && receives.1);
    let passed = match code {
        Code::Redirect => true,
        Code::Shot => false,
        Code::Next => return Err(anyhow!("the frame was passed to the host")),
    };
    ensure!(bytes == frame, "it was changed");
    ensure!(maybe || !passed, "it has passed, and must not");
    ensure!(!surely || passed, "it was dropped, and must pass");
    reported.passed += usize::from(passed);
    reported.dropped += usize::from(!passed);
    reported.either += usize::from(maybe != surely);
    // A sent packet counts for the sender whether or not the receiver gets it.
    let mut take = |end, (surely, maybe): (bool, bool)| {
        let Some(bucket) = buckets.get_mut(&end) else { return };
        if passed || surely {
            bucket.take(time, len);
        } else if maybe {
            bucket.least.take(time[1], len);
        }
    };
    take(ends[0], if passed { (true, true) } else { sends });
    if passed {
        take(ends[1], (true, true));
    }
    Ok(())
}

/// `CLOCK_MONOTONIC` in nanoseconds, the clock of the programs.
fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}

#[test]
fn meters_agree_with_the_model() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new()?;
    let mut reported = EventState::default();
    let config = Config { cases: 60, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let run = std::cell::RefCell::new((&mut rig, &mut reported));
    TestRunner::new(config)
        .run(&scenes(), |scene| {
            let (rig, reported) = &mut *run.borrow_mut();
            rig.check(&scene, reported).map_err(|error| TestCaseError::fail(format!("{error:#}")))
        })
        .map_err(|error| anyhow!("{error}"))?;
    println!("{reported:?}");
    ensure!(reported.dropped > 100 && reported.passed > 100, "{reported:?}");
    let drops = rig.node.drops()?;
    ensure!(drops.keys().all(|reason| *reason == DropReason::RateLimit), "{drops:?}");
    Ok(())
}
