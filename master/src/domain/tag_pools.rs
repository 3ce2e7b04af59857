//! The cluster's pools of VLANs and VNIs, as the store has them.

use contiv_model::{global, group, network};

use crate::cache::{Draft, ONLY, Record, World};
use crate::problem::Problem;
use crate::tags::{Range, Vlans, Vxlans};

/// The pools of tags as they are.
pub fn pools(draft: &Draft<'_>) -> Result<(Vlans, Vxlans), Problem> {
    let ready = |what| Problem::conflict(format!("Global configuration is not ready: {what}"));
    let missing = || ready("global configuration is not ready");
    let vlans = draft.get::<global::VlanPool>(ONLY).ok_or_else(missing)?;
    let vlans_oper = draft.get::<global::VlanPoolOper>(ONLY).ok_or_else(missing)?;
    let vxlans = draft.get::<global::VxlanPool>(ONLY).ok_or_else(missing)?;
    let vxlans_oper = draft.get::<global::VxlanPoolOper>(ONLY).ok_or_else(missing)?;
    let start = draft.get::<global::Oper>(ONLY).map_or(0, |oper| oper.free_vxlans_start);
    Ok((Vlans::read(&vlans, &vlans_oper), Vxlans::read(&vxlans, &vxlans_oper, start)))
}

pub fn put_vlans(vlans: &Vlans, draft: &mut Draft<'_>) {
    let (pool, oper) = vlans.records();
    put_changed(pool, draft);
    put_changed(oper, draft);
}

pub fn put_vxlans(vxlans: &Vxlans, draft: &mut Draft<'_>) {
    let (pool, oper) = vxlans.records();
    put_changed(pool, draft);
    put_changed(oper, draft);
    let old = draft.get::<global::Oper>(ONLY).map(|oper| (*oper).clone()).unwrap_or_default();
    let start = vxlans.start();
    if draft.get::<global::Oper>(ONLY).is_none() || old.free_vxlans_start != start {
        draft.put(ONLY, global::Oper { free_vxlans_start: start, ..old });
    }
}

fn put_changed<T: Record + PartialEq>(value: T, draft: &mut Draft<'_>) {
    if draft.get::<T>(ONLY).is_none_or(|old| *old != value) {
        draft.put(ONLY, value);
    }
}

/// New pools, in which the networks that exist have their tags: the settings may be deleted and made again while
/// there are networks.
pub fn pools_with_networks(world: &World, vlans: Range, vxlans: Range) -> Result<(Vlans, Vxlans), Problem> {
    let (mut vlan_pool, mut vxlan_pool) = (Vlans::new(vlans), Vxlans::new(vxlans));
    for ledger in world.ledgers::<network::State>() {
        let body = &ledger.body;
        let (kind, tag, claimed) = match body.pkt_tag_type.as_str() {
            "vlan" => ("vlan", body.pkt_tag, vlan_pool.take(body.pkt_tag).is_ok()),
            _ => ("vxlan", body.ext_pkt_tag, vxlan_pool.claim(body.ext_pkt_tag, body.pkt_tag)),
        };
        if !claimed {
            let error = format!("cannot update the {kind} range due to existing {kind}s {tag}");
            return Err(Problem::conflict(error));
        }
    }
    for group in world.ledgers::<group::State>().map(|ledger| &ledger.body) {
        let network =
            world.ledger::<network::State>(&format!("{}.{}", group.network_name, group.tenant_name));
        let tag = group.pkt_tag;
        if network.is_some_and(|network| has_own_vlan(group, &network.body)) && vlan_pool.take(tag).is_err() {
            let error = format!("cannot update the vlan range due to existing vlans {tag}");
            return Err(Problem::conflict(error));
        }
    }
    Ok((vlan_pool, vxlan_pool))
}

/// The group has a VLAN of its own, which is not the network's.
pub fn has_own_vlan(group: &group::State, network: &network::State) -> bool {
    group.pkt_tag_type == "vlan" && group.pkt_tag != network.pkt_tag
}
