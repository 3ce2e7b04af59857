//! Policies.

use contiv_model::api::{EndpointGroup, Link, Policy, PolicyOper, Rule, Tenant};
use contiv_model::key::ObjectType;

use super::rule::unlink_remote;
use super::{Cluster, Object};
use crate::cache::{Draft, World};
use crate::problem::Problem;
use crate::reports;
use crate::schema::{LINK, Member, Shape, Type, format};

static SHAPE: Shape = Shape {
    go_type: "contivModel.Policy",
    members: &[
        Member::any("key", Type::Text),
        Member::text("policyName", 64, format::NAME),
        Member::text("tenantName", 64, format::NAME),
        Member::any("link-sets", Type::Struct(&LINK_SETS)),
        Member::any("links", Type::Struct(&LINKS)),
    ],
};

static LINK_SETS: Shape = Shape {
    go_type: "contivModel.PolicyLinkSets",
    members: &[
        Member::any("EndpointGroups", Type::StructMap(&LINK)),
        Member::any("Rules", Type::StructMap(&LINK)),
    ],
};

static LINKS: Shape =
    Shape { go_type: "contivModel.PolicyLinks", members: &[Member::any("Tenant", Type::Struct(&LINK))] };

impl Object for Policy {
    const KIND: ObjectType = ObjectType::Policy;
    const SHAPE: &'static Shape = &SHAPE;
    const KEY: &'static [&'static str] = &["tenantName", "policyName"];
    type Oper = PolicyOper;

    fn key(&self) -> &str {
        &self.key
    }

    fn create(mut self, draft: &mut Draft<'_>) -> Result<Self, Problem> {
        let tenant = draft.get::<Tenant>(&self.tenant_name);
        let mut tenant = (*tenant.ok_or_else(|| Problem::not_found("Tenant not found"))?).clone();
        tenant.link_sets.policies.insert(self.key.clone(), Link::to(ObjectType::Policy, &self.key));
        draft.put(&self.tenant_name, tenant);
        self.links.tenant = Link::to(ObjectType::Tenant, &self.tenant_name);
        draft.put(&self.key, self.clone());
        Ok(self)
    }

    fn update(self, _old: &Self, _draft: &mut Draft<'_>) -> Result<(), Problem> {
        // There is nothing in it that could change.
        Ok(())
    }

    fn delete(&self, draft: &mut Draft<'_>) -> Result<(), Problem> {
        // Links that a client brought may name groups that are none.
        let used = |group: &String| draft.get::<EndpointGroup>(group).is_some();
        if self.link_sets.endpoint_groups.keys().any(used) {
            return Err(Problem::conflict("Policy is being used"));
        }
        for key in self.link_sets.rules.keys() {
            let Some(rule) = draft.get::<Rule>(key) else { continue };
            unlink_remote(draft, &rule);
            draft.delete::<Rule>(key);
        }
        if let Some(tenant) = draft.get::<Tenant>(&self.tenant_name) {
            let mut tenant = (*tenant).clone();
            tenant.link_sets.policies.remove(&self.key);
            draft.put(&self.tenant_name, tenant);
        }
        Ok(())
    }

    fn oper(&self, world: &World, _cluster: &Cluster) -> Option<PolicyOper> {
        Some(reports::policy(self, world))
    }
}
