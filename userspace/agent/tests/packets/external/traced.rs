//! Traces of what clients outside send to a service.

use contiv_model::{
    tag::Vlan,
    trace::{self, Egress, Query, Verdict},
};
use netplugin::datapath::trace::{Findings, Probe};

use super::*;
use crate::node::runtime;

fn follow(rig: &Rig, query: &Query) -> Result<Findings> {
    let probe = Probe::resolve(&rig.node.desired, query)?;
    rig.node.ns.run(|| Ok(runtime()?.block_on(rig.node.datapath.trace(probe))?))
}

#[test]
fn a_packet_for_a_backend_on_another_node_leaves_by_the_uplink() -> Result<()> {
    needs!(root());
    let rig = Rig::v4("out-trace", &[HERE, THERE])?;
    let uplink: Vlan = TAG.try_into()?;
    let ingress = trace::Ingress::Uplink { vlan: uplink };
    let to_service = Query {
        source_port: rig.port_to(THERE)?,
        source_mac: Some(Mac(CLIENT.mac())),
        ..crate::traced::query(ingress, CLIENT.ip().into(), VIP.ip().into(), 80)
    };
    let findings = follow(&rig, &to_service)?;
    let (steps, outputs) = crate::traced::summary(&findings);
    assert_eq!(outputs, [Egress::Uplink { vlan: uplink }], "{steps:#?}");
    assert_eq!(findings.steps.last().unwrap().verdict, Verdict::Pass, "{steps:#?}");
    let packet = findings.outputs[0].packet.as_ref().unwrap();
    assert_eq!((packet.destination_mac, packet.destination), (Mac(THERE.mac()), IpAddr::from(VIP.ip())));
    // A refusal is an answer.
    let refused = follow(&rig, &Query { destination_port: 81, ..to_service })?;
    let (steps, outputs) = crate::traced::summary(&refused);
    assert_eq!(outputs, [Egress::Answer], "{steps:#?}");
    assert_eq!(refused.steps.last().unwrap().verdict, Verdict::Drop, "{steps:#?}");
    Ok(())
}
