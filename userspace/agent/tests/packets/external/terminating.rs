//! Packets without a flow that another node has forwarded to a backend before it learned that the backend terminates.

use super::*;

/// Headers of a packet from the client to an endpoint or to the service.
type Headers = fn(Packet, Endpoint) -> Packet;

impl Rig {
    /// Sets the service with the backend that is here in this state, or without it.
    fn set_here(&mut self, service: &Service, readiness: Option<Readiness>) -> Result<()> {
        let mut service = service.clone();
        let is_here = |backend: &Backend| backend.ip == HERE.ip() || backend.ip == HERE.ip6();
        service.backends.retain(|backend| readiness.is_some() || !is_here(backend));
        for backend in service.backends.iter_mut().filter(|backend| is_here(backend)) {
            backend.readiness = readiness.unwrap_or(Readiness::Ready);
        }
        self.node.want(Object::Service(service));
        self.node.converge()
    }

    /// A packet that another node has forwarded to the pod.
    fn arrives(&self, headers: Headers, port: u16, flags: u8) -> Result<Outcome> {
        self.tc(&headers(Packet::eth(HERE.mac(), VIP.mac()).vlan(TAG), VIP).tcp(port, 80, flags))
    }
}

fn check(rig: &mut Rig, service: &Service, headers: Headers) -> Result<()> {
    let translated =
        |port, flags| headers(Packet::eth(HERE.mac(), VIP.mac()), HERE).tcp(port, 8080, flags).build();
    rig.set_here(service, Some(Readiness::Terminating))?;
    for (port, flags) in [(4100, SYN), (4101, ACK)] {
        rig.arrives(headers, port, flags)?.assert_sent_on(&translated(port, flags));
    }
    rig.set_here(service, Some(Readiness::Ready))?;
    rig.arrives(headers, 4102, SYN)?.assert_sent_on(&translated(4102, SYN));
    // Without another backend, too.
    let mut alone = service.clone();
    alone.backends.truncate(1);
    rig.set_here(&alone, Some(Readiness::Terminating))?;
    rig.arrives(headers, 4103, ACK)?.assert_sent_on(&translated(4103, ACK));
    // It is no backend any more.
    rig.set_here(service, None)?;
    for (port, flags) in [(4104, SYN), (4105, ACK)] {
        rig.arrives(headers, port, flags)?.assert_dropped(DropReason::StrangeBackend);
    }
    Ok(())
}

#[test]
fn a_terminating_backend_gets_what_another_node_has_forwarded() -> Result<()> {
    needs!(root());
    let service = web(VIP.ip().into(), [HERE, THERE].map(|endpoint| endpoint.ip().into()));
    let mut rig = Rig::new("out-late", service.clone())?;
    check(&mut rig, &service, |eth, to| eth.ipv4(CLIENT.ip(), to.ip()))?;
    let service = web(VIP.ip6().into(), [HERE, THERE].map(|endpoint| endpoint.ip6().into()));
    let mut rig = Rig::new("out-late-6", service.clone())?;
    check(&mut rig, &service, |eth, to| eth.ipv6(CLIENT.ip6(), to.ip6()))
}

/// More backends than an entry has room for are in a list.
#[test]
fn many_backends_terminate() -> Result<()> {
    needs!(root());
    let others = (100..120).map(Endpoint);
    let service = web(VIP.ip().into(), [HERE].into_iter().chain(others).map(|endpoint| endpoint.ip().into()));
    let mut rig = Rig::new("out-late-n", service.clone())?;
    let mut terminating = service.clone();
    terminating.backends.iter_mut().for_each(|backend| backend.readiness = Readiness::Terminating);
    rig.set_here(&terminating, Some(Readiness::Terminating))?;
    let headers: Headers = |eth, to| eth.ipv4(CLIENT.ip(), to.ip());
    let expected = headers(Packet::eth(HERE.mac(), VIP.mac()), HERE).tcp(4100, 8080, ACK);
    rig.arrives(headers, 4100, ACK)?.assert_sent_on(&expected.build());
    // The agent adopts what it has written.
    let observed = rig.node.observe()?;
    assert_eq!(rig.node.desired.iter().filter(|(id, _)| !observed.in_sync.contains(id)).count(), 0);
    Ok(())
}
