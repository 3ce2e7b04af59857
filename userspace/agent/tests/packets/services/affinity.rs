//! Session affinity on several ports of a service.

use std::ops::Range;

use contiv_model::service::Protocol;

use super::*;

const PORTS: Range<u16> = 80..84;

/// A service with session affinity and [`PORTS`]; `target` is added to each for the target port.
fn sticky(vip: IpAddr, target: u16, backends: impl Iterator<Item = IpAddr>) -> Service {
    let ready: Vec<_> = backends.map(|ip| (ip, Readiness::Ready)).collect();
    let port = |port: u16| Port { protocol: Protocol::Tcp, port, target: target + port };
    Service {
        ports: PORTS.map(port).collect(),
        affinity: Some(Duration::from_secs(600)),
        ..service(vip, &ready)
    }
}

/// All connections of a client go to one backend, whichever port of the service they are for, and also when the target ports
/// change: the choice of a backend, which depends on its port, is made once.
#[test]
fn a_client_has_one_backend_on_all_ports() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("svc-ports", &[])?;
    let n1 = network("n1.t", vxlan(10_001));
    let all: Vec<Endpoint> = (100..170).map(Endpoint).collect();
    for endpoint in &all {
        rig.node.want(Object::Remote(endpoint.remote(&n1, Some(vtep(2)))));
    }
    rig.node.converge()?;
    // In the entry, in a list, and in a list with a ring.
    for (vip, size) in (200..).map(Endpoint).zip([3, 12, 70]) {
        for ip6 in [false, true] {
            let address = |endpoint: &Endpoint| -> IpAddr {
                if ip6 { endpoint.ip6().into() } else { endpoint.ip().into() }
            };
            let mut known = None;
            for target in [8000, 9000] {
                let service = sticky(address(&vip), target, all[..size].iter().map(address));
                let id = format!("s{}-{ip6}:t", vip.0);
                let object = Object::Service(Service { id: id.as_str().into(), ..service });
                assert!(rig.node.apply(&[Op::Set(object)])?.is_empty());
                for port in PORTS {
                    let backend = asked(&rig, address(&vip), (target, port))?;
                    assert_eq!(*known.get_or_insert(backend), backend, "{vip:?}, IPv6 {ip6}, port {port}");
                }
            }
        }
    }
    Ok(())
}

/// Last byte of the address of the backend that a connection of the client with these ports goes to.
fn asked(rig: &Rig, vip: IpAddr, (from, to): (u16, u16)) -> Result<u8> {
    let eth = Packet::eth(Mac::of_service(vip).0, HERE.mac());
    let (packet, last) = match vip {
        IpAddr::V4(ip) => (eth.ipv4(HERE.ip(), ip), 14 + 19),
        IpAddr::V6(ip) => (eth.ipv6(HERE.ip6(), ip), 14 + 39),
    };
    let outcome = rig.from(HERE, &packet.tcp(from, to, SYN))?;
    assert_eq!((outcome.code, outcome.dropped), (Code::Redirect, vec![]));
    Ok(outcome.bytes[last])
}
