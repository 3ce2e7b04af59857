//! Tenants.

use contiv_model::api::{LinkSet, Tenant, TenantOper};
use contiv_model::key::ObjectType;

use super::{Cluster, Object};
use crate::cache::{Draft, World};
use crate::problem::Problem;
use crate::reports;
use crate::schema::{LINK, Member, Shape, Type, format};

static SHAPE: Shape = Shape {
    go_type: "contivModel.Tenant",
    members: &[
        Member::any("key", Type::Text),
        Member::text("defaultNetwork", 64, format::NAME_OR_EMPTY),
        Member::text("tenantName", 64, format::NAME),
        Member::any("link-sets", Type::Struct(&LINK_SETS)),
    ],
};

static LINK_SETS: Shape = Shape {
    go_type: "contivModel.TenantLinkSets",
    members: &[
        Member::any("AppProfiles", Type::StructMap(&LINK)),
        Member::any("EndpointGroups", Type::StructMap(&LINK)),
        Member::any("NetProfiles", Type::StructMap(&LINK)),
        Member::any("Networks", Type::StructMap(&LINK)),
        Member::any("Policies", Type::StructMap(&LINK)),
        Member::any("Servicelbs", Type::StructMap(&LINK)),
        Member::any("VolumeProfiles", Type::StructMap(&LINK)),
        Member::any("Volumes", Type::StructMap(&LINK)),
    ],
};

impl Object for Tenant {
    const KIND: ObjectType = ObjectType::Tenant;
    const SHAPE: &'static Shape = &SHAPE;
    const KEY: &'static [&'static str] = &["tenantName"];
    type Oper = TenantOper;

    fn key(&self) -> &str {
        &self.key
    }

    fn create(self, draft: &mut Draft<'_>) -> Result<Self, Problem> {
        draft.put(&self.key, self.clone());
        Ok(self)
    }

    fn update(self, _old: &Self, _draft: &mut Draft<'_>) -> Result<(), Problem> {
        Err(Problem::conflict("Cant change tenant parameters after its created"))
    }

    fn delete(&self, _draft: &mut Draft<'_>) -> Result<(), Problem> {
        let (name, sets) = (&self.tenant_name, &self.link_sets);
        let unless_empty = |set: &LinkSet, has: &str, what: &str| match set.len() {
            0 => Ok(()),
            n => Err(Problem::conflict(format!("{has} has {n} {what}"))),
        };
        unless_empty(&sets.app_profiles, &format!("cannot delete {name},"), "app profiles")?;
        unless_empty(&sets.endpoint_groups, &format!("cannot delete {name}"), "endpoint groups")?;
        unless_empty(&sets.policies, &format!("cannot delete {name}"), "policies")?;
        unless_empty(&sets.net_profiles, &format!("Cannot delete {name}"), "netprofiles")?;
        unless_empty(&sets.networks, &format!("cannot delete {name}"), "networks")
    }

    fn oper(&self, world: &World, _cluster: &Cluster) -> Option<TenantOper> {
        Some(reports::tenant(self, world))
    }
}
