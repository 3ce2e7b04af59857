use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    task::Poll,
};

use contiv_model::{
    mac::Mac,
    route::NextHop,
    tag::{Encap, Vlan, Vni},
};
use futures::{executor::block_on, poll};
use testkit::packet::{Packet, ethertype, nd_flags};

use super::*;
use crate::datapath::{Backend, Local, Network, Object, Peer, Remote, Scope, Service};

fn vni() -> Vni {
    10_001.try_into().unwrap()
}

fn vlan(tag: u16) -> Vlan {
    tag.try_into().unwrap()
}

fn vxlan() -> Encap {
    Encap::Vxlan { vni: vni(), local: vlan(1) }
}

fn network(name: &str, encap: Encap) -> Object {
    Object::Network(Network::new(name, encap))
}

fn ip(last: u8) -> Ipv4Addr {
    [10, 1, 1, last].into()
}

fn ip6(last: u8) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into())
}

fn mac(last: u8) -> [u8; 6] {
    Mac::of_endpoint(ip(last)).0
}

fn local(encap: Encap, port: &str, last: u8) -> Object {
    let addresses = (ip(last), Some(ip6(last)));
    Object::Local(Local::new(port, &Network::new("n", encap), port, Mac(mac(last)), addresses))
}

fn remote(last: u8) -> Object {
    let addresses = (ip(last), Some(ip6(last)));
    let next_hop = NextHop::Vtep { address: VTEP, vni: vni() };
    Object::Remote(Remote::new("far", &Network::new("n", vxlan()), next_hop, Mac(mac(last)), addresses))
}

const VTEP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 0, 2));

fn peer() -> Object {
    Object::Peer(Peer::new(VTEP, 4789))
}

fn node() -> Desired {
    let objects = [peer(), network("n", vxlan()), remote(3), local(vxlan(), "a", 1), local(vxlan(), "b", 2)];
    objects.into_iter().collect()
}

fn sets(desired: &Desired) -> Vec<Op> {
    desired.iter().map(|(_, object)| Op::Set(object.clone())).collect()
}

/// Returns a datapath whose switch contains `desired`.
fn made(desired: &Desired) -> Fake {
    let mut fake = Fake::new();
    block_on(fake.observe(desired)).unwrap();
    assert!(block_on(fake.apply(&sets(desired))).unwrap().is_empty());
    fake
}

#[test]
fn existing_objects_are_not_written_again() {
    let desired = node();
    let mut fake = made(&desired);
    assert_eq!((fake.writes(), fake.switch().objects()), (5, desired.clone()));
    assert!(block_on(fake.apply(&sets(&desired))).unwrap().is_empty());
    assert!(
        block_on(fake.apply(&[Op::Delete(ObjectId::Local("absent".into())), Op::GarbageCollect]))
            .unwrap()
            .is_empty()
    );
    assert_eq!((fake.writes(), fake.switch().changes().len()), (5, 5));
}

#[test]
fn a_restarted_agent_finds_existing_objects() {
    let desired = node();
    let mut fake = Fake::reopen(made(&desired).switch());
    let observed = block_on(fake.observe(&desired)).unwrap();
    assert_eq!((observed.in_sync.len(), observed.orphans, fake.writes()), (5, 0, 0));
}

#[test]
fn drift_is_observed_and_removed() {
    let mut desired = node();
    let mut fake = made(&desired);
    let switch = fake.switch().clone();
    desired.remove(&ObjectId::Local("b".into()));
    switch.drop_object(&ObjectId::Peer(VTEP));
    switch.put_object(remote(9));
    switch.add_foreign_items(2);
    let observed = block_on(fake.observe(&desired)).unwrap();
    let same = [ObjectId::Network("n".into()), ObjectId::Local("a".into())];
    assert_eq!((observed.in_sync, observed.orphans), (same.into(), 3));

    assert!(
        block_on(fake.apply(&[Op::Set(peer()), Op::Set(remote(3)), Op::GarbageCollect])).unwrap().is_empty()
    );
    assert_eq!((switch.objects(), switch.foreign_items(), fake.writes()), (desired, 0, 5 + 2 + 3));
}

#[test]
fn retained_orphans_stay_until_they_are_deleted_by_name() {
    let mut fake = made(&node());
    let switch = fake.switch().clone();
    switch.add_foreign_items(2);
    fake.retain_orphans(true);
    let observed = block_on(fake.observe(&[peer()].into_iter().collect())).unwrap();
    assert_eq!((observed.in_sync.len(), observed.orphans, observed.retained), (1, 0, 6));
    let ops = [Op::Delete(ObjectId::Local("b".into())), Op::GarbageCollect];
    assert!(block_on(fake.apply(&ops)).unwrap().is_empty());
    assert_eq!((switch.objects().len(), switch.foreign_items()), (4, 2));
    fake.retain_orphans(false);
    let observed = block_on(fake.observe(&[peer()].into_iter().collect())).unwrap();
    assert_eq!((observed.orphans, observed.retained), (5, 0));
    assert!(block_on(fake.apply(&[Op::GarbageCollect])).unwrap().is_empty());
    assert_eq!((switch.objects().len(), switch.foreign_items()), (1, 0));
}

#[test]
fn an_orphan_that_becomes_desired_is_kept() {
    let desired = node();
    let mut fake = made(&desired);
    block_on(fake.observe(&Desired::default())).unwrap();
    assert!(block_on(fake.apply(&[Op::Set(peer()), Op::GarbageCollect])).unwrap().is_empty());
    assert_eq!(fake.switch().objects(), [peer()].into_iter().collect());
}

#[test]
fn injected_faults_fail_single_ops() {
    let mut fake = Fake::new();
    let switch = fake.switch().clone();
    let far = ObjectId::Remote("far".into());
    switch.fail_observe(1);
    assert!(block_on(fake.observe(&node())).is_err());
    block_on(fake.observe(&node())).unwrap();
    switch.fail_object(far.clone());
    switch.remove_interface("b");
    switch.fail_ops(1);
    let failures = block_on(fake.apply(&sets(&node()))).unwrap();
    assert_eq!(failures.iter().map(|failed| failed.index).collect::<Vec<_>>(), [0, 2, 4]);
    assert_eq!(failures[1].error.to_string(), "fake datapath: set remote endpoint far");
    assert_eq!(failures[2].error.source.to_string(), "no interface b");
    assert_eq!(switch.objects().len(), 2);
    switch.clear_faults();
    assert!(block_on(fake.apply(&sets(&node()))).unwrap().is_empty());
    assert_eq!(fake.writes(), 5);
}

#[test]
fn apply_requires_observe_after_an_error() {
    let mut fake = Fake::new();
    let refusal =
        |fake: &mut Fake| block_on(fake.apply(&[Op::GarbageCollect])).unwrap_err().source.to_string();
    assert_eq!(refusal(&mut fake), Fault::NotObserved.to_string());
    block_on(fake.observe(&Desired::default())).unwrap();
    fake.switch().fail_apply(1);
    assert_eq!(refusal(&mut fake), Fault::Injected.to_string());
    assert_eq!(refusal(&mut fake), Fault::NotObserved.to_string());
    block_on(fake.observe(&Desired::default())).unwrap();
    assert!(block_on(fake.apply(&[Op::GarbageCollect])).unwrap().is_empty());
}

#[test]
fn a_resync_request_is_kept_until_it_is_awaited() {
    let mut fake = Fake::new();
    let switch = fake.switch().clone();
    block_on(async {
        assert_eq!(poll!(std::pin::pin!(fake.resync_needed())), Poll::Pending);
        switch.request_resync();
        assert_eq!(poll!(std::pin::pin!(fake.resync_needed())), Poll::Ready(()));
        assert_eq!(poll!(std::pin::pin!(fake.resync_needed())), Poll::Pending);
    });
}

#[test]
fn inspect_lists_objects_and_cleanup_removes_them() {
    let mut fake = made(&node());
    let inside = fake.inspect();
    let ids: Vec<_> = inside["objects"].as_array().unwrap().iter().map(|object| &object["id"]).collect();
    let expected =
        ["peer 192.168.0.2", "network n", "remote endpoint far", "local endpoint a", "local endpoint b"];
    assert_eq!(ids, expected);
    assert_eq!(inside["objects"][3]["mac"], "02:02:0a:01:01:01");
    block_on(fake.cleanup()).unwrap();
    assert!(fake.switch().objects().is_empty());
}

fn pod(port: &str) -> Origin {
    Origin::Pod(port.to_owned())
}

fn to_pod(port: &str, packet: &Packet) -> Delivery {
    Delivery { to: Target::Pod(port.to_owned()), frame: packet.build() }
}

#[test]
fn requests_get_exact_replies() {
    let node = node();
    for owner in [2, 3] {
        let request = Packet::arp_request(mac(1), ip(1), ip(owner)).build();
        let reply = Packet::arp_reply(mac(owner), ip(owner), mac(1), ip(1));
        assert_eq!(deliver(&node, &request, &pod("a")), [to_pod("a", &reply)]);

        let solicitation = Packet::neighbour_solicitation(mac(1), ip6(1), ip6(owner)).build();
        let flags = nd_flags::SOLICITED | nd_flags::OVERRIDE;
        let reply =
            Packet::neighbour_advertisement((mac(1), ip6(1)), (mac(owner), ip6(owner)), mac(owner), flags);
        assert_eq!(deliver(&node, &solicitation, &pod("a")), [to_pod("a", &reply)]);

        let detection = Packet::neighbour_solicitation(mac(1), Ipv6Addr::UNSPECIFIED, ip6(owner)).build();
        let all = ([0x33, 0x33, 0, 0, 0, 1], "ff02::1".parse().unwrap());
        let reply =
            Packet::neighbour_advertisement(all, (mac(owner), ip6(owner)), mac(owner), nd_flags::OVERRIDE);
        assert_eq!(deliver(&node, &detection, &pod("a")), [to_pod("a", &reply)]);
    }
}

#[test]
fn the_outside_gets_replies_for_local_pods_only() {
    let node = node();
    let tunnel = Origin::Tunnel { vtep: VTEP, vni: vni() };
    let ask = |target| Packet::arp_request(mac(3), ip(3), ip(target)).build();
    let answers = deliver(&node, &ask(1), &tunnel);
    let frame = Packet::arp_reply(mac(1), ip(1), mac(3), ip(3)).build();
    assert_eq!(
        answers,
        [Delivery { to: Target::Tunnel { vtep: VTEP, port: 4789, vni: vni(), dscp: 0 }, frame }]
    );
    // Gratuitous ARP, which updates the caches of the pods.
    let gratuitous = Packet::arp_request(mac(3), ip(3), ip(3));
    let copies = deliver(&node, &gratuitous.build(), &tunnel);
    assert_eq!(copies, [to_pod("a", &gratuitous), to_pod("b", &gratuitous)]);
}

#[test]
fn invalid_frames_are_dropped() {
    let node = node();
    let group = [1, 0, 0x5e, 0, 0, 1];
    for frame in [
        Packet::eth(mac(2), mac(1)).vlan(1).payload(b"tagged").build(),
        Packet::eth(mac(2), group).payload(b"from a group").build(),
        Packet::eth([1, 0x80, 0xc2, 0, 0, 0], mac(1)).payload(b"spanning tree").build(),
        Packet::eth(mac(1), mac(1)).payload(b"to itself").build(),
        vec![0; 13],
    ] {
        assert_eq!(deliver(&node, &frame, &pod("a")), []);
    }
    assert_eq!(deliver(&node, &Packet::eth(mac(2), mac(9)).build(), &pod("absent")), []);
    let unknown_peer = Origin::Tunnel { vtep: "192.168.0.9".parse().unwrap(), vni: vni() };
    assert_eq!(deliver(&node, &Packet::eth(mac(2), mac(9)).build(), &unknown_peer), []);
    assert_eq!(deliver(&node, &Packet::eth(mac(2), mac(9)).vlan(1).build(), &Origin::Uplink), []);
}

#[test]
fn the_outer_dscp_is_the_inner_one() {
    for inner in [
        Packet::eth(mac(3), mac(1)).ipv4(ip(1), ip(3)).dscp(46).udp(1, 2),
        Packet::eth(mac(3), mac(1)).ipv6(ip6(1), ip6(3)).dscp(46).udp(1, 2),
    ] {
        let frame = inner.build();
        assert!([ethertype::IPV4, ethertype::IPV6].contains(&u16::from_be_bytes([frame[12], frame[13]])));
        let to = Target::Tunnel { vtep: VTEP, port: 4789, vni: vni(), dscp: 46 };
        assert_eq!(deliver(&node(), &frame, &pod("a")), [Delivery { to, frame }]);
    }
}

#[test]
fn an_endpoint_gets_what_is_sent_to_the_address_of_a_deleted_service() {
    let service = Object::Service(Service {
        ports: vec!["80:8080:UDP".parse().unwrap()],
        backends: vec![Backend::on(vxlan(), ip(2))],
        ..Service::new("web:t", Scope::network(&Network::new("n", vxlan())), ip(9))
    });
    let switch = Switch::default();
    node().iter().for_each(|(_, object)| switch.put_object(object.clone()));
    switch.put_object(service.clone());
    let sent = Packet::eth(mac(9), mac(1)).ipv4(ip(1), ip(9)).udp(4000, 80);
    let translated = Packet::eth(mac(2), mac(1)).ipv4(ip(1), ip(2)).udp(4000, 8080);
    assert_eq!(switch.deliver(&sent.build(), &pod("a")), [to_pod("b", &translated)]);
    // The connection continues until an endpoint has the address.
    assert!(switch.drop_object(&service.id()));
    assert_eq!(switch.deliver(&sent.build(), &pod("a")), [to_pod("b", &translated)]);
    switch.put_object(local(vxlan(), "c", 9));
    assert_eq!(switch.deliver(&sent.build(), &pod("a")), [to_pod("c", &sent)]);
}
