//! Services for clients on the wire of a VLAN: who answers for the address, to whom a connection is sent on, and who
//! translates it. XDP and TC choose alike.

mod hook;

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use aya::programs::{TestRun as _, TestRunOptions, Xdp, XdpMode};
use aya_obj::programs::XdpAttachType;
use contiv_abi::{
    DropReason,
    maps::{FROM_POD, FROM_UPLINK, XDP},
};
use contiv_model::service::{Port, Readiness};
use netplugin::datapath::{
    Backend, Datapath as _, Object, Op, Scope, Service,
    ebpf::{Options, XdpWish},
};
use testkit::{
    Netns,
    capture::Tap,
    needs,
    packet::{BROADCAST, Packet, tcp_flags},
};

use crate::{
    node::{Node, Pod, Who, network, vlan},
    run::{Code, Outcome, run},
};

const HERE: Who = Who(1);
const THERE: Who = Who(2);
const FAR: Who = Who(3);
const CLIENT: Who = Who(90);
const VIP: Who = Who(250);
const TAG: u16 = 100;
const SYN: u8 = tcp_flags::SYN;
const ACK: u8 = tcp_flags::ACK;
const FIN: u8 = tcp_flags::FIN | tcp_flags::ACK;
const SOON: Duration = Duration::from_secs(10);

fn web(vip: IpAddr, backends: impl IntoIterator<Item = IpAddr>) -> Service {
    let encap = vlan(TAG);
    let backends = backends.into_iter().map(|ip| Backend { ip, encap, readiness: Readiness::Ready });
    Service {
        id: "web:t".into(),
        scope: Some(Scope { network: "n1.t".into(), encap }),
        vip,
        ports: ["80:8080:TCP", "80:8080:UDP"].map(|port| port.parse::<Port>().unwrap()).into(),
        backends: backends.collect(),
        affinity: None,
    }
}

struct Rig {
    node: Node,
    pod: Pod,
    outside: Netns,
}

/// A pod is here, others are elsewhere.
impl Rig {
    fn new(label: &str, service: Service) -> Result<Rig> {
        let (mut node, outside) = Node::on_wire(label)?;
        let n1 = network("n1.t", vlan(TAG));
        node.want_network(&n1);
        for who in [THERE, FAR] {
            node.want(Object::Remote(who.remote(&n1, None)));
        }
        let pod = node.pod(&n1, HERE)?;
        node.want(Object::Service(service));
        node.converge()?;
        Ok(Rig { node, pod, outside })
    }

    fn v4(label: &str, backends: &[Who]) -> Result<Rig> {
        Rig::new(label, web(VIP.ip().into(), backends.iter().map(|who| who.ip().into())))
    }

    fn v6(label: &str, backends: &[Who]) -> Result<Rig> {
        Rig::new(label, web(VIP.ip6().into(), backends.iter().map(|who| who.ip6().into())))
    }

    fn set(&mut self, backends: &[Who]) -> Result<()> {
        let object = Object::Service(web(VIP.ip().into(), backends.iter().map(|who| who.ip().into())));
        self.node.want(object.clone());
        let failed = self.node.apply(&[Op::Set(object)])?;
        ensure!(failed.is_empty(), "{failed:?}");
        Ok(())
    }

    fn tc(&self, frame: &Packet) -> Result<Outcome> {
        run(&self.node, FROM_UPLINK, "trunk", &frame.build())
    }

    /// What XDP sends back to the wire; none if it leaves the frame, as it is, to others.
    fn xdp(&self, frame: &Packet) -> Result<Option<Vec<u8>>> {
        const PASS: u32 = 2;
        const TX: u32 = 3;
        let program = Xdp::from_pin(self.node.pin(XDP), XdpAttachType::Interface)?;
        let (sent, mut bytes) = (frame.build(), vec![0; 4096]);
        let options =
            TestRunOptions { data_in: Some(&sent), data_out: Some(&mut bytes), ..TestRunOptions::new() };
        let result = program.test_run(options)?;
        bytes.truncate(usize::try_from(result.data_size_out)?);
        match result.return_value {
            TX => Ok(Some(bytes)),
            PASS => {
                ensure!(bytes == sent, "changed what it passes on");
                Ok(None)
            }
            other => anyhow::bail!("the program returned {other}"),
        }
    }

    /// Whom a packet of the client goes to, by either program; `to` makes it from its Ethernet header.
    fn asked(&self, from_client: impl Fn(Packet) -> Packet) -> Result<Who> {
        let to = |mac| from_client(Packet::eth(mac, CLIENT.mac()).vlan(TAG));
        // As it is, but for its addresses.
        let sent_on = |who: Who, tagged: bool| {
            let packet = Packet::eth(who.mac(), vip_mac(&to(VIP.mac())));
            from_client(if tagged { packet.vlan(TAG) } else { packet }).build()
        };
        let frame = to(vip_mac(&to(VIP.mac())));
        let early = self.xdp(&frame)?;
        let outcome = self.tc(&frame)?;
        ensure!(outcome.code == Code::Redirect && outcome.dropped.is_empty(), "{outcome:?}");
        for who in [THERE, FAR] {
            // The tag is beside what TC sends.
            if outcome.bytes == sent_on(who, false) {
                ensure!(early == Some(sent_on(who, true)), "XDP: {early:02x?}, TC: {who:?}");
                return Ok(who);
            }
        }
        ensure!(early.is_none(), "XDP: {early:02x?}, TC: {outcome:?}");
        ensure!(outcome.bytes[..6] == HERE.mac(), "to nobody: {outcome:?}");
        testkit::packet::verify(&outcome.bytes).map_err(|why| anyhow::anyhow!(why))?;
        Ok(HERE)
    }

    fn asked_tcp(&self, port: u16, flags: u8) -> Result<Who> {
        self.asked(|eth| eth.ipv4(CLIENT.ip(), VIP.ip()).tcp(port, 80, flags).payload(b"x"))
    }

    /// A port of the client whose connections go there.
    fn port_to(&self, who: Who) -> Result<u16> {
        let found = (4000..4100).find_map(|port| match self.asked_tcp(port, SYN) {
            Ok(asked) if asked == who => Some(Ok(port)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        });
        found.with_context(|| format!("no connection goes to {who:?}"))?
    }
}

/// The Ethernet address of the service that the frame is for.
fn vip_mac(frame: &Packet) -> [u8; 6] {
    let bytes = frame.build();
    let to = if bytes[16..18] == [0x86, 0xdd] { &bytes[18 + 36..18 + 40] } else { &bytes[18 + 16..18 + 20] };
    [2, 2, to[0], to[1], to[2], to[3]]
}

#[test]
fn connections_go_on_to_their_backends_as_they_are() -> Result<()> {
    needs!(root());
    let rig = Rig::v4("out-v4", &[HERE, THERE, FAR])?;
    let mut asked = vec![];
    for port in 4000..4040 {
        let who = rig.asked_tcp(port, SYN)?;
        // All of a connection goes one way, and so do datagrams.
        assert_eq!((rig.asked_tcp(port, ACK)?, rig.asked_tcp(port, ACK)?), (who, who));
        let datagram = |eth: Packet| eth.ipv4(CLIENT.ip(), VIP.ip()).udp(port, 80).payload(b"x");
        assert_eq!(rig.asked(datagram)?, rig.asked(datagram)?);
        asked.push(who);
    }
    assert!([HERE, THERE, FAR].iter().all(|who| asked.contains(who)), "{asked:?}");
    let relayed = rig.node.datapath.relayed()?;
    assert!(relayed.iter().all(|(_, count)| count.packets > 0 && count.bytes > 0), "{relayed:?}");
    Ok(())
}

#[test]
fn ipv6_goes_on_alike() -> Result<()> {
    needs!(root());
    let rig = Rig::v6("out-v6", &[HERE, THERE])?;
    let mut asked = vec![];
    for port in 4000..4020 {
        let from_client = |eth: Packet| eth.ipv6(CLIENT.ip6(), VIP.ip6()).tcp(port, 80, SYN).payload(b"x");
        asked.push(rig.asked(from_client)?);
    }
    assert!(asked.contains(&HERE) && asked.contains(&THERE), "{asked:?}");
    Ok(())
}

#[test]
fn a_connection_stays_with_its_backend_when_the_set_changes() -> Result<()> {
    needs!(root());
    let mut rig = Rig::v4("out-stay", &[HERE, THERE, FAR])?;
    let (here, there) = (rig.port_to(HERE)?, rig.port_to(THERE)?);
    assert_eq!((rig.asked_tcp(here, ACK)?, rig.asked_tcp(there, ACK)?), (HERE, THERE));
    rig.set(&[HERE, FAR])?;
    assert_eq!((rig.asked_tcp(here, ACK)?, rig.asked_tcp(there, ACK)?), (HERE, THERE));
    for port in 5000..5020 {
        assert_ne!(rig.asked_tcp(port, SYN)?, THERE);
    }
    // This node does not even answer for the service any more; what it has, it keeps.
    rig.set(&[FAR])?;
    assert_eq!((rig.asked_tcp(here, ACK)?, rig.asked_tcp(there, ACK)?), (HERE, THERE));
    let late = Packet::eth(VIP.mac(), CLIENT.mac()).vlan(TAG).ipv4(CLIENT.ip(), VIP.ip()).tcp(6000, 80, SYN);
    rig.tc(&late)?.assert_dropped(DropReason::NotLocal);
    // What ends makes room for another from the same port.
    rig.set(&[HERE, FAR])?;
    assert_eq!((rig.asked_tcp(there, FIN)?, rig.asked_tcp(there, ACK)?), (THERE, THERE));
    let again = rig.asked_tcp(there, SYN)?;
    assert_ne!(again, THERE);
    assert_eq!(rig.asked_tcp(there, ACK)?, again);
    Ok(())
}

#[test]
fn the_node_of_the_first_backend_answers_for_the_service() -> Result<()> {
    needs!(root());
    let mut rig = Rig::v4("out-arp", &[HERE, THERE])?;
    let wire = Tap::open(&rig.outside, "wire")?;
    let who_has =
        |ip| Packet::eth(BROADCAST, CLIENT.mac()).vlan(TAG).arp(1, (CLIENT.mac(), CLIENT.ip()), ([0; 6], ip));
    wire.send(&who_has(VIP.ip()).build())?;
    let answer = Packet::eth(CLIENT.mac(), VIP.mac())
        .vlan(TAG)
        .arp(2, (VIP.mac(), VIP.ip()), (CLIENT.mac(), CLIENT.ip()))
        .build();
    wire.expect(SOON, "the answer", |bytes| (bytes == answer).then_some(()))?;
    rig.set(&[THERE, FAR])?;
    rig.tc(&who_has(VIP.ip()))?.assert_flooded();
    let syn = Packet::eth(VIP.mac(), CLIENT.mac()).vlan(TAG).ipv4(CLIENT.ip(), VIP.ip()).tcp(4000, 80, SYN);
    assert_eq!(rig.xdp(&syn)?, None);
    rig.tc(&syn)?.assert_dropped(DropReason::NotLocal);
    Ok(())
}

#[test]
fn neighbours_are_told_of_ipv6_services() -> Result<()> {
    needs!(root());
    let rig = Rig::v6("out-nd", &[HERE])?;
    let wire = Tap::open(&rig.outside, "wire")?;
    let solicitation = Packet::neighbour_solicitation(CLIENT.mac(), CLIENT.ip6(), VIP.ip6()).build();
    let tag = [0x81, 0, 0, TAG as u8];
    wire.send(&[&solicitation[..12], &tag, &solicitation[12..]].concat())?;
    let [.., a, b, c, d] = VIP.ip6().octets();
    wire.expect(SOON, "the advertisement", |bytes| {
        (bytes[6..12] == [2, 2, a, b, c, d] && bytes[..6] == CLIENT.mac()).then_some(())
    })?;
    Ok(())
}

#[test]
fn the_backends_node_translates_for_the_pod_that_was_chosen() -> Result<()> {
    needs!(root());
    // Whatever its own choice would be: it does not answer for the service.
    let rig = Rig::v4("out-arrive", &[HERE, THERE])?;
    for port in 4000..4010 {
        let sent_on = |flags| {
            let eth = Packet::eth(HERE.mac(), VIP.mac()).vlan(TAG);
            eth.ipv4(CLIENT.ip(), VIP.ip()).tcp(port, 80, flags)
        };
        let arrives =
            |flags| Packet::eth(HERE.mac(), VIP.mac()).ipv4(CLIENT.ip(), HERE.ip()).tcp(port, 8080, flags);
        assert_eq!(rig.xdp(&sent_on(SYN))?, None);
        rig.tc(&sent_on(SYN))?.assert_sent_on(&arrives(SYN).build());
        let answer = |from: Who, from_port| {
            let eth = Packet::eth(CLIENT.mac(), HERE.mac());
            eth.ipv4(from.ip(), CLIENT.ip()).tcp(from_port, port, SYN | ACK).build()
        };
        let outcome = run(&rig.node, FROM_POD, &rig.pod.local.port, &answer(HERE, 8080))?;
        outcome.assert_sent_on(&answer(VIP, 80));
        rig.tc(&sent_on(ACK))?.assert_sent_on(&arrives(ACK).build());
    }
    Ok(())
}

#[test]
fn nobody_waits_for_a_port_that_the_service_has_not() -> Result<()> {
    needs!(root());
    let rig = Rig::v4("out-refuse", &[HERE, THERE])?;
    let syn = Packet::eth(VIP.mac(), CLIENT.mac()).vlan(TAG).ipv4(CLIENT.ip(), VIP.ip()).tcp(4000, 81, SYN);
    assert_eq!(rig.xdp(&syn)?, None);
    let outcome = rig.tc(&syn.sequence(7, 0))?;
    let reset = Packet::eth(CLIENT.mac(), VIP.mac())
        .ipv4(VIP.ip(), CLIENT.ip())
        .ip_id(0)
        .tcp(81, 4000, tcp_flags::RST | ACK)
        .sequence(0, 8)
        .window(0);
    assert_eq!((outcome.code, outcome.dropped), (Code::Redirect, vec![DropReason::NoService]));
    assert_eq!(outcome.bytes, reset.build());
    Ok(())
}

#[test]
fn errors_about_a_connection_follow_it() -> Result<()> {
    needs!(root());
    let rig = Rig::v4("out-icmp", &[HERE, THERE])?;
    let port = rig.port_to(THERE)?;
    assert_eq!(rig.asked_tcp(port, ACK)?, THERE);
    // A router on the way to the client could not carry what the service answered.
    let answer = Packet::bare().ipv4(VIP.ip(), CLIENT.ip()).tcp(80, port, ACK).build();
    let error = |to: [u8; 6], from: [u8; 6]| {
        let eth = Packet::eth(to, from);
        (eth, |eth: Packet| {
            eth.ipv4([10, 1, 1, 91], VIP.ip()).icmp(3, 4, [0, 0, 5, 0]).payload(&answer[..28])
        })
    };
    let (eth, finish) = error(VIP.mac(), CLIENT.mac());
    let outcome = rig.tc(&finish(eth.vlan(TAG)))?;
    let (eth, finish) = error(THERE.mac(), VIP.mac());
    outcome.assert_sent_on(&finish(eth).build());
    Ok(())
}

#[test]
fn fragments_go_on_together() -> Result<()> {
    needs!(root());
    let rig = Rig::v4("out-frags", &[THERE, HERE])?;
    let mut sent_on = 0;
    for port in 4000..4010 {
        let whole = Packet::bare().ipv4(CLIENT.ip(), VIP.ip()).udp(port, 80).payload(&[7; 64]).build();
        let piece = |eth: Packet, offset: u16, more, bytes: &[u8]| {
            eth.ipv4(CLIENT.ip(), VIP.ip()).fragment(port, offset, more).protocol(17).payload(bytes)
        };
        let mut to = vec![];
        for (offset, more, bytes) in [(0, true, &whole[20..52]), (4, false, &whole[52..])] {
            let frame = piece(Packet::eth(VIP.mac(), CLIENT.mac()).vlan(TAG), offset, more, bytes);
            assert_eq!(rig.xdp(&frame)?, None);
            let outcome = rig.tc(&frame)?;
            assert_eq!((outcome.code, &outcome.dropped[..]), (Code::Redirect, &[][..]));
            if outcome.bytes[..6] == THERE.mac() {
                sent_on += 1;
                assert_eq!(
                    outcome.bytes,
                    piece(Packet::eth(THERE.mac(), VIP.mac()), offset, more, bytes).build()
                );
            }
            to.push(outcome.bytes[..6].to_vec());
        }
        assert_eq!(to[0], to[1]);
    }
    assert!(sent_on > 0);
    Ok(())
}

#[test]
fn xdp_leaves_everything_else_alone() -> Result<()> {
    needs!(root());
    let rig = Rig::v4("out-pass", &[HERE, THERE])?;
    let port = rig.port_to(THERE)?;
    let eth = || Packet::eth(VIP.mac(), CLIENT.mac());
    let ip = |eth: Packet| eth.ipv4(CLIENT.ip(), VIP.ip());
    let frames = [
        ip(eth()).tcp(port, 80, SYN),
        ip(eth().vlan(TAG + 1)).tcp(port, 80, SYN),
        ip(eth().vlan(TAG)).ip_options(&[1, 1, 1, 1]).tcp(port, 80, SYN),
        ip(eth().vlan(TAG)).icmp_echo_request(1, 1),
        ip(Packet::eth(HERE.mac(), CLIENT.mac()).vlan(TAG)).tcp(port, 80, SYN),
        ip(Packet::eth(VIP.mac(), BROADCAST).vlan(TAG)).tcp(port, 80, SYN),
        eth().vlan(TAG).ipv4(CLIENT.ip(), HERE.ip()).tcp(port, 80, SYN),
        eth().vlan(TAG).payload(b"short"),
    ];
    for frame in frames {
        assert_eq!(rig.xdp(&frame)?, None);
    }
    // Frames of every length.
    let whole = ip(eth().vlan(TAG)).tcp(port, 80, SYN).build();
    for len in 14..whole.len() {
        let program = Xdp::from_pin(rig.node.pin(XDP), XdpAttachType::Interface)?;
        let mut bytes = vec![0; 4096];
        let options = TestRunOptions {
            data_in: Some(&whole[..len]),
            data_out: Some(&mut bytes),
            ..TestRunOptions::new()
        };
        // The flags are the last that is looked at.
        let through = if len >= 18 + 20 + 14 { 3 } else { 2 };
        assert_eq!(program.test_run(options)?.return_value, through, "{len} bytes");
    }
    Ok(())
}

/// The client's node has the network and no service: to the others it is a host on the wire.
struct Wire {
    client: (Node, Pod),
    first: (Node, Pod),
    second: (Node, Pod),
    /// On the switch's ends.
    _takers: Vec<Xdp>,
    _switch: Netns,
}

impl Wire {
    fn new(label: &str, xdp: XdpWish) -> Result<Wire> {
        let switch = Netns::new(&format!("{label}-sw"))?;
        switch.ip("link add br0 type bridge")?;
        switch.up("br0")?;
        let n1 = network("n1.t", vlan(TAG));
        let service = web(VIP.ip().into(), [HERE.ip().into(), THERE.ip().into()]);
        let node = |name: &str, who: Who, others: &[Who]| -> Result<(Node, Pod)> {
            let mut node = Node::with(&format!("{label}{name}"), |options: &mut Options| {
                options.uplink = Some("trunk".into());
                options.xdp = xdp;
            })?;
            node.ns.veth("trunk", &switch, name)?;
            switch.ip(&format!("link set dev {name} master br0"))?;
            // As with a switch: tags are in the frames.
            switch.output("ethtool", &["-K", name, "txvlan", "off"])?;
            switch.up(name)?;
            node.ns.up("trunk")?;
            node.want_network(&n1);
            for other in others {
                node.want(Object::Remote(other.remote(&n1, None)));
            }
            if who != CLIENT {
                node.want(Object::Service(service.clone()));
            }
            let pod = node.pod(&n1, who)?;
            node.converge()?;
            Ok((node, pod))
        };
        let client = node("to-c", CLIENT, &[])?;
        let (first, second) = (node("to-a", HERE, &[THERE])?, node("to-b", THERE, &[HERE])?);
        // What a program in a veth's driver sends back is taken where there is one, too. The client's knows no service, so
        // that it lets everything pass.
        let taker = |name: &str| {
            let mut program = Xdp::from_pin(client.0.pin(XDP), XdpAttachType::Interface)?;
            switch.run(|| Ok(program.attach(name, XdpMode::Driver)?))?;
            Ok(program)
        };
        let ends: &[&str] = if xdp == XdpWish::Native { &["to-a", "to-b", "to-c"] } else { &[] };
        let takers = ends.iter().map(|name| taker(name)).collect::<Result<_>>()?;
        Ok(Wire { client, first, second, _takers: takers, _switch: switch })
    }

    fn connect(&self) -> Result<(TcpStream, Who)> {
        let address = SocketAddr::new(VIP.ip().into(), 80);
        let mut stream = self.client.1.ns.run(|| Ok(TcpStream::connect_timeout(&address, SOON)?))?;
        stream.set_read_timeout(Some(SOON))?;
        let who = ask(&mut stream)?;
        Ok((stream, who))
    }
}

/// Which backend is at the other end.
fn ask(stream: &mut TcpStream) -> Result<Who> {
    let mut answer = [0];
    stream.write_all(b"?")?;
    stream.read_exact(&mut answer)?;
    Ok(Who(answer[0]))
}

/// Answers each byte with the pod's number.
fn serve(pod: &Pod) -> Result<()> {
    let listener = pod.ns.run(|| Ok(TcpListener::bind("0.0.0.0:8080")?))?;
    let who = pod.who;
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let Ok(mut stream) = stream else { return };
                let mut question = [0];
                while stream.read_exact(&mut question).is_ok() && stream.write_all(&[who.0]).is_ok() {}
            });
        }
    });
    Ok(())
}

fn a_client_on_the_wire_is_served(label: &str, xdp: XdpWish) -> Result<()> {
    let mut wire = Wire::new(label, xdp)?;
    serve(&wire.first.1)?;
    serve(&wire.second.1)?;
    let mut connections = vec![];
    for _ in 0..24 {
        connections.push(wire.connect()?);
    }
    for who in [HERE, THERE] {
        ensure!(connections.iter().any(|(_, asked)| *asked == who), "{who:?} was not asked");
    }
    let (tc, early) = hook::sent_on(&wire.first.0.datapath)?;
    ensure!(if xdp == XdpWish::Off { tc > 0 && early == 0 } else { early > 0 }, "{tc} by TC, {early} by XDP");
    ensure!(wire.second.0.datapath.relayed()?.iter().all(|(_, count)| count.packets == 0));

    // One backend is to get no more; the agents start anew.
    let service = Object::Service(web(VIP.ip().into(), [HERE.ip().into()]));
    for (node, _) in [&mut wire.first, &mut wire.second] {
        node.want(service.clone());
        node.restart();
        node.converge()?;
    }
    for (stream, who) in &mut connections {
        ensure!(ask(stream)? == *who, "not with {who:?} any more");
    }
    for _ in 0..8 {
        ensure!(wire.connect()?.1 == HERE);
    }
    Ok(())
}

#[test]
fn a_client_is_served_by_tc() -> Result<()> {
    needs!(root(), binary("ethtool"));
    a_client_on_the_wire_is_served("out-tc", XdpWish::Off)
}

#[test]
fn a_client_is_served_by_generic_xdp() -> Result<()> {
    needs!(root(), binary("ethtool"));
    a_client_on_the_wire_is_served("out-skb", XdpWish::Generic)
}

#[test]
fn a_client_is_served_by_native_xdp() -> Result<()> {
    needs!(root(), binary("ethtool"));
    a_client_on_the_wire_is_served("out-drv", XdpWish::Native)
}
