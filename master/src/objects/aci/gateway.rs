//! What the gateway to an ACI fabric is told.

use contiv_model::api::{AciGw, AciGwOper, AppProfile};
use contiv_model::key::ObjectType;

use crate::cache::{Draft, World};
use crate::objects::{Cluster, Object};
use crate::problem::Problem;
use crate::schema::{Form, Member, Shape, Type, format};

static SHAPE: Shape = Shape {
    go_type: "contivModel.AciGw",
    members: &[
        Member::any("key", Type::Text),
        Member::text("enforcePolicies", 64, Form::Words(&["yes", "no"])),
        Member::text("includeCommonTenant", 64, Form::Words(&["yes", "no"])),
        Member::text("name", 64, Form::Words(&["aciGw"])),
        Member::text("nodeBindings", 2048, format::NODE_BINDINGS),
        Member::text("pathBindings", 2048, format::PATH_BINDINGS),
        Member::text("physicalDomain", 128, format::NAME),
    ],
};

impl Object for AciGw {
    const KIND: ObjectType = ObjectType::AciGw;
    const SHAPE: &'static Shape = &SHAPE;
    const KEY: &'static [&'static str] = &["name"];
    type Oper = AciGwOper;

    fn key(&self) -> &str {
        &self.key
    }

    fn create(self, draft: &mut Draft<'_>) -> Result<Self, Problem> {
        draft.put(&self.key, self.clone());
        Ok(self)
    }

    fn update(self, _old: &Self, draft: &mut Draft<'_>) -> Result<(), Problem> {
        self.create(draft).map(drop)
    }

    fn delete(&self, draft: &mut Draft<'_>) -> Result<(), Problem> {
        match draft.world().all::<AppProfile>().count() {
            0 => Ok(()),
            n => Err(Problem::conflict(format!("{n} App-Profiles found. Delete them first"))),
        }
    }

    fn oper(&self, world: &World, _cluster: &Cluster) -> Option<AciGwOper> {
        Some(AciGwOper { num_app_profiles: world.all::<AppProfile>().count() as i64 })
    }
}
