//! What many services cost. The numbers are printed, and asserted by nobody: the machine may be busy.
//!
//! `cargo test -p netplugin --release --test packets -- --ignored --nocapture scale`

use std::{
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use anyhow::Result;
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use contiv_abi::maps::FROM_POD;
use contiv_model::service::{Port, Protocol, Readiness};
use netplugin::datapath::{Backend, Datapath as _, Object, Op, Scope, Service};
use testkit::{
    needs,
    packet::{Packet, tcp_flags},
};

use crate::node::{Node, Pod, Who, network, vtep, vxlan};

const HERE: Who = Who(1);
/// Backends of each service, on another node.
const BACKENDS: [Who; 4] = [Who(11), Who(12), Who(13), Who(14)];
/// The address of the first service; the others follow.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 0);

fn vip(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(FIRST) + number)
}

/// No two have a backend in common, the target ports being different.
fn service(number: u32, affinity: Option<Duration>) -> Object {
    let encap = vxlan(10_001);
    let backend = |who: &Who| Backend { ip: who.ip().into(), encap, readiness: Readiness::Ready };
    Object::Service(Service {
        id: format!("s{number}:t").into(),
        scope: Some(Scope { network: "n1.t".into(), encap }),
        vip: IpAddr::from(vip(number)),
        ports: vec![Port { protocol: Protocol::Tcp, port: 80, target: 1000 + number as u16 }],
        backends: BACKENDS.iter().map(backend).collect(),
        affinity,
    })
}

fn node(label: &str) -> Result<(Node, Pod)> {
    let mut node = Node::new(label)?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1).want_peer(2);
    for who in BACKENDS {
        node.want(Object::Remote(who.remote(&n1, Some(vtep(2)))));
    }
    let pod = node.pod(&n1, HERE)?;
    node.converge()?;
    Ok((node, pod))
}

#[test]
#[ignore = "a measurement"]
fn scale_of_first_packets() -> Result<()> {
    needs!(root());
    const CALLS: u32 = 200_000;
    for affinity in [None, Some(Duration::from_secs(10_800))] {
        let (mut node, pod) = node("svc-scale")?;
        let ifindex = node.ifindex(&pod.local.port)?;
        let pin = node.pin(FROM_POD);
        let mut there = 0;
        for count in [1, 1000, 10_000, 30_000] {
            let ops: Vec<Op> = (there..count).map(|n| Op::Set(service(n, affinity))).collect();
            there = count;
            let began = Instant::now();
            assert!(node.apply(&ops)?.is_empty());
            let loaded = began.elapsed();
            let began = Instant::now();
            let Object::Service(mut changed) = service(count - 1, affinity) else { unreachable!() };
            changed.backends.pop();
            assert!(node.apply(&[Op::Set(Object::Service(changed))])?.is_empty());
            let change = began.elapsed();
            assert!(node.apply(&[Op::Set(service(count - 1, affinity))])?.is_empty());
            let mut rounds = vec![];
            for round in 0..5 {
                let time = node.ns.run(|| {
                    let program = SchedClassifier::from_pin(&pin)?;
                    let mut context = [0; 192];
                    context[40..44].copy_from_slice(&ifindex.to_ne_bytes());
                    let mut frame = Packet::eth([2; 6], HERE.mac())
                        .ipv4(HERE.ip(), vip(0))
                        .tcp(1, 80, tcp_flags::SYN)
                        .build();
                    let mut sum = Duration::ZERO;
                    for call in 0..CALLS {
                        let to = vip(call.wrapping_mul(7919) % count).octets();
                        frame[30..34].copy_from_slice(&to);
                        frame[2..6].copy_from_slice(&to);
                        // New as far as the table of new flows goes.
                        let port = (round * CALLS + call) % 65_000 + 1;
                        frame[34..36].copy_from_slice(&(port as u16).to_be_bytes());
                        let result = program.test_run(TestRunOptions {
                            data_in: Some(&frame),
                            ctx_in: Some(&context),
                            ..TestRunOptions::new()
                        })?;
                        assert_eq!(result.return_value, 7);
                        sum += result.duration;
                    }
                    Ok(sum.as_nanos() as f64 / f64::from(CALLS))
                })?;
                rounds.push(time);
            }
            rounds.sort_by(f64::total_cmp);
            println!(
                "{count} services, affinity {affinity:?}: first packet {:.0} ns; loaded in {loaded:?}, one change {change:?}",
                rounds[2]
            );
        }
        let began = Instant::now();
        node.observe()?;
        println!("measured in {:?}", began.elapsed());
        println!("{} writes", node.datapath.writes());
    }
    Ok(())
}

#[test]
fn thirty_thousand_services_fit_and_are_found_again() -> Result<()> {
    needs!(root());
    const COUNT: u32 = 30_000;
    let (mut node, _pod) = node("svc-many")?;
    let ops: Vec<Op> = (0..COUNT).map(|n| Op::Set(service(n, None))).collect();
    assert!(node.apply(&ops)?.is_empty());
    for op in ops {
        let Op::Set(object) = op else { continue };
        node.want(object);
    }
    node.restart();
    let observed = node.observe()?;
    assert_eq!((observed.same.len(), observed.strays), (node.desired.len(), 0));
    // One that changes costs what it changes, not what there is.
    let Object::Service(mut changed) = service(COUNT - 1, None) else { unreachable!() };
    changed.backends.pop();
    assert!(node.apply(&[Op::Set(Object::Service(changed))])?.is_empty());
    assert_eq!(node.datapath.writes(), 1);
    Ok(())
}
