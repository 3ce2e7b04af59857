//! The cluster's pools of VLANs and VNIs in the store.

use contiv_model::{global, group, network};

use super::network_record::network_record;
use crate::cache::{ClusterCache, Entry, ONLY, StagedTxn};
use crate::problem::Problem;
use crate::tags::{Range, Vlans, Vxlans};

/// Current pools of VLANs and VNIs. Fails while the global settings do not exist.
pub fn pools(staged: &StagedTxn<'_>) -> Result<(Vlans, Vxlans), Problem> {
    let ready = |what| Problem::conflict(format!("Global configuration is not ready: {what}"));
    let missing = || ready("global configuration is not ready");
    let vlans = staged.get::<global::VlanPool>(ONLY).ok_or_else(missing)?;
    let vlans_oper = staged.get::<global::VlanPoolOper>(ONLY).ok_or_else(missing)?;
    let vxlans = staged.get::<global::VxlanPool>(ONLY).ok_or_else(missing)?;
    let vxlans_oper = staged.get::<global::VxlanPoolOper>(ONLY).ok_or_else(missing)?;
    let start = staged.get::<global::Oper>(ONLY).map_or(0, |oper| oper.free_vxlans_start);
    Ok((Vlans::read(&vlans, &vlans_oper), Vxlans::read(&vxlans, &vxlans_oper, start)))
}

pub fn put_vlans(vlans: &Vlans, staged: &mut StagedTxn<'_>) {
    let (pool, oper) = vlans.records();
    put_changed(pool, staged);
    put_changed(oper, staged);
}

pub fn put_vxlans(vxlans: &Vxlans, staged: &mut StagedTxn<'_>) {
    let (pool, oper) = vxlans.records();
    put_changed(pool, staged);
    put_changed(oper, staged);
    let old = staged.get::<global::Oper>(ONLY).map(|oper| (*oper).clone()).unwrap_or_default();
    let start = vxlans.start();
    if staged.get::<global::Oper>(ONLY).is_none() || old.free_vxlans_start != start {
        staged.put(ONLY, global::Oper { free_vxlans_start: start, ..old });
    }
}

fn put_changed<T: Entry + PartialEq>(value: T, staged: &mut StagedTxn<'_>) {
    if staged.get::<T>(ONLY).is_none_or(|old| *old != value) {
        staged.put(ONLY, value);
    }
}

/// New pools in which the tags of existing networks and groups are allocated. Needed because the
/// settings can be deleted and created again while networks exist.
pub fn pools_with_networks(
    cache: &ClusterCache,
    vlans: Range,
    vxlans: Range,
) -> Result<(Vlans, Vxlans), Problem> {
    let (mut vlan_pool, mut vxlan_pool) = (Vlans::new(vlans), Vxlans::new(vxlans));
    for record in cache.allocations::<network::State>() {
        let body = &record.body;
        let (kind, tag, claimed) = match body.pkt_tag_type.as_str() {
            "vlan" => ("vlan", body.pkt_tag, vlan_pool.take(body.pkt_tag).is_ok()),
            _ => ("vxlan", body.ext_pkt_tag, vxlan_pool.claim(body.ext_pkt_tag, body.pkt_tag)),
        };
        if !claimed {
            let error = format!("cannot update the {kind} range due to existing {kind}s {tag}");
            return Err(Problem::conflict(error));
        }
    }
    for group in cache.allocations::<group::State>().map(|record| &record.body) {
        let network = network_record(cache, &group.tenant_name, &group.network_name);
        let tag = group.pkt_tag;
        if network.is_some_and(|network| has_own_vlan(group, &network.body)) && vlan_pool.take(tag).is_err() {
            let error = format!("cannot update the vlan range due to existing vlans {tag}");
            return Err(Problem::conflict(error));
        }
    }
    Ok((vlan_pool, vxlan_pool))
}

/// Whether the group has a VLAN other than the network's.
pub fn has_own_vlan(group: &group::State, network: &network::State) -> bool {
    group.pkt_tag_type == "vlan" && group.pkt_tag != network.pkt_tag
}
