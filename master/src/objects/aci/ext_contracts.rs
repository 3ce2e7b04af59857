//! Groups of contracts that are defined in the fabric.

use contiv_model::api::{ExtContractsGroup, Tenant};
use contiv_model::key::ObjectType;

use crate::cache::{ClusterCache, StagedTxn};
use crate::objects::{Cluster, Object};
use crate::problem::Problem;
use crate::reports::Report;
use crate::schema::{Field, LINK, Schema, Type, format};

static SCHEMA: Schema = Schema {
    go_type: "contivModel.ExtContractsGroup",
    fields: &[
        Field::any("key", Type::Text),
        Field::any("contracts", Type::Texts),
        Field::text("contractsGroupName", 64, format::NAME),
        Field::any("contractsType", Type::Text),
        Field::text("tenantName", 64, format::NAME),
        Field::any("link-sets", Type::Struct(&LINK_SETS)),
    ],
};

static LINK_SETS: Schema = Schema {
    go_type: "contivModel.ExtContractsGroupLinkSets",
    fields: &[Field::any("EndpointGroups", Type::StructMap(&LINK))],
};

impl Object for ExtContractsGroup {
    const KIND: ObjectType = ObjectType::ExtContractsGroup;
    const SCHEMA: &'static Schema = &SCHEMA;
    const KEY: &'static [&'static str] = &["tenantName", "contractsGroupName"];
    type Oper = ();

    fn key(&self) -> &str {
        &self.key
    }

    fn tenant(&self) -> Option<&str> {
        Some(&self.tenant_name)
    }

    fn create(self, staged: &mut StagedTxn<'_>) -> Result<Self, Problem> {
        if !["provided", "consumed"].contains(&self.contracts_type.as_str()) {
            return Err(Problem::invalid("Contracts group need to be either 'provided' or 'consumed'"));
        }
        let tenant = &self.tenant_name;
        if staged.get::<Tenant>(tenant).is_none() {
            return Err(Problem::not_found(format!("Tenant {tenant} not found")));
        }
        staged.guard_unchanged::<Tenant>(tenant);
        staged.put(&self.key, self.clone());
        Ok(self)
    }

    fn update(self, _old: &Self, _draft: &mut StagedTxn<'_>) -> Result<(), Problem> {
        Err(Problem::conflict("external contracts update not supported"))
    }

    fn delete(&self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        let contracts = staged.links_of::<ExtContractsGroup>(&self.key).added_to(self);
        match contracts.link_sets.endpoint_groups.is_empty() {
            true => Ok(()),
            false => Err(Problem::conflict("External contracts group is in-use")),
        }
    }

    fn oper(&self, _cache: &ClusterCache, _cluster: &Cluster) -> Option<Report<()>> {
        None
    }
}
