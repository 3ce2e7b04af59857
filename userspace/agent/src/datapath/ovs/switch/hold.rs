//! The flow that lets no frame enter the bridges. If this agent does not remove it, the next one does: alone, or with all flows that
//! belong to no object.

use openflow_rs::{FlowStats, PackedFlow, PackedMod};

use super::session::{self, Session};
use crate::datapath::{
    Error,
    ovs::{bridge::BridgeKind, error::ovs_error, pipeline, tables::cookie::Cookie},
};

/// Lets no frame enter the bridges.
pub(crate) async fn hold(session: &mut Session) -> Result<(), Error> {
    let held = change(session, PackedMod::add).await;
    held.map_err(|error| ovs_error("close the bridges for frames", error))
}

/// Lets frames enter the bridges.
pub(crate) async fn release(session: &mut Session) -> Result<(), Error> {
    let released = change(session, PackedMod::delete).await;
    released.map_err(|error| ovs_error("open the bridges for frames", error))
}

/// Whether no frame enters the bridges: each drops all that arrive, or has lost its flows.
pub(crate) async fn is_held(session: &Session) -> Result<bool, session::Error> {
    for bridge in BridgeKind::ALL {
        let (mut is_empty, mut is_held) = (true, false);
        let visit = |stats: FlowStats| {
            is_empty = false;
            is_held |= stats.flow.cookie == Cookie::HOLD.0;
        };
        let unknown = session.visit_flows(bridge, visit).await?;
        is_empty &= unknown.is_empty();
        if !is_empty && !is_held {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn change(session: &mut Session, change: fn(PackedFlow) -> PackedMod) -> Result<(), session::Error> {
    let flow = PackedFlow::new(&pipeline::drop_all().cookie(Cookie::HOLD.0));
    for bridge in BridgeKind::ALL {
        session.apply(bridge, vec![change(flow.clone()).into()]).await?;
    }
    Ok(())
}
