//! Pods whose endpoint is deleted while they run.

use std::{io, net::UdpSocket, time::Duration};

use anyhow::Result;
use contiv_abi::ABI_VERSION;
use contiv_model::mac::Mac;
use netplugin::datapath::{Datapath as _, Object, ObjectId, Op, ebpf::Options};
use testkit::{capture::Tap, needs, packet::Packet, wait_until};

use crate::node::{Endpoint, Node, network, vxlan};

const TIMEOUT: Duration = Duration::from_secs(10);
const HOST_END: Endpoint = Endpoint(250);
const PORT: u16 = 9000;

/// When the endpoint is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deleted {
    WhileRunning,
    BeforeStart,
    /// Its programs are of another version than the agent.
    BeforeUpgrade,
}

/// Packets to the host end of the pod's veth pair are those that the node would take, or route.
#[test]
fn a_pod_without_an_endpoint_does_not_reach_the_node() -> Result<()> {
    needs!(root(), binary("ping"));
    let modes: [fn(&mut Options); 2] = [|_| {}, Node::clsact];
    for adjust in modes {
        let mut node = Node::with("deleted", adjust)?;
        let n1 = network("n1.t", vxlan(10_001));
        node.want_network(&n1);
        let (pod, other) = (node.pod(&n1, Endpoint(1))?, node.pod(&n1, Endpoint(2))?);
        let (port, id) = (pod.local.port.clone(), ObjectId::Local(pod.local.id.clone()));
        node.ns.mac(&port, &Mac(HOST_END.mac()).to_string())?;
        node.ns.address(&port, &format!("{}/24", HOST_END.ip()))?;
        let socket = node.ns.run(|| Ok(UdpSocket::bind((HOST_END.ip(), PORT))?))?;
        socket.set_nonblocking(true)?;
        let arrives = || match socket.recv(&mut [0; 64]) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        };
        let frame = Packet::eth(HOST_END.mac(), Endpoint(1).mac())
            .ipv4(Endpoint(1).ip(), HOST_END.ip())
            .udp(5000, PORT)
            .build();
        let tap = Tap::open(&pod.ns, "eth0")?;
        // The control: no program is attached yet.
        tap.send(&frame)?;
        wait_until(TIMEOUT, "the packet", || Ok(arrives()?.then_some(())))?;

        node.converge()?;
        assert!(pod.ns.ping(other.ip(), 3, Duration::from_millis(10))?.received > 0);
        for deleted in [Deleted::WhileRunning, Deleted::BeforeStart, Deleted::BeforeUpgrade] {
            if deleted == Deleted::WhileRunning {
                assert!(node.apply(&[Op::Delete(id.clone())])?.is_empty());
            } else {
                node.desired.remove(&id);
                if deleted == Deleted::BeforeUpgrade {
                    node.options.abi_version = ABI_VERSION + 1;
                }
                node.restart();
                node.converge()?;
            }
            tap.send(&frame)?;
            node.want(Object::Local(pod.local.clone()));
            node.converge()?;
            tap.send(&frame)?;
            wait_until(TIMEOUT, "pings", || {
                let ping = pod.ns.ping(other.ip(), 3, Duration::from_millis(10))?;
                Ok((ping.received > 0).then_some(()))
            })?;
            assert!(!arrives()?, "{deleted:?}");
            // A restart changes nothing.
            node.restart();
            node.converge()?;
            assert_eq!(node.datapath.writes(), 0);
        }
    }
    Ok(())
}
