//! The cluster's settings.

use contiv_model::api::{Bgp, Global, GlobalOper, Tenant};
use contiv_model::global;
use contiv_model::key::ObjectType;

use super::{Cluster, Object};
use crate::cache::{Draft, ONLY, Record, World};
use crate::domain::attachment::restore_policies;
use crate::domain::fabric;
use crate::domain::tag_pools::{pools, pools_with_networks, put_vlans, put_vxlans};
use crate::problem::Problem;
use crate::schema::{Form, Member, Shape, Type, format};
use crate::tags::{Range, Vlans, Vxlans, list};

static SHAPE: Shape = Shape {
    go_type: "contivModel.Global",
    members: &[
        Member::any("key", Type::Text),
        Member::text("arpMode", 64, Form::Words(&["", "proxy", "flood"])),
        Member::text("fwdMode", 64, Form::Words(&["", "bridge", "routing"])),
        Member::text("name", 64, Form::Words(&["global"])),
        Member::text("networkInfraType", 64, Form::Words(&["", "aci", "aci-opflex", "default"])),
        Member::text("pvtSubnet", usize::MAX, format::PRIVATE_SUBNET),
        Member::text("vlans", usize::MAX, format::VLAN_RANGE),
        Member::text("vxlans", usize::MAX, format::VXLAN_RANGE),
    ],
};

/// The only one's key.
pub(super) const KEY: &str = "global";
impl Object for Global {
    const KIND: ObjectType = ObjectType::Global;
    const SHAPE: &'static Shape = &SHAPE;
    const KEY: &'static [&'static str] = &["name"];
    type Oper = GlobalOper;

    fn key(&self) -> &str {
        &self.key
    }

    fn create(self, draft: &mut Draft<'_>) -> Result<Self, Problem> {
        let (vlans, vxlans) = (Range::vlans(&self.vlans)?, Range::vxlans(&self.vxlans)?);
        let (vlans, vxlans) = pools_with_networks(draft.world(), vlans, vxlans)?;
        draft.put(
            ONLY,
            global::Config {
                id: String::new(),
                nw_infra_type: self.network_infra_type.clone(),
                fwd_mode: self.fwd_mode.clone(),
                arp_mode: self.arp_mode.clone(),
                pvt_subnet: self.pvt_subnet.clone(),
            },
        );
        put_ranges(&self, draft);
        put_vlans(&vlans, draft);
        put_vxlans(&vxlans, draft);
        draft.put(&self.key, self.clone());
        Ok(self)
    }

    fn update(self, old: &Self, draft: &mut Draft<'_>) -> Result<(), Problem> {
        let pools = pools(draft)?;
        let unused = |what: &str| match in_use(&pools) {
            Some(networks) => {
                Err(Problem::conflict(format!("Unable to update {what} due to existing {networks}")))
            }
            None => Ok(()),
        };
        if self.fwd_mode != old.fwd_mode {
            unused("forwarding mode")?;
            if old.fwd_mode == "routing" && draft.world().all::<Bgp>().next().is_some() {
                return Err(Problem::conflict("please delete existing Bgp configs"));
            }
        }
        let (vlans, vxlans) = (Range::vlans(&self.vlans)?, Range::vxlans(&self.vxlans)?);
        let vlans = (self.vlans != old.vlans).then(|| pools.0.with_range(vlans)).transpose()?;
        let vxlans = (self.vxlans != old.vxlans).then(|| pools.1.with_range(vxlans)).transpose()?;
        if self.pvt_subnet != old.pvt_subnet {
            unused("private subnet")?;
        }

        // An empty text leaves the agents' setting as it is.
        let config = draft.get::<global::Config>(ONLY).map(|c| (*c).clone()).unwrap_or_default();
        let or = |new: &String, old: String| if new.is_empty() { old } else { new.clone() };
        let changed = global::Config {
            id: config.id.clone(),
            nw_infra_type: or(&self.network_infra_type, config.nw_infra_type.clone()),
            fwd_mode: or(&self.fwd_mode, config.fwd_mode.clone()),
            arp_mode: or(&self.arp_mode, config.arp_mode.clone()),
            pvt_subnet: or(&self.pvt_subnet, config.pvt_subnet.clone()),
        };
        if changed != config {
            let was_aci = fabric::is_on(draft);
            draft.put(ONLY, changed);
            if fabric::is_on(draft) != was_aci {
                restore_policies(draft);
            }
        }
        if vlans.is_some() || vxlans.is_some() {
            put_ranges(&self, draft);
        }
        if let Some(vlans) = vlans {
            put_vlans(&vlans, draft);
        }
        if let Some(vxlans) = vxlans {
            put_vxlans(&vxlans, draft);
        }
        draft.put(&self.key.clone(), self);
        Ok(())
    }

    fn delete(&self, draft: &mut Draft<'_>) -> Result<(), Problem> {
        delete_only::<global::Config>(draft);
        delete_only::<global::State>(draft);
        delete_only::<global::Oper>(draft);
        delete_only::<global::VlanPool>(draft);
        delete_only::<global::VlanPoolOper>(draft);
        delete_only::<global::VxlanPool>(draft);
        delete_only::<global::VxlanPoolOper>(draft);
        Ok(())
    }

    fn oper(&self, world: &World, cluster: &Cluster) -> Option<GlobalOper> {
        let oper = world.get::<global::Oper>(ONLY).cloned().unwrap_or_default();
        let (vlans, vxlans) = match pools(&Draft::new(world)) {
            Ok((vlans, vxlans)) => (vlans.used().collect(), vxlans.used().collect()),
            Err(_) => (vec![], vec![]),
        };
        Some(GlobalOper {
            cluster_mode: cluster.mode.clone(),
            default_network: oper.default_network,
            free_vxlans_start: oper.free_vxlans_start,
            num_networks: (vlans.len() + vxlans.len()) as i64,
            vlans_in_use: list(vlans.into_iter()),
            vxlans_in_use: list(vxlans.into_iter()),
        })
    }
}

/// `9 vlans and 2 vxlans`, or none.
fn in_use((vlans, vxlans): &(Vlans, Vxlans)) -> Option<String> {
    let counted = |n: usize, what: &str| (n > 0).then(|| format!("{n} {what}"));
    let parts = [counted(vlans.used().count(), "vlans"), counted(vxlans.used().count(), "vxlans")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(" and "))
}

fn put_ranges(global: &Global, draft: &mut Draft<'_>) {
    let auto = global::TagRanges { vlans: global.vlans.clone(), vxlans: global.vxlans.clone() };
    draft.put(ONLY, global::State { id: String::new(), auto });
}

fn delete_only<T: Record>(draft: &mut Draft<'_>) {
    if draft.get::<T>(ONLY).is_some() {
        draft.delete::<T>(ONLY);
    }
}

/// What a netmaster puts into a store that has no settings yet.
#[derive(Clone, Debug)]
pub struct Defaults {
    /// `--infra`.
    pub infra: String,
    /// `--fwdmode`.
    pub fwd_mode: String,
}

impl Defaults {
    /// The settings and the tenant `default`, the first time. Never again: the settings are the user's, and the
    /// tenant may be deleted.
    pub fn put(&self, draft: &mut Draft<'_>) -> Result<(), Problem> {
        if let Some(global) = draft.get::<Global>(KEY) {
            if !global.fwd_mode.is_empty() && global.fwd_mode != self.fwd_mode {
                tracing::warn!(
                    store = global.fwd_mode,
                    flag = self.fwd_mode,
                    "the forwarding mode in the store stays; `netctl global set --fwd-mode` changes it while there \
                     are no networks"
                );
            }
            if !global.network_infra_type.is_empty() && global.network_infra_type != self.infra {
                tracing::warn!(
                    store = global.network_infra_type,
                    flag = self.infra,
                    "the infrastructure type in the store stays; `netctl global set --fabric-mode` changes it"
                );
            }
            return Ok(());
        }
        let global = Global {
            key: KEY.into(),
            name: KEY.into(),
            arp_mode: "proxy".into(),
            fwd_mode: self.fwd_mode.clone(),
            network_infra_type: self.infra.clone(),
            pvt_subnet: "172.19.0.0/16".into(),
            vlans: "1-4094".into(),
            vxlans: "1-10000".into(),
        };
        global.create(draft)?;
        let name = "default";
        if draft.get::<Tenant>(name).is_none() {
            Tenant { key: name.into(), tenant_name: name.into(), ..Tenant::default() }.create(draft)?;
        }
        Ok(())
    }
}

/// Is there all that a network needs?
pub(super) fn ready(draft: &Draft<'_>) -> Result<(), Problem> {
    let not = |what: &str| Err(Problem::conflict(format!("Global configuration is not ready: {what}")));
    match draft.get::<Global>(KEY) {
        None => not("global configuration is not ready"),
        Some(global) if global.fwd_mode.is_empty() => not("global forwarding mode is not set"),
        Some(_) => Ok(()),
    }
}
