//! Next-hop resolution of tunnels in the userspace datapath.
//!
//! The userspace datapath resolves the next hop of a tunnel when the first frame is sent through it, and drops that
//! frame. This module sends a test frame through each tunnel after its creation and at each observation: the resolved
//! entries expire (`tnl/neigh/aging`, 15 minutes). Tunnels of the kernel datapath queue the frame instead.

use openflow_rs::{Action, Port, message::Body, packet::PacketOut};

use super::session::Session;
use crate::datapath::ovs::bridge::BridgeKind;

/// Test frame: EtherType 0x88b5 (local experimental), VNI 0. No network has VNI 0, so the peer drops the frame.
const TEST_FRAME: [u8; 60] = {
    let mut frame = [0; 60];
    (frame[0], frame[6]) = (0x02, 0x02);
    (frame[12], frame[13]) = (0x88, 0xb5);
    frame
};

/// Sends a test frame through the tunnels with these port numbers. A failure is logged only: the tunnels work, except
/// that their first frame is lost.
pub(crate) async fn resolve_next_hops(session: &Session, ports: impl IntoIterator<Item = u32>) {
    let Some(bridge) = session.bridge(BridgeKind::Vxlan) else { return };
    let frame = |port| {
        let actions = vec![Action::output(port)];
        Body::PacketOut(PacketOut { in_port: Port::CONTROLLER, actions, data: TEST_FRAME.to_vec() })
    };
    let frames: Vec<_> = ports.into_iter().map(frame).collect();
    if frames.is_empty() {
        return;
    }
    if let Err(error) = bridge.send_all(frames, |_| "send test frame to a peer".into()).await {
        tracing::debug!("resolve next hops of tunnels: {error}");
    }
}
