//! Services that are deleted while clients outside have connections to backends on other nodes.

use netplugin::datapath::ObjectId;

use super::*;

/// The endpoint that gets the address of a deleted service has the service's Ethernet address, too.
#[test]
fn connections_pass_no_endpoint_that_has_their_services_address() -> Result<()> {
    needs!(root());
    let mut rig = Rig::v4("out-ends", &[HERE, THERE])?;
    let datagram = |eth: Packet, port| eth.ipv4(CLIENT.ip(), VIP.ip()).udp(port, 80).payload(b"x");
    let tcp = rig.port_to(THERE)?;
    let udp = (4000..4100).find(|port| rig.asked(|eth| datagram(eth, *port)).is_ok_and(|to| to == THERE));
    let udp = udp.context("no datagram goes to the other node")?;
    assert_eq!((rig.asked_tcp(tcp, ACK)?, rig.asked(|eth| datagram(eth, udp))?), (THERE, THERE));
    let segment = |eth: Packet| eth.ipv4(CLIENT.ip(), VIP.ip()).tcp(tcp, 80, ACK).payload(b"x");
    let packets = |eth: Packet| [segment(eth.clone()), datagram(eth, udp)];
    let sent = packets(Packet::eth(VIP.mac(), CLIENT.mac()).vlan(TAG));
    // Without a backend, connections go on.
    rig.set(&[])?;
    for frame in &sent {
        assert!(rig.xdp(frame)?.is_some());
    }
    let before = rig.noted()?;
    let service = ObjectId::Service("web:t".into());
    rig.node.desired.remove(&service);
    ensure!(rig.node.apply(&[Op::Delete(service)])?.is_empty());
    for frame in &sent {
        assert_eq!(rig.xdp(frame)?, None);
        rig.tc(frame)?.assert_dropped(DropReason::NotLocal);
    }
    assert_eq!(rig.noted()?, before, "the service may come again");
    let _endpoint = rig.node.pod(&network("n1.t", vlan(TAG)), VIP)?;
    rig.node.converge()?;
    for (frame, arrives) in sent.iter().zip(packets(Packet::eth(VIP.mac(), CLIENT.mac()))) {
        assert_eq!(rig.xdp(frame)?, None);
        rig.tc(frame)?.assert_sent_on(&arrives.build());
    }
    Ok(())
}
