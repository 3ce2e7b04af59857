//! Services for external clients on a VLAN: the node that answers ARP and ND, selection of a backend, forwarding to
//! its node (DSR), and translation. XDP and TC select the same backend.

mod deletion;
mod importing;
mod terminating;
mod traced;
mod traffic;
mod xdp;

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use aya::programs::{TestRun as _, TestRunOptions, Xdp, XdpMode};
use aya_obj::programs::XdpAttachType;
use contiv_abi::{
    DropReason, DsrSet,
    maps::{DSR_FLOWS, DSR_FLOWS_CAPACITY, FROM_POD, FROM_UPLINK, XDP},
};
use contiv_model::{
    mac::Mac,
    service::{Port, Readiness},
    vrf::Vrf,
};
use netplugin::datapath::{
    Backend, Datapath as _, Network, Object, Op, Remote, Scope, Service,
    ebpf::{Options, XdpPreference},
};
use testkit::{
    Netns,
    capture::Tap,
    needs,
    packet::{BROADCAST, Packet, tcp_flags},
    xdp_context,
};

use crate::{
    node::{Endpoint, Node, Pod, network, vlan},
    run::{Code, Outcome, run},
};

const HERE: Endpoint = Endpoint(1);
const THERE: Endpoint = Endpoint(2);
const FAR: Endpoint = Endpoint(3);
const CLIENT: Endpoint = Endpoint(90);
/// Of the backends here, `HERE` answers for this address.
const VIP: Endpoint = Endpoint(247);
const TAG: u16 = 100;
const SYN: u8 = tcp_flags::SYN;
const ACK: u8 = tcp_flags::ACK;
const FIN: u8 = tcp_flags::FIN | tcp_flags::ACK;
const TIMEOUT: Duration = Duration::from_secs(10);

fn web(vip: IpAddr, backends: impl IntoIterator<Item = IpAddr>) -> Service {
    let encap = vlan(TAG);
    Service {
        ports: ["80:8080:TCP", "80:8080:UDP"].map(|port| port.parse::<Port>().unwrap()).into(),
        backends: backends.into_iter().map(|ip| Backend::on(encap, ip)).collect(),
        ..Service::new("web:t", Scope::network(&network("n1.t", encap)), vip)
    }
}

struct Rig {
    node: Node,
    pod: Pod,
    outside: Netns,
}

/// One pod is here, other backends are remote.
impl Rig {
    fn new(label: &str, service: Service) -> Result<Rig> {
        let (mut node, outside) = Node::on_wire(label)?;
        let n1 = Network { vrf: service.scope.vrf.clone(), ..network("n1.t", vlan(TAG)) };
        node.want_network(&n1);
        for endpoint in [THERE, FAR] {
            node.want(Object::Remote(endpoint.remote(&n1, None)));
        }
        let pod = node.pod(&n1, HERE)?;
        node.want(Object::Service(service));
        node.converge()?;
        Ok(Rig { node, pod, outside })
    }

    fn v4(label: &str, backends: &[Endpoint]) -> Result<Rig> {
        Rig::new(label, web(VIP.ip().into(), backends.iter().map(|endpoint| endpoint.ip().into())))
    }

    fn v6(label: &str, backends: &[Endpoint]) -> Result<Rig> {
        Rig::new(label, web(VIP.ip6().into(), backends.iter().map(|endpoint| endpoint.ip6().into())))
    }

    fn set(&mut self, backends: &[Endpoint]) -> Result<()> {
        let object =
            Object::Service(web(VIP.ip().into(), backends.iter().map(|endpoint| endpoint.ip().into())));
        self.node.want(object.clone());
        let failed = self.node.apply(&[Op::Set(object)])?;
        ensure!(failed.is_empty(), "{failed:?}");
        Ok(())
    }

    fn tc(&self, frame: &Packet) -> Result<Outcome> {
        run(&self.node, FROM_UPLINK, "trunk", &frame.build())
    }

    /// The frame that XDP sends back; `None` if XDP passes the frame unchanged.
    fn xdp(&self, frame: &Packet) -> Result<Option<Vec<u8>>> {
        const PASS: u32 = 2;
        const TX: u32 = 3;
        let program = Xdp::from_pin(self.node.pin(XDP), XdpAttachType::Interface)?;
        let (sent, mut bytes) = (frame.build(), vec![0; 4096]);
        let context = xdp_context(sent.len(), self.node.ifindex("trunk")?);
        let options = TestRunOptions {
            data_in: Some(&sent),
            data_out: Some(&mut bytes),
            ctx_in: Some(&context),
            ..TestRunOptions::new()
        };
        let result = self.node.ns.run(|| Ok(program.test_run(options)?))?;
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

    /// The backend that both programs select for a packet of the client; `to` builds the packet on its Ethernet
    /// header.
    fn asked(&self, from_client: impl Fn(Packet) -> Packet) -> Result<Endpoint> {
        let to = |mac| from_client(Packet::eth(mac, CLIENT.mac()).vlan(TAG));
        // Unchanged except for the MAC addresses.
        let sent_on = |endpoint: Endpoint, tagged: bool| {
            let packet = Packet::eth(endpoint.mac(), vip_mac(&to(VIP.mac())));
            from_client(if tagged { packet.vlan(TAG) } else { packet }).build()
        };
        let frame = to(vip_mac(&to(VIP.mac())));
        let early = self.xdp(&frame)?;
        let outcome = self.tc(&frame)?;
        ensure!(outcome.code == Code::Redirect && outcome.dropped.is_empty(), "{outcome:?}");
        for endpoint in [THERE, FAR] {
            // TC sends the tag hardware-accelerated.
            if outcome.bytes == sent_on(endpoint, false) {
                ensure!(early == Some(sent_on(endpoint, true)), "XDP: {early:02x?}, TC: {endpoint:?}");
                return Ok(endpoint);
            }
        }
        ensure!(early.is_none(), "XDP: {early:02x?}, TC: {outcome:?}");
        ensure!(outcome.bytes[..6] == HERE.mac(), "no destination: {outcome:?}");
        testkit::packet::verify(&outcome.bytes).map_err(|why| anyhow::anyhow!(why))?;
        Ok(HERE)
    }

    fn asked_tcp(&self, port: u16, flags: u8) -> Result<Endpoint> {
        self.asked(|eth| eth.ipv4(CLIENT.ip(), VIP.ip()).tcp(port, 80, flags).payload(b"x"))
    }

    /// Number of connections that the table of forwarded connections has.
    fn noted(&self) -> Result<usize> {
        let tables = self.node.datapath.counters()?.tables;
        let table = tables.iter().find(|usage| usage.table == DSR_FLOWS).context("no usage")?;
        ensure!(table.capacity == DSR_FLOWS_CAPACITY * DsrSet::LEN, "{table:?}");
        Ok(table.entries)
    }

    /// A port of the client whose connections go to the endpoint.
    fn port_to(&self, endpoint: Endpoint) -> Result<u16> {
        let found = (4000..4100).find_map(|port| match self.asked_tcp(port, SYN) {
            Ok(asked) if asked == endpoint => Some(Ok(port)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        });
        found.with_context(|| format!("no connection goes to {endpoint:?}"))?
    }
}

/// MAC address of the service to which the frame is sent.
fn vip_mac(frame: &Packet) -> [u8; 6] {
    let bytes = frame.build();
    let to = if bytes[16..18] == [0x86, 0xdd] { &bytes[18 + 36..18 + 40] } else { &bytes[18 + 16..18 + 20] };
    [2, 2, to[0], to[1], to[2], to[3]]
}

#[test]
fn connections_are_forwarded_to_backends_unchanged() -> Result<()> {
    needs!(root());
    let rig = Rig::v4("out-v4", &[HERE, THERE, FAR])?;
    let mut asked = vec![];
    for port in 4000..4040 {
        let endpoint = rig.asked_tcp(port, SYN)?;
        // All packets of a connection go to one backend, and so do datagrams.
        assert_eq!((rig.asked_tcp(port, ACK)?, rig.asked_tcp(port, ACK)?), (endpoint, endpoint));
        let datagram = |eth: Packet| eth.ipv4(CLIENT.ip(), VIP.ip()).udp(port, 80).payload(b"x");
        assert_eq!(rig.asked(datagram)?, rig.asked(datagram)?);
        asked.push(endpoint);
    }
    assert!([HERE, THERE, FAR].iter().all(|endpoint| asked.contains(endpoint)), "{asked:?}");
    let relayed = rig.node.datapath.dsr_forwarded()?;
    assert!(relayed.iter().all(|(_, count)| count.packets > 0 && count.bytes > 0), "{relayed:?}");
    Ok(())
}

#[test]
fn ipv6_connections_are_forwarded_to_backends_unchanged() -> Result<()> {
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
fn connections_are_forwarded_in_the_domain_of_a_vrf() -> Result<()> {
    needs!(root());
    let mut service = web(VIP.ip().into(), [HERE, THERE].map(|endpoint| endpoint.ip().into()));
    service.scope.vrf = Vrf::Tenant("t".parse()?);
    let mut rig = Rig::new("out-vrf", service.clone())?;
    let (here, there) = (rig.port_to(HERE)?, rig.port_to(THERE)?);
    assert_eq!((rig.asked_tcp(here, ACK)?, rig.asked_tcp(there, ACK)?), (HERE, THERE));
    // The connection of the other node's backend is found when that gets no new ones.
    service.backends.iter_mut().for_each(|backend| {
        if backend.ip == THERE.ip() {
            backend.readiness = Readiness::Terminating;
        }
    });
    rig.node.want(Object::Service(service));
    rig.node.converge()?;
    assert_eq!((rig.asked_tcp(here, ACK)?, rig.asked_tcp(there, ACK)?), (HERE, THERE));
    for port in 5000..5010 {
        assert_eq!(rig.asked_tcp(port, SYN)?, HERE);
    }
    Ok(())
}

#[test]
fn a_connection_keeps_its_backend_when_the_set_changes() -> Result<()> {
    needs!(root());
    let mut rig = Rig::v4("out-stay", &[HERE, THERE, FAR])?;
    let (here, there) = (rig.port_to(HERE)?, rig.port_to(THERE)?);
    assert_eq!((rig.asked_tcp(here, ACK)?, rig.asked_tcp(there, ACK)?), (HERE, THERE));
    rig.set(&[HERE, FAR])?;
    assert_eq!((rig.asked_tcp(here, ACK)?, rig.asked_tcp(there, ACK)?), (HERE, THERE));
    for port in 5000..5020 {
        assert_ne!(rig.asked_tcp(port, SYN)?, THERE);
    }
    // This node no longer answers for the service, but keeps its connections.
    rig.set(&[FAR])?;
    assert_eq!((rig.asked_tcp(here, ACK)?, rig.asked_tcp(there, ACK)?), (HERE, THERE));
    let late = Packet::eth(VIP.mac(), CLIENT.mac()).vlan(TAG).ipv4(CLIENT.ip(), VIP.ip()).tcp(6000, 80, SYN);
    rig.tc(&late)?.assert_dropped(DropReason::NotLocal);
    // The port of a closed connection may be reused.
    rig.set(&[HERE, FAR])?;
    assert_eq!((rig.asked_tcp(there, FIN)?, rig.asked_tcp(there, ACK)?), (THERE, THERE));
    let again = rig.asked_tcp(there, SYN)?;
    assert_ne!(again, THERE);
    assert_eq!(rig.asked_tcp(there, ACK)?, again);
    Ok(())
}

#[test]
fn a_connection_follows_its_backend_to_another_mac_address() -> Result<()> {
    needs!(root());
    let mut rig = Rig::v4("out-moves", &[HERE, THERE])?;
    let port = rig.port_to(THERE)?;
    assert_eq!(rig.asked_tcp(port, ACK)?, THERE);
    let frame = Packet::eth([2, 2, 10, 1, 1, 247], CLIENT.mac()).vlan(TAG).ipv4(CLIENT.ip(), VIP.ip());
    let frame = frame.tcp(port, 80, ACK).payload(b"x");
    assert_eq!(vip_mac(&frame), frame.build()[..6], "the address of the service");
    // At once, and not when the second has passed in which the address was looked up: hence many of them.
    for last in 1..=20 {
        let mac = [2, 0, 0, 0, 7, last];
        let moved = Remote { mac: Mac(mac), ..THERE.remote(&network("n1.t", vlan(TAG)), None) };
        let failed = rig.node.apply(&[Op::Set(Object::Remote(moved))])?;
        ensure!(failed.is_empty(), "{failed:?}");
        let sent = rig.xdp(&frame)?.context("XDP passes the frame")?;
        assert_eq!(sent[..6], mac);
    }
    Ok(())
}

#[test]
fn a_connection_is_noted_with_its_second_packet() -> Result<()> {
    needs!(root());
    let rig = Rig::v4("out-noted", &[HERE, THERE])?;
    let (here, there) = (rig.port_to(HERE)?, rig.port_to(THERE)?);
    assert_eq!(rig.noted()?, 0);
    // Those of this node are in its flow table.
    for _ in 0..2 {
        assert_eq!((rig.asked_tcp(here, ACK)?, rig.asked_tcp(there, ACK)?), (HERE, THERE));
        assert_eq!(rig.noted()?, 1);
    }
    // It is over when another one begins.
    assert_eq!(rig.asked_tcp(there, FIN)?, THERE);
    assert_eq!(rig.noted()?, 1);
    assert_eq!(rig.asked_tcp(there, SYN)?, THERE);
    assert_eq!(rig.noted()?, 0);
    Ok(())
}

#[test]
fn a_connection_does_not_return_to_a_backend_that_was_gone() -> Result<()> {
    needs!(root());
    let mut rig = Rig::v4("out-gone", &[HERE, THERE, FAR])?;
    let port = rig.port_to(THERE)?;
    assert_eq!(rig.asked_tcp(port, ACK)?, THERE);
    rig.set(&[HERE, FAR])?;
    assert_eq!(rig.asked_tcp(port, ACK)?, THERE);
    let backend = Object::Remote(THERE.remote(&network("n1.t", vlan(TAG)), None));
    assert!(rig.node.apply(&[Op::Delete(backend.id())])?.is_empty());
    let next = rig.asked_tcp(port, ACK)?;
    assert_ne!(next, THERE);
    assert!(rig.node.apply(&[Op::Set(backend)])?.is_empty());
    assert_eq!((rig.asked_tcp(port, ACK)?, rig.asked_tcp(port, ACK)?), (next, next));
    Ok(())
}

#[test]
fn connections_are_kept_by_another_abi_version_and_with_another_flow_table() -> Result<()> {
    needs!(root());
    let mut rig = Rig::v4("out-kept", &[HERE, THERE])?;
    let port = rig.port_to(THERE)?;
    assert_eq!(rig.asked_tcp(port, ACK)?, THERE);
    // The hash does not choose it any more.
    rig.set(&[HERE, FAR])?;
    let changes: [fn(&mut Options); 3] = [
        |options| options.abi_version += 1,
        |options| options.abi_version -= 1,
        |options| options.flows = 4096,
    ];
    for change in changes {
        change(&mut rig.node.options);
        rig.node.restart();
        rig.node.converge()?;
        assert_eq!((rig.asked_tcp(port, ACK)?, rig.noted()?), (THERE, 1));
    }
    // No other test gets maps of this size.
    rig.node.cleanup()
}

/// The client's ARP request for the service.
fn who_has() -> Packet {
    let sender = (CLIENT.mac(), CLIENT.ip());
    Packet::eth(BROADCAST, CLIENT.mac()).vlan(TAG).arp(1, sender, ([0; 6], VIP.ip()))
}

/// Waits for the service's reply.
fn expect_reply(wire: &Tap) -> Result<()> {
    let client = (CLIENT.mac(), CLIENT.ip());
    let reply = Packet::eth(CLIENT.mac(), VIP.mac()).vlan(TAG).arp(2, (VIP.mac(), VIP.ip()), client).build();
    wire.expect(TIMEOUT, "the reply", |bytes| (bytes == reply).then_some(()))
}

#[test]
fn the_node_of_one_backend_answers_for_the_service() -> Result<()> {
    needs!(root());
    let mut rig = Rig::v4("out-arp", &[HERE, THERE])?;
    let wire = Tap::open(&rig.outside, "wire")?;
    wire.send(&who_has().build())?;
    expect_reply(&wire)?;
    rig.set(&[THERE, FAR])?;
    rig.tc(&who_has())?.assert_flooded();
    let syn = Packet::eth(VIP.mac(), CLIENT.mac()).vlan(TAG).ipv4(CLIENT.ip(), VIP.ip()).tcp(4000, 80, SYN);
    assert_eq!(rig.xdp(&syn)?, None);
    rig.tc(&syn)?.assert_dropped(DropReason::NotLocal);
    Ok(())
}

#[test]
fn the_answering_node_stays_while_its_backend_terminates_and_others_come_and_go() -> Result<()> {
    needs!(root());
    let mut rig = Rig::v4("out-speaker", &[HERE, THERE])?;
    let wire = Tap::open(&rig.outside, "wire")?;
    let (here, there) = (rig.port_to(HERE)?, rig.port_to(THERE)?);
    assert_eq!((rig.asked_tcp(here, ACK)?, rig.asked_tcp(there, ACK)?), (HERE, THERE));
    for others in [&[FAR, HERE][..], &[HERE], &[THERE, FAR, HERE]] {
        rig.set(others)?;
        wire.send(&who_has().build())?;
        expect_reply(&wire)?;
    }
    let mut service = web(VIP.ip().into(), [HERE, THERE].map(|endpoint| endpoint.ip().into()));
    service.backends[0].readiness = Readiness::Terminating;
    let object = Object::Service(service);
    rig.node.want(object.clone());
    assert!(rig.node.apply(&[Op::Set(object)])?.is_empty());
    wire.send(&who_has().build())?;
    expect_reply(&wire)?;
    // The backend that terminates keeps its connection and gets no new ones.
    assert_eq!((rig.asked_tcp(here, ACK)?, rig.asked_tcp(there, ACK)?), (HERE, THERE));
    for port in 5000..5020 {
        assert_eq!(rig.asked_tcp(port, SYN)?, THERE);
    }
    Ok(())
}

#[test]
fn solicitations_for_ipv6_services_are_answered() -> Result<()> {
    needs!(root());
    let rig = Rig::v6("out-nd", &[HERE])?;
    let wire = Tap::open(&rig.outside, "wire")?;
    let solicitation = Packet::neighbour_solicitation(CLIENT.mac(), CLIENT.ip6(), VIP.ip6()).build();
    let tag = [0x81, 0, 0, TAG as u8];
    wire.send(&[&solicitation[..12], &tag, &solicitation[12..]].concat())?;
    let [.., a, b, c, d] = VIP.ip6().octets();
    wire.expect(TIMEOUT, "the advertisement", |bytes| {
        (bytes[6..12] == [2, 2, a, b, c, d] && bytes[..6] == CLIENT.mac()).then_some(())
    })?;
    Ok(())
}

#[test]
fn the_backends_node_translates_to_the_selected_pod() -> Result<()> {
    needs!(root());
    // The node does not select a backend: it does not answer for the service.
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
        let answer = |from: Endpoint, from_port| {
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
fn connections_to_an_unknown_service_port_are_rejected() -> Result<()> {
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
fn icmp_errors_are_forwarded_to_the_backend_of_their_connection() -> Result<()> {
    needs!(root());
    let rig = Rig::v4("out-icmp", &[HERE, THERE])?;
    let port = rig.port_to(THERE)?;
    // A router on the path to the client could not forward the reply of the service.
    let answer = Packet::bare().ipv4(VIP.ip(), CLIENT.ip()).tcp(80, port, ACK).build();
    let error = |to: [u8; 6], from: [u8; 6]| {
        let eth = Packet::eth(to, from);
        (eth, |eth: Packet| {
            eth.ipv4([10, 1, 1, 91], VIP.ip()).icmp(3, 4, [0, 0, 5, 0]).payload(&answer[..28])
        })
    };
    // Also without an entry of the connection: a full set of the table has none for it, or another connection took it.
    for _ in 0..2 {
        let (eth, finish) = error(VIP.mac(), CLIENT.mac());
        let outcome = rig.tc(&finish(eth.vlan(TAG)))?;
        let (eth, finish) = error(THERE.mac(), VIP.mac());
        outcome.assert_sent_on(&finish(eth).build());
        assert_eq!(rig.asked_tcp(port, ACK)?, THERE);
    }
    Ok(())
}

#[test]
fn fragments_are_forwarded_to_one_backend() -> Result<()> {
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
fn xdp_passes_all_other_frames() -> Result<()> {
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
    let uplink = rig.node.ifindex("trunk")?;
    for len in 14..whole.len() {
        let program = Xdp::from_pin(rig.node.pin(XDP), XdpAttachType::Interface)?;
        let mut bytes = vec![0; 4096];
        let context = xdp_context(len, uplink);
        let options = TestRunOptions {
            data_in: Some(&whole[..len]),
            data_out: Some(&mut bytes),
            ctx_in: Some(&context),
            ..TestRunOptions::new()
        };
        // The flags are the last field that the program reads.
        let through = if len >= 18 + 20 + 14 { 3 } else { 2 };
        let result = rig.node.ns.run(|| Ok(program.test_run(options)?))?;
        assert_eq!(result.return_value, through, "{len} bytes");
    }
    Ok(())
}
