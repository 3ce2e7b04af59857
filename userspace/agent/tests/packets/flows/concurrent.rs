//! Packets of one flow on several CPUs.

use std::{sync::Barrier, thread};

use anyhow::Result;
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use contiv_abi::{Flow, maps::FROM_POD};
use contiv_model::service::Readiness;
use netplugin::datapath::{Datapath as _, Object};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use testkit::{
    needs,
    packet::{Packet, tcp_flags},
};

use super::{HERE, OTHER, Rig, VIP, between, full_table::give_all, tcp};
use crate::{
    flow_table::{self, slots},
    node::{Node, network, vxlan},
    run::Code,
    services::service,
};

/// The frame for a client port.
type Frames = dyn Fn(u16) -> Vec<u8> + Sync;

/// Both replies to one UDP socket's two requests (A and AAAA) may be the first reply on two CPUs at once.
#[test]
fn concurrent_first_packets_and_replies_make_one_flow() -> Result<()> {
    needs!(root());
    const ROUNDS: u16 = 400;
    let mut node = Node::new("ct-race")?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1);
    let ready = [(OTHER.ip().into(), Readiness::Ready)];
    node.want(Object::Service(service(VIP.ip().into(), &ready)));
    let (first, second) = (node.pod(&n1, HERE)?, node.pod(&n1, OTHER)?);
    node.converge()?;
    let ports = [&first, &second].map(|pod| node.ifindex(&pod.local.port).unwrap());
    let pin = node.pin(FROM_POD);
    let (ask, answer) = (
        |port: u16| Packet::eth(VIP.mac(), HERE.mac()).ipv4(HERE.ip(), VIP.ip()).udp(port, 80).build(),
        |port: u16| between(OTHER, HERE).udp(8080, port).build(),
    );
    let frames: [(u32, &Frames); 2] = [(ports[0], &ask), (ports[1], &answer)];
    let barrier = Barrier::new(2);
    node.ns.run(|| {
        thread::scope(|scope| -> Result<()> {
            let workers = [0, 1].map(|cpu| {
                let (barrier, frames, pin) = (&barrier, &frames, &pin);
                scope.spawn(move || -> Result<()> {
                    let mut set = CpuSet::new();
                    set.set(cpu % thread::available_parallelism()?.get())?;
                    sched_setaffinity(Pid::from_raw(0), &set)?;
                    let program = SchedClassifier::from_pin(pin)?;
                    for port in 1000..1000 + ROUNDS {
                        for (ifindex, frame) in frames {
                            let mut context = [0; 192];
                            context[40..44].copy_from_slice(&ifindex.to_ne_bytes());
                            let frame = frame(port);
                            barrier.wait();
                            program.test_run(TestRunOptions {
                                data_in: Some(&frame),
                                ctx_in: Some(&context),
                                ..TestRunOptions::new()
                            })?;
                            barrier.wait();
                        }
                    }
                    Ok(())
                })
            });
            for worker in workers {
                worker.join().map_err(|_| anyhow::anyhow!("a thread has failed"))??;
            }
            Ok(())
        })
    })?;
    assert_eq!(node.drops()?, [].into());
    let flows = flow_table::flows(&node)?;
    assert_eq!(flows.len(), usize::from(ROUNDS));
    assert!(flows.iter().all(|flow| flow.is_replied() && flow.nat_port == flow.client_port));
    assert_eq!(slots(&node)?, 2 * flows.len());
    let events = node.datapath.inspect()["flows"].clone();
    assert_eq!((&events["made"], &events["failed"]), (&ROUNDS.into(), &0.into()));
    Ok(())
}

/// Insertions on one CPU evict flows that another is about to insert, or not: each flow has both of its slots, and no slot is left.
#[test]
fn concurrent_insertions_and_evictions_leave_no_slot() -> Result<()> {
    needs!(root());
    const SYNS: u32 = 60_000;
    let rig = Rig::with("ct-evict-race", |options| options.flows = 16)?;
    let barrier = Barrier::new(2);
    let ifindex = rig.node.ifindex(&rig.first.local.port)?;
    let pin = rig.node.pin(FROM_POD);
    rig.node.ns.run(|| {
        thread::scope(|scope| -> Result<()> {
            let workers = [7000, 8000].map(|server| {
                let (barrier, pin) = (&barrier, &pin);
                scope.spawn(move || -> Result<()> {
                    let frame = |n: u32| tcp((HERE, n as u16), (OTHER, server), tcp_flags::SYN).build();
                    barrier.wait();
                    give_all(pin, ifindex, (0..SYNS).map(frame))
                })
            });
            for worker in workers {
                worker.join().map_err(|_| anyhow::anyhow!("a thread has failed"))??;
            }
            Ok(())
        })
    })?;
    assert!(rig.event("evicted") > u64::from(SYNS), "{}", rig.event("evicted"));
    let flows = flow_table::flows(&rig.node)?;
    assert_eq!(slots(&rig.node)?, 2 * flows.len(), "each flow has two slots");
    assert!(flows.iter().all(|flow| flow.head.flags & Flow::INCOMPLETE == 0));
    Ok(())
}

/// The inserting CPU may be interrupted between the two slots of a flow, longer than others can wait.
#[test]
fn a_packet_of_a_flow_that_is_being_inserted_passes() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("ct-arriving")?;
    let ready = [(OTHER.ip().into(), Readiness::Ready)];
    rig.node.want(Object::Service(service(VIP.ip().into(), &ready)));
    rig.node.converge()?;
    let to_service = Packet::eth(VIP.mac(), HERE.mac()).ipv4(HERE.ip(), VIP.ip()).udp(1000, 80);
    for frame in [to_service, between(HERE, OTHER).udp(1001, 6)] {
        let first = rig.from(&rig.first, &frame)?;
        assert_eq!((first.code, &first.dropped[..]), (Code::Redirect, &[][..]));
        flow_table::remove_original_slots(&rig.node)?;
        assert_eq!(rig.from(&rig.first, &frame)?, first);
    }
    assert_eq!((slots(&rig.node)?, rig.event("made"), rig.event("failed")), (2, 2, 0));
    Ok(())
}
