//! Tenants.

use contiv_model::api::{ExtContractsGroup, LinkSet, Tenant, TenantOper};
use contiv_model::key::ObjectType;

use super::{Cluster, Object};
use crate::cache::{ClusterCache, StagedTxn};
use crate::problem::Problem;
use crate::reports::{self, Report};
use crate::schema::{Field, LINK, Schema, Type, format};

static SCHEMA: Schema = Schema {
    go_type: "contivModel.Tenant",
    fields: &[
        Field::any("key", Type::Text),
        Field::text("defaultNetwork", 64, format::NAME_OR_EMPTY),
        Field::text("tenantName", 64, format::NAME),
        Field::any("link-sets", Type::Struct(&LINK_SETS)),
    ],
};

static LINK_SETS: Schema = Schema {
    go_type: "contivModel.TenantLinkSets",
    fields: &[
        Field::any("AppProfiles", Type::StructMap(&LINK)),
        Field::any("EndpointGroups", Type::StructMap(&LINK)),
        Field::any("NetProfiles", Type::StructMap(&LINK)),
        Field::any("Networks", Type::StructMap(&LINK)),
        Field::any("Policies", Type::StructMap(&LINK)),
        Field::any("Servicelbs", Type::StructMap(&LINK)),
        Field::any("VolumeProfiles", Type::StructMap(&LINK)),
        Field::any("Volumes", Type::StructMap(&LINK)),
    ],
};

impl Object for Tenant {
    const KIND: ObjectType = ObjectType::Tenant;
    const SCHEMA: &'static Schema = &SCHEMA;
    const KEY: &'static [&'static str] = &["tenantName"];
    type Oper = TenantOper;

    fn key(&self) -> &str {
        &self.key
    }

    fn tenant(&self) -> Option<&str> {
        Some(&self.tenant_name)
    }

    fn create(self, staged: &mut StagedTxn<'_>) -> Result<Self, Problem> {
        staged.put(&self.key, self.clone());
        Ok(self)
    }

    fn update(self, _old: &Self, _draft: &mut StagedTxn<'_>) -> Result<(), Problem> {
        Err(Problem::conflict("Cant change tenant parameters after its created"))
    }

    fn delete(&self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        let tenant = staged.links_of::<Tenant>(&self.key).added_to(self);
        let (name, sets) = (&self.tenant_name, &tenant.link_sets);
        let unless_empty = |set: &LinkSet, has: &str, what: &str| match set.len() {
            0 => Ok(()),
            n => Err(Problem::conflict(format!("{has} has {n} {what}"))),
        };
        unless_empty(&sets.app_profiles, &format!("cannot delete {name},"), "app profiles")?;
        unless_empty(&sets.endpoint_groups, &format!("cannot delete {name}"), "endpoint groups")?;
        unless_empty(&sets.policies, &format!("cannot delete {name}"), "policies")?;
        unless_empty(&sets.net_profiles, &format!("Cannot delete {name}"), "netprofiles")?;
        unless_empty(&sets.networks, &format!("cannot delete {name}"), "networks")?;
        match staged.count_linked::<Tenant, ExtContractsGroup>(&self.key) {
            0 => Ok(()),
            n => Err(Problem::conflict(format!("cannot delete {name} has {n} external contracts groups"))),
        }
    }

    fn oper(&self, cache: &ClusterCache, _cluster: &Cluster) -> Option<Report<TenantOper>> {
        Some(reports::tenant(self, cache))
    }
}

/// Fails if the tenant does not exist. The transaction fails if it is deleted meanwhile.
pub(super) fn require_tenant(name: &str, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
    if staged.get::<Tenant>(name).is_none() {
        return Err(Problem::not_found("Tenant not found"));
    }
    staged.guard_unchanged::<Tenant>(name);
    Ok(())
}
