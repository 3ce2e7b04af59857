//! Global settings of the cluster.

use contiv_model::api::{Bgp, Global, GlobalOper, Tenant};
use contiv_model::global;
use contiv_model::key::ObjectType;

use super::{Cluster, Object};
use crate::cache::{ClusterCache, Entry, ONLY, StagedTxn};
use crate::domain::attachment::{check_restore_policies, restore_policies};
use crate::domain::fabric;
use crate::domain::tag_pools::{pools, pools_with_networks, put_vlans, put_vxlans};
use crate::problem::Problem;
use crate::reports::Report;
use crate::schema::{Field, Format, Schema, Type, format};
use crate::tags::{Range, Vlans, Vxlans, list};

static SCHEMA: Schema = Schema {
    go_type: "contivModel.Global",
    fields: &[
        Field::any("key", Type::Text),
        Field::text("arpMode", 64, Format::OneOf(&["", "proxy", "flood"])),
        Field::text("fwdMode", 64, Format::OneOf(&["", "bridge", "routing"])),
        Field::text("name", 64, Format::OneOf(&["global"])),
        Field::text("networkInfraType", 64, Format::OneOf(&["", "aci", "aci-opflex", "default"])),
        Field::text("pvtSubnet", usize::MAX, format::PRIVATE_SUBNET),
        Field::text("vlans", usize::MAX, format::VLAN_RANGE),
        Field::text("vxlans", usize::MAX, format::VXLAN_RANGE),
    ],
};

/// Key of the only object.
pub(super) const KEY: &str = "global";
impl Object for Global {
    const KIND: ObjectType = ObjectType::Global;
    const SCHEMA: &'static Schema = &SCHEMA;
    const KEY: &'static [&'static str] = &["name"];
    type Oper = GlobalOper;

    fn key(&self) -> &str {
        &self.key
    }

    fn tenant(&self) -> Option<&str> {
        None
    }

    fn create(self, staged: &mut StagedTxn<'_>) -> Result<Self, Problem> {
        let (vlans, vxlans) = (Range::vlans(&self.vlans)?, Range::vxlans(&self.vxlans)?);
        let (vlans, vxlans) = pools_with_networks(staged.cache(), vlans, vxlans)?;
        set_config(Some(config_of(&self)), staged)?;
        put_ranges(&self, staged);
        put_vlans(&vlans, staged);
        put_vxlans(&vxlans, staged);
        staged.put(&self.key, self.clone());
        Ok(self)
    }

    fn update(self, old: &Self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        let pools = pools(staged)?;
        let unused = |what: &str| match in_use(&pools) {
            Some(networks) => {
                Err(Problem::conflict(format!("Unable to update {what} due to existing {networks}")))
            }
            None => Ok(()),
        };
        if self.fwd_mode != old.fwd_mode {
            unused("forwarding mode")?;
            if old.fwd_mode == "routing" && staged.cache().all::<Bgp>().next().is_some() {
                return Err(Problem::conflict("please delete existing Bgp configs"));
            }
        }
        let (vlans, vxlans) = (Range::vlans(&self.vlans)?, Range::vxlans(&self.vxlans)?);
        let vlans = (self.vlans != old.vlans).then(|| pools.0.with_range(vlans)).transpose()?;
        let vxlans = (self.vxlans != old.vxlans).then(|| pools.1.with_range(vxlans)).transpose()?;
        if self.pvt_subnet != old.pvt_subnet {
            unused("private subnet")?;
        }

        if self.network_infra_type.is_empty() && fabric::aci_mode(staged).is_none() {
            let key = global::Config::path(ONLY);
            return Err(Problem::conflict(format!(
                "update the settings: the record {key} cannot be decoded; set networkInfraType, too"
            )));
        }
        // An empty field leaves the agents' setting unchanged.
        let is_unreadable = staged.cache().is_unreadable::<global::Config>(ONLY);
        let config = match is_unreadable {
            true => config_of(old),
            false => staged.get::<global::Config>(ONLY).map(|c| (*c).clone()).unwrap_or_default(),
        };
        let or = |new: &String, old: String| if new.is_empty() { old } else { new.clone() };
        let changed = global::Config {
            id: config.id.clone(),
            nw_infra_type: or(&self.network_infra_type, config.nw_infra_type.clone()),
            fwd_mode: or(&self.fwd_mode, config.fwd_mode.clone()),
            arp_mode: or(&self.arp_mode, config.arp_mode.clone()),
            pvt_subnet: or(&self.pvt_subnet, config.pvt_subnet.clone()),
        };
        if changed != config || is_unreadable {
            set_config(Some(changed), staged)?;
        }
        if vlans.is_some() || vxlans.is_some() {
            put_ranges(&self, staged);
        }
        if let Some(vlans) = vlans {
            put_vlans(&vlans, staged);
        }
        if let Some(vxlans) = vxlans {
            put_vxlans(&vxlans, staged);
        }
        staged.put(&self.key.clone(), self);
        Ok(())
    }

    fn delete(&self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        set_config(None, staged)?;
        delete_only::<global::State>(staged);
        delete_only::<global::Oper>(staged);
        delete_only::<global::VlanPool>(staged);
        delete_only::<global::VlanPoolOper>(staged);
        delete_only::<global::VxlanPool>(staged);
        delete_only::<global::VxlanPoolOper>(staged);
        Ok(())
    }

    fn oper(&self, cache: &ClusterCache, cluster: &Cluster) -> Option<Report<GlobalOper>> {
        let oper = cache.get::<global::Oper>(ONLY).cloned().unwrap_or_default();
        let (vlans, vxlans) = match pools(&StagedTxn::new(cache)) {
            Ok((vlans, vxlans)) => (vlans.used().collect(), vxlans.used().collect()),
            Err(_) => (vec![], vec![]),
        };
        let oper = GlobalOper {
            cluster_mode: cluster.mode.clone(),
            default_network: oper.default_network,
            free_vxlans_start: oper.free_vxlans_start,
            num_networks: (vlans.len() + vxlans.len()) as i64,
            vlans_in_use: list(vlans.into_iter()),
            vxlans_in_use: list(vxlans.into_iter()),
        };
        Some(Box::new(|| oper))
    }
}

/// Number of tags in use, such as `9 vlans and 2 vxlans`; none if there are none.
fn in_use((vlans, vxlans): &(Vlans, Vxlans)) -> Option<String> {
    let counted = |n: usize, what: &str| (n > 0).then(|| format!("{n} {what}"));
    let parts = [counted(vlans.used().count(), "vlans"), counted(vxlans.used().count(), "vxlans")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(" and "))
}

/// The agents' settings as the object has them.
fn config_of(global: &Global) -> global::Config {
    global::Config {
        id: String::new(),
        nw_infra_type: global.network_infra_type.clone(),
        fwd_mode: global.fwd_mode.clone(),
        arp_mode: global.arp_mode.clone(),
        pvt_subnet: global.pvt_subnet.clone(),
    }
}

/// Puts or deletes the agents' settings, also those that cannot be decoded. Nodes enforce policies only outside of ACI
/// mode: if the cluster enters or leaves it, also by a deletion, the expansions of all policies are deleted or written.
/// Stages nothing if it fails.
fn set_config(config: Option<global::Config>, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
    let is_aci = config.as_ref().is_some_and(fabric::is_aci);
    // The expansions may be those of the other mode if the mode is not known.
    let was_aci = fabric::aci_mode(staged).unwrap_or(!is_aci);
    if was_aci && !is_aci {
        check_restore_policies(staged)?;
    }
    staged.replace_unreadable::<global::Config>(ONLY);
    match config {
        Some(config) => staged.put(ONLY, config),
        None if staged.exists::<global::Config>(ONLY) => staged.delete::<global::Config>(ONLY),
        None => {}
    }
    if was_aci != is_aci {
        restore_policies(staged);
    }
    Ok(())
}

fn put_ranges(global: &Global, staged: &mut StagedTxn<'_>) {
    let auto = global::TagRanges { vlans: global.vlans.clone(), vxlans: global.vxlans.clone() };
    staged.put(ONLY, global::State { id: String::new(), auto });
}

fn delete_only<T: Entry>(staged: &mut StagedTxn<'_>) {
    if staged.get::<T>(ONLY).is_some() {
        staged.delete::<T>(ONLY);
    }
}

/// Settings for a store without any.
#[derive(Clone, Debug)]
pub struct Defaults {
    /// Value of `--infra`.
    pub infra: String,
    /// Value of `--fwdmode`.
    pub fwd_mode: String,
}

impl Defaults {
    /// Creates the settings and the tenant `default` if the store has no settings. Existing
    /// settings are not changed.
    pub fn put(&self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        // Settings that cannot be decoded are reported with the other records that cannot. Only requests replace them.
        let cache = staged.cache();
        if cache.is_unreadable::<Global>(KEY) || cache.is_unreadable::<global::Config>(ONLY) {
            return Ok(());
        }
        if let Some(global) = staged.get::<Global>(KEY) {
            if !global.fwd_mode.is_empty() && global.fwd_mode != self.fwd_mode {
                tracing::warn!(
                    store = global.fwd_mode,
                    flag = self.fwd_mode,
                    "--fwdmode differs from the forwarding mode in the store, which is used; change it with `netctl global set --fwd-mode` (only without networks)"
                );
            }
            if !global.network_infra_type.is_empty() && global.network_infra_type != self.infra {
                tracing::warn!(
                    store = global.network_infra_type,
                    flag = self.infra,
                    "--infra differs from the infrastructure type in the store, which is used; change it with `netctl global set --fabric-mode`"
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
        global.create(staged)?;
        let name = "default";
        if staged.get::<Tenant>(name).is_none() {
            Tenant { key: name.into(), tenant_name: name.into(), ..Tenant::default() }.create(staged)?;
        }
        Ok(())
    }
}

/// Gives the cluster an identity if it has none: agents recognise their store by it.
pub fn put_identity(staged: &mut StagedTxn<'_>) {
    if staged.get::<global::ClusterIdentity>(ONLY).is_none() {
        staged.put(ONLY, global::ClusterIdentity::random());
    }
}

/// Fails if settings that a network needs are missing.
pub(super) fn ready(staged: &StagedTxn<'_>) -> Result<(), Problem> {
    let not = |what: &str| Err(Problem::conflict(format!("Global configuration is not ready: {what}")));
    match staged.get::<Global>(KEY) {
        None => not("global configuration is not ready"),
        Some(global) if global.fwd_mode.is_empty() => not("global forwarding mode is not set"),
        Some(_) => Ok(()),
    }
}
