//! Programs that continue in others by tail calls, and their replacement.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use aya::maps::{Map, MapData, ProgramArray};
use contiv_abi::{
    DropReason,
    maps::{BUILD, FROM_OVERLAY, FROM_POD, STAGES, Stage},
};
use contiv_model::policy::{Action, Direction, Rule, UDP};
use netplugin::datapath::{Object, ebpf::Options};
use testkit::{
    capture::enlarge_buffer,
    needs,
    packet::{BROADCAST, Packet},
};

use crate::{
    flow_table::open,
    node::{Endpoint, Node, Pod, network, vtep, vxlan},
    policy::{group, pod, rule},
    run::{Outcome, run},
};

const HERE: Endpoint = Endpoint(1);
const OTHER: Endpoint = Endpoint(2);
/// UDP port of the second pod that its group's rules allow.
const OPEN: u16 = 7000;
const DENIED: u16 = 7001;

struct Rig {
    node: Node,
    first: Pod,
    second: Pod,
}

impl Rig {
    fn new(label: &str, adjust: impl FnOnce(&mut Options)) -> Result<Rig> {
        let mut node = Node::with(label, adjust)?;
        let n1 = network("n1.t", vxlan(10_001));
        node.want_network(&n1).want_peer(2).want(Object::Remote(Endpoint(9).remote(&n1, Some(vtep(2)))));
        let (first, second) = (pod(&mut node, &n1, HERE, 1)?, pod(&mut node, &n1, OTHER, 2)?);
        let deny = Rule {
            protocol: Some(UDP),
            ports: Some(DENIED.into()),
            ..rule("deny", Direction::In, Action::Deny, 1)
        };
        node.want(Object::Group(group(2, vec![deny])));
        node.converge()?;
        Ok(Rig { node, first, second })
    }

    fn send(&self, frame: &[u8]) -> Result<Outcome> {
        run(&self.node, FROM_POD, &self.first.local.port, frame)
    }

    /// Names of the pinned program arrays.
    fn arrays(&self) -> Result<Vec<String>> {
        let names = fs::read_dir(self.node.datapath.maps_directory())?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<Vec<_>>>()?;
        Ok(names.into_iter().filter(|name| name.starts_with(STAGES)).collect())
    }

    /// Makes the next start replace the programs.
    fn pretend_another_build(&self) -> Result<()> {
        Ok(open::<[u8; 16]>(&self.node.datapath.maps_directory(), BUILD)?.set(0, [1; 16], 0)?)
    }
}

fn datagram(port: u16) -> Vec<u8> {
    Packet::eth(OTHER.mac(), HERE.mac()).ipv4(HERE.ip(), OTHER.ip()).udp(port, OPEN).build()
}

#[test]
fn frames_are_dropped_and_counted_while_a_stage_is_missing() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("no-stage", |_| {})?;
    let (known, new) = (datagram(1000), datagram(1001));
    let everyone =
        Packet::eth(BROADCAST, HERE.mac()).ipv4(HERE.ip(), Ipv4Addr::BROADCAST).udp(1000, 67).build();
    rig.send(&known)?.assert_sent_on(&known);
    rig.send(&everyone)?.assert_flooded();
    let arrays = rig.arrays()?;
    ensure!(arrays.len() == 1, "{arrays:?}");
    let array = MapData::from_pin(rig.node.datapath.maps_directory().join(&arrays[0]))?;
    let mut array: ProgramArray<MapData> = Map::from_map_data(array)?.try_into()?;
    array.clear_index(&(Stage::SlowPath as u32))?;
    // Packets of known flows do not need it.
    rig.send(&known)?.assert_sent_on(&known);
    rig.send(&new)?.assert_dropped(DropReason::NoStage);
    rig.send(&everyone)?.assert_flooded();
    array.clear_index(&(Stage::Replicate as u32))?;
    rig.send(&everyone)?.assert_dropped(DropReason::NoStage);
    // The next start loads the programs again.
    rig.node.restart();
    rig.node.converge()?;
    rig.send(&new)?.assert_sent_on(&new);
    rig.send(&everyone)?.assert_flooded();
    Ok(())
}

/// Counts of a stream of datagrams, each of a new flow.
#[derive(Debug, Default)]
struct Stream {
    sent: u32,
    received: u32,
    denied: u32,
}

/// Runs `work` while the first pod sends datagrams to both ports of the second, each from another port.
fn during_new_connections(rig: &mut Rig, work: impl FnOnce(&mut Rig) -> Result<()>) -> Result<Stream> {
    const TIMEOUT: Duration = Duration::from_millis(500);
    let bind = |pod: &Pod, port: u16| -> Result<UdpSocket> {
        let ip: IpAddr = pod.ip();
        pod.ns.run(|| Ok(UdpSocket::bind((ip, port))?))
    };
    let (allowed, denied) = (bind(&rig.second, OPEN)?, bind(&rig.second, DENIED)?);
    for socket in [&allowed, &denied] {
        socket.set_read_timeout(Some(TIMEOUT))?;
        enlarge_buffer(socket)?;
    }
    let (to, from) = (rig.second.ip(), rig.first.ip());
    let ns = rig.first.ns.clone();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            ns.run(|| {
                let mut sent = 0;
                while !stop.load(Ordering::Relaxed) {
                    let socket = UdpSocket::bind((from, 0))?;
                    socket.send_to(b"denied", (to, DENIED))?;
                    socket.send_to(b"allowed", (to, OPEN))?;
                    sent += 1;
                    thread::sleep(Duration::from_micros(300));
                }
                Ok(sent)
            })
        });
        // Ends when nothing has arrived for a while after the sender has stopped.
        let receive = |socket: UdpSocket| {
            let stop = &stop;
            move || {
                let mut received = 0;
                loop {
                    match socket.recv(&mut [0; 16]) {
                        Ok(_) => received += 1,
                        Err(_) if stop.load(Ordering::Relaxed) => return received,
                        Err(_) => {}
                    }
                }
            }
        };
        let (allowed, denied) = (scope.spawn(receive(allowed)), scope.spawn(receive(denied)));
        let worked = work(rig);
        stop.store(true, Ordering::Relaxed);
        let sent = sender.join().unwrap()?;
        let [received, denied] = [allowed, denied].map(|receiver| receiver.join().unwrap());
        worked?;
        Ok(Stream { sent, received, denied })
    })
}

fn assert_nothing_lost(stream: &Stream) {
    assert!(stream.sent > 0 && stream.sent == stream.received && stream.denied == 0, "{stream:?}");
}

#[test]
fn new_connections_pass_while_the_programs_are_replaced() -> Result<()> {
    needs!(root());
    for (label, adjust) in [("swap-tcx", (|_| {}) as fn(&mut Options)), ("swap-cls", Node::clsact)] {
        let mut rig = Rig::new(label, adjust)?;
        let stream = during_new_connections(&mut rig, |rig| {
            for _ in 0..3 {
                let before = rig.arrays()?;
                rig.pretend_another_build()?;
                rig.node.restart();
                // Filters have the previous program and its array until their endpoints are set.
                let observed = rig.node.observe()?;
                ensure!(observed.orphans == 1 && rig.arrays()?.len() == 2, "{observed:?}");
                rig.node.converge()?;
                let after = rig.arrays()?;
                ensure!(after.len() == 1 && after != before, "{after:?}");
            }
            Ok(())
        })?;
        assert_nothing_lost(&stream);
        assert_eq!(rig.node.drops()?.get(&DropReason::NoStage), None);
    }
    Ok(())
}

#[test]
fn an_interrupted_replacement_loses_nothing_and_is_completed() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("swap-half", |_| {})?;
    let stream = during_new_connections(&mut rig, |rig| {
        // The replacement ends before the program is pinned: before any program is replaced, after those of the pods, and
        // after that of the VXLAN device.
        for program in [Stage::SlowPath.program(), FROM_POD, FROM_OVERLAY] {
            let pin = rig.node.pin(program);
            fs::remove_file(&pin)?;
            fs::create_dir(&pin)?;
            rig.pretend_another_build()?;
            rig.node.restart();
            ensure!(rig.node.observe().is_err(), "{program} has a pin");
            ensure!(rig.arrays()?.len() == 2, "{:?}", rig.arrays()?);
            thread::sleep(Duration::from_millis(50));
            fs::remove_dir(&pin)?;
            rig.node.restart();
            ensure!(rig.node.observe()?.orphans == 2, "{:?}", rig.arrays()?);
            rig.node.converge()?;
            ensure!(rig.arrays()?.len() == 1, "{:?}", rig.arrays()?);
        }
        Ok(())
    })?;
    assert_nothing_lost(&stream);
    assert_eq!(rig.node.drops()?.get(&DropReason::NoStage), None);
    Ok(())
}
