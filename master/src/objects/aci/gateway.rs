//! Settings of the gateway to an ACI fabric.

use contiv_model::api::{AciGw, AciGwOper, AppProfile};
use contiv_model::key::ObjectType;

use crate::cache::{ClusterCache, StagedTxn};
use crate::objects::{Cluster, Object};
use crate::problem::Problem;
use crate::reports::Report;
use crate::schema::{Field, Format, Schema, Type, format};

static SCHEMA: Schema = Schema {
    go_type: "contivModel.AciGw",
    fields: &[
        Field::any("key", Type::Text),
        Field::text("enforcePolicies", 64, Format::OneOf(&["yes", "no"])),
        Field::text("includeCommonTenant", 64, Format::OneOf(&["yes", "no"])),
        Field::text("name", 64, Format::OneOf(&["aciGw"])),
        Field::text("nodeBindings", 2048, format::NODE_BINDINGS),
        Field::text("pathBindings", 2048, format::PATH_BINDINGS),
        Field::text("physicalDomain", 128, format::NAME),
    ],
};

impl Object for AciGw {
    const KIND: ObjectType = ObjectType::AciGw;
    const SCHEMA: &'static Schema = &SCHEMA;
    const KEY: &'static [&'static str] = &["name"];
    type Oper = AciGwOper;

    fn key(&self) -> &str {
        &self.key
    }

    fn tenant(&self) -> Option<&str> {
        None
    }

    fn create(self, staged: &mut StagedTxn<'_>) -> Result<Self, Problem> {
        staged.put(&self.key, self.clone());
        Ok(self)
    }

    fn update(self, _old: &Self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        self.create(staged).map(drop)
    }

    fn delete(&self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        match staged.cache().all::<AppProfile>().count() {
            0 => Ok(()),
            n => Err(Problem::conflict(format!("{n} App-Profiles found. Delete them first"))),
        }
    }

    fn oper(&self, cache: &ClusterCache, _cluster: &Cluster) -> Option<Report<AciGwOper>> {
        let oper = AciGwOper { num_app_profiles: cache.all::<AppProfile>().count() as i64 };
        Some(Box::new(|| oper))
    }
}
