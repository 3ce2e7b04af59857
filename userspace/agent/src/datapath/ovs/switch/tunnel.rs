//! Tunnels that are ready before they are needed.
//!
//! A userspace switch resolves the next hop of a tunnel by itself, when a first frame wants to go through
//! it, and drops that frame. So a tunnel is sent a frame that nobody misses: when it is made, and at each
//! observation, because what the switch has learned ages (`tnl/neigh/aging`, 15 minutes). A kernel's
//! tunnels queue the frame instead, and need none of this.

use openflow_rs::{Action, Port, message::Body, packet::PacketOut};

use super::session::Session;
use crate::datapath::ovs::{DatapathType, Ovs, pipeline::Side};

/// Of the EtherType for local experiments, from and to nobody. It carries VNI 0, which no network has,
/// so that the other end drops it.
const FRAME: [u8; 60] = {
    let mut frame = [0; 60];
    (frame[0], frame[6]) = (0x02, 0x02);
    (frame[12], frame[13]) = (0x88, 0xb5);
    frame
};

impl Ovs {
    /// Has the switch find its way to these peers, given by the numbers of their ports.
    pub(crate) async fn find_way(&self, session: &Session, ports: impl IntoIterator<Item = u32>) {
        let Some(bridge) = session.bridge(Side::Vxlan) else { return };
        if self.options.datapath_type != DatapathType::Netdev {
            return;
        }
        let frame = |port| {
            let actions = vec![Action::output(port)];
            Body::PacketOut(PacketOut { in_port: Port::CONTROLLER, actions, data: FRAME.to_vec() })
        };
        let frames: Vec<_> = ports.into_iter().map(frame).collect();
        if frames.is_empty() {
            return;
        }
        // The tunnels work all the same, save for their first frame; a connection that is lost is met
        // by the next request that matters.
        if let Err(error) = bridge.send_all(frames, |_| "packet-out to a peer".into()).await {
            tracing::debug!("find the way to other nodes: {error}");
        }
    }
}
