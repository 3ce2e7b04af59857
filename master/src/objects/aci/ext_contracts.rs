//! Groups of contracts that are defined outside, in the fabric.

use contiv_model::api::{ExtContractsGroup, Tenant};
use contiv_model::key::ObjectType;

use crate::cache::{Draft, World};
use crate::objects::{Cluster, Object};
use crate::problem::Problem;
use crate::schema::{LINK, Member, Shape, Type, format};

static SHAPE: Shape = Shape {
    go_type: "contivModel.ExtContractsGroup",
    members: &[
        Member::any("key", Type::Text),
        Member::any("contracts", Type::Texts),
        Member::text("contractsGroupName", 64, format::NAME),
        Member::any("contractsType", Type::Text),
        Member::text("tenantName", 64, format::NAME),
        Member::any("link-sets", Type::Struct(&LINK_SETS)),
    ],
};

static LINK_SETS: Shape = Shape {
    go_type: "contivModel.ExtContractsGroupLinkSets",
    members: &[Member::any("EndpointGroups", Type::StructMap(&LINK))],
};

impl Object for ExtContractsGroup {
    const KIND: ObjectType = ObjectType::ExtContractsGroup;
    const SHAPE: &'static Shape = &SHAPE;
    const KEY: &'static [&'static str] = &["tenantName", "contractsGroupName"];
    type Oper = ();

    fn key(&self) -> &str {
        &self.key
    }

    fn create(self, draft: &mut Draft<'_>) -> Result<Self, Problem> {
        if !["provided", "consumed"].contains(&self.contracts_type.as_str()) {
            return Err(Problem::invalid("Contracts group need to be either 'provided' or 'consumed'"));
        }
        let tenant = &self.tenant_name;
        if draft.get::<Tenant>(tenant).is_none() {
            return Err(Problem::not_found(format!("Tenant {tenant} not found")));
        }
        draft.put(&self.key, self.clone());
        Ok(self)
    }

    fn update(self, _old: &Self, _draft: &mut Draft<'_>) -> Result<(), Problem> {
        Err(Problem::conflict("external contracts update not supported"))
    }

    fn delete(&self, _draft: &mut Draft<'_>) -> Result<(), Problem> {
        match self.link_sets.endpoint_groups.is_empty() {
            true => Ok(()),
            false => Err(Problem::conflict("External contracts group is in-use")),
        }
    }

    fn oper(&self, _world: &World, _cluster: &Cluster) -> Option<()> {
        None
    }
}
