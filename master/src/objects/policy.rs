//! Policies.

use contiv_model::api::{EndpointGroup, Link, Policy, PolicyOper, Rule};
use contiv_model::key::ObjectType;

use super::tenant::require_tenant;
use super::{Cluster, Object};
use crate::cache::{ClusterCache, StagedTxn};
use crate::problem::Problem;
use crate::reports::{self, Report};
use crate::schema::{Field, LINK, Schema, Type, format};

static SCHEMA: Schema = Schema {
    go_type: "contivModel.Policy",
    fields: &[
        Field::any("key", Type::Text),
        Field::text("policyName", 64, format::NAME),
        Field::text("tenantName", 64, format::NAME),
        Field::any("link-sets", Type::Struct(&LINK_SETS)),
        Field::any("links", Type::Struct(&LINKS)),
    ],
};

static LINK_SETS: Schema = Schema {
    go_type: "contivModel.PolicyLinkSets",
    fields: &[
        Field::any("EndpointGroups", Type::StructMap(&LINK)),
        Field::any("Rules", Type::StructMap(&LINK)),
    ],
};

static LINKS: Schema =
    Schema { go_type: "contivModel.PolicyLinks", fields: &[Field::any("Tenant", Type::Struct(&LINK))] };

impl Object for Policy {
    const KIND: ObjectType = ObjectType::Policy;
    const SCHEMA: &'static Schema = &SCHEMA;
    const KEY: &'static [&'static str] = &["tenantName", "policyName"];
    type Oper = PolicyOper;

    fn key(&self) -> &str {
        &self.key
    }

    fn tenant(&self) -> Option<&str> {
        Some(&self.tenant_name)
    }

    fn create(mut self, staged: &mut StagedTxn<'_>) -> Result<Self, Problem> {
        require_tenant(&self.tenant_name, staged)?;
        self.links.tenant = Link::to(ObjectType::Tenant, &self.tenant_name);
        staged.put(&self.key, self.clone());
        Ok(self)
    }

    fn update(self, _old: &Self, _draft: &mut StagedTxn<'_>) -> Result<(), Problem> {
        // A policy has no field that can change.
        Ok(())
    }

    fn delete(&self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        // Links of the request that created the policy may refer to groups that do not exist.
        let used = |group: &String| staged.get::<EndpointGroup>(group).is_some();
        let policy = staged.links_of::<Policy>(&self.key).added_to(self);
        if policy.link_sets.endpoint_groups.keys().any(used) {
            return Err(Problem::conflict("Policy is being used"));
        }
        for key in staged.linked::<Policy, Rule>(&self.key).iter() {
            staged.delete::<Rule>(key);
        }
        Ok(())
    }

    fn oper(&self, cache: &ClusterCache, _cluster: &Cluster) -> Option<Report<PolicyOper>> {
        Some(reports::policy(self, cache))
    }
}
