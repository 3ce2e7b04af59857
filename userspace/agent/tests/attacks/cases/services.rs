//! Services lead to a backend that the rules deny: they are judged by the backend.

use std::net::IpAddr;

use testkit::packet::{BROADCAST, Packet, tcp_flags};

use crate::{
    attack::{Attack, POD, Step, V4},
    node::topology,
    rules::{PORT, SERVICE_PORT, WITNESS, vip},
    scene::{PAYLOAD, Scene},
};

pub(super) fn attacks() -> Vec<Attack> {
    let attacks = [
        attack("datagram", |s| vec![s.send(&datagram(to_service(s)(), s))]),
        attack("SYN", |s| vec![s.send(&to_service(s)().tcp(s.sport(), SERVICE_PORT, tcp_flags::SYN))]),
        attack("segment without SYN", |s| {
            vec![s.send(&to_service(s)().tcp(s.sport(), SERVICE_PORT, tcp_flags::ACK))]
        }),
        attack("fragments", |s| {
            let headers = || to_service(s)().protocol(17);
            vec![
                s.send(&datagram(headers().fragment(s.id(), 0, true), s)),
                s.send(&headers().fragment(s.id(), 4, false).payload(PAYLOAD)),
            ]
        }),
        attack("datagram in a broadcast frame", |s| {
            vec![s.send(&datagram(s.ip_to(BROADCAST, address(s)), s))]
        }),
        attack("datagram in a frame to the victim", |s| {
            vec![s.send(&datagram(s.ip_to(s.victim.mac(), address(s)), s))]
        }),
        attack("datagram in a frame to another pod", |s| {
            vec![s.send(&datagram(s.ip_to(WITNESS.mac(), address(s)), s))]
        }),
        attack("datagram, then another without the service", |s| {
            vec![
                s.send(&datagram(to_service(s)(), s)),
                s.send(&s.datagram()),
                s.send(&datagram(to_service(s)(), s)),
            ]
        }),
        attack("datagram to the backend's port", |s| {
            vec![s.send(&to_service(s)().udp(s.sport(), PORT).payload(PAYLOAD))]
        }),
        attack("echo request", |s| vec![s.send(&s.echo(to_service(s)()))]),
    ];
    attacks.into_iter().collect()
}

fn attack(name: &str, hostile: fn(&Scene) -> Vec<Step>) -> Attack {
    let defect = if name.contains("broadcast") { "E1" } else { "held" };
    Attack::new(defect, format!("through a service: {name}"), hostile)
        .from(POD)
        .by(V4)
        .honest(|s| vec![s.send(&datagram(to_service(s)(), s)).reaches()])
}

fn address(s: &Scene) -> IpAddr {
    vip(s.victim).into()
}

/// Headers to the address of the victim's service.
fn to_service<'a>(s: &'a Scene) -> impl Fn() -> Packet + 'a {
    move || s.ip_to(topology::mac(s.victim.last + 100), address(s))
}

fn datagram(headers: Packet, s: &Scene) -> Packet {
    headers.udp(s.sport(), SERVICE_PORT).payload(PAYLOAD)
}
