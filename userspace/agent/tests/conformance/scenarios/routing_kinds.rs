//! VLAN and VXLAN networks of one tenant, all of which the nodes route, but not between the kinds.

use anyhow::Result;
use netplugin::datapath::{Backend, Object, Scope, Service};

use crate::{
    harness::Harness,
    scenarios::routed::{A, A2, B, End, FAR_B, Pair, Routed, TTL, datagrams},
    topology::{pod, to_pod},
    world::World,
};

/// The clients of a service get the backends on networks of the service's kind, whichever others it has.
pub(crate) fn services_have_backends_of_their_own_kind<H: Harness>() -> Result<()> {
    let pair = Pair { one: Routed::vlan("t", 1, 1)?, two: Routed::new("t", 2, 2)? };
    let service = |net: &Routed, vip: End| -> Result<Object> {
        let backends = [(&pair.one, A2), (&pair.two, FAR_B)];
        Ok(Object::Service(Service {
            ports: vec!["53:5353:UDP".parse()?],
            backends: backends.map(|(net, backend)| Backend::on(net.network.encap, backend.ip())).into(),
            ..Service::new(format!("dns{}:t", net.n), Scope::network(&net.network), vip.ip())
        }))
    };
    let (on_vlan, on_vxlan) = (End(1, 200), End(2, 200));
    let services = [service(&pair.one, on_vlan)?, service(&pair.two, on_vxlan)?];
    let mut world = World::<H>::new(pair.objects()?.into_iter().chain(services))?;
    for port in 4000..4020 {
        let [asks, _] = datagrams((on_vlan.mac(), A.mac()), (A, port), (on_vlan, 53), TTL);
        let [asked, _] = datagrams((A2.mac(), A.mac()), (A, port), (A2, 5353), TTL);
        world.sends(&pod("pa"), &asks, [to_pod("pa2", &asked)])?;
        let [asks, _] = datagrams((on_vxlan.mac(), B.mac()), (B, port), (on_vxlan, 53), TTL);
        let [asked, _] = datagrams((FAR_B.mac(), B.mac()), (B, port), (FAR_B, 5353), TTL);
        world.sends(&pod("pb"), &asks, [pair.two.to_node(0, &asked, 0)])?;
    }
    world.check_in_sync()
}
