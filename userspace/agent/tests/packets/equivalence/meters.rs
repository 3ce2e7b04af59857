//! Rates where the programs count packets themselves, because a port has no queue: what passes and what is dropped is what
//! the model's buckets say.
//!
//! In which nanosecond a program looks at the clock is not known, but a time before it and one after: there is a bucket that
//! fills as late as may be, and one that does so as early. Where they differ, either is right; that is counted.

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
    node::{Node, Pod, Who, network, vxlan},
    policy::{self, pod},
    run::{Code, Target},
};

const PODS: u8 = 3;

/// The rates of the pods' groups, and packets.
#[derive(Clone, Debug)]
struct Scene {
    rates: Vec<Option<Rate>>,
    sent: Vec<Sent>,
}

#[derive(Clone, Debug)]
struct Sent {
    from: u8,
    /// One of the others.
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

/// What may be in a bucket.
struct Bounds {
    least: TokenBucket,
    most: TokenBucket,
}

impl Bounds {
    fn full(rate: Rate, now: u64) -> Bounds {
        // The programs count in whole nanoseconds; a byte is that of more packets than there are.
        let burst = |burst_bytes| TokenBucket::full(Rate { burst_bytes, ..rate }, now);
        Bounds { least: burst(rate.burst_bytes.saturating_sub(1)), most: burst(rate.burst_bytes + 1) }
    }

    /// Whether a packet between these times surely passes, and whether it may.
    fn passes(&self, time: [u64; 2]) -> (bool, bool) {
        (self.least.admits(time[0]), self.most.admits(time[1]))
    }

    fn take(&mut self, time: [u64; 2], bytes: u64) {
        self.least.take(time[1], bytes);
        self.most.take(time[0], bytes);
    }
}

#[derive(Default, Debug)]
struct Told {
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
            .map(|n| pod(&mut node, &n1, Who(n + 1), u32::from(n) + 1))
            .collect::<Result<Vec<_>>>()?;
        node.converge()?;
        let target = |pod: Pod| Ok((Target::new(&node, FROM_POD, &pod.local.port)?, pod));
        let pods = pods.into_iter().map(target).collect::<Result<Vec<_>>>()?;
        Ok(Rig { pods: pods.into_iter().map(|(target, pod)| (pod, target)).collect(), node })
    }

    /// Groups with these rates, ports without queues, and buckets that are full.
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

    fn check(&mut self, scene: &Scene, told: &mut Told) -> Result<()> {
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
                packet(pods, &mut buckets, sent, told)
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
    told: &mut Told,
) -> Result<()> {
    thread::sleep(sent.pause);
    let (from, to) = (Who(sent.from + 1), Who(sent.to + 1));
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
        Code::Next => return Err(anyhow!("it was nobody's")),
    };
    ensure!(bytes == frame, "it was changed");
    ensure!(maybe || !passed, "it has passed, and must not");
    ensure!(!surely || passed, "it was dropped, and must pass");
    told.passed += usize::from(passed);
    told.dropped += usize::from(!passed);
    told.either += usize::from(maybe != surely);
    // What is sent counts when the receiver gets it and when it does not.
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

/// Nanoseconds on the programs' clock (`CLOCK_MONOTONIC`), since some time.
fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}

#[test]
fn meters_agree_with_the_model() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new()?;
    let mut told = Told::default();
    let config = Config { cases: 60, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let run = std::cell::RefCell::new((&mut rig, &mut told));
    TestRunner::new(config)
        .run(&scenes(), |scene| {
            let (rig, told) = &mut *run.borrow_mut();
            rig.check(&scene, told).map_err(|error| TestCaseError::fail(format!("{error:#}")))
        })
        .map_err(|error| anyhow!("{error}"))?;
    println!("{told:?}");
    ensure!(told.dropped > 100 && told.passed > 100, "{told:?}");
    let drops = rig.node.drops()?;
    ensure!(drops.keys().all(|reason| *reason == DropReason::RateLimit), "{drops:?}");
    Ok(())
}
