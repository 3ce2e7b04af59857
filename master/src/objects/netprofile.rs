//! Network profiles.

use contiv_model::api::{Link, Netprofile, Tenant};
use contiv_model::{group, key::ObjectType};

use super::{Cluster, Object};
use crate::cache::{Draft, Traffic, World};
use crate::domain::attachment::state_key;
use crate::problem::Problem;
use crate::schema::{Form, LINK, Member, Shape, Type, format};

static SHAPE: Shape = Shape {
    go_type: "contivModel.Netprofile",
    members: &[
        Member::any("key", Type::Text),
        Member::int("DSCP", 63),
        Member::text("bandwidth", 64, format::BANDWIDTH_OR_EMPTY),
        Member::int("burst", 10_486),
        Member::text("profileName", 64, Form::Any),
        Member::any("tenantName", Type::Text),
        Member::any("link-sets", Type::Struct(&LINK_SETS)),
        Member::any("links", Type::Struct(&LINKS)),
    ],
};

static LINK_SETS: Shape = Shape {
    go_type: "contivModel.NetprofileLinkSets",
    members: &[Member::any("EndpointGroups", Type::StructMap(&LINK))],
};

static LINKS: Shape =
    Shape { go_type: "contivModel.NetprofileLinks", members: &[Member::any("Tenant", Type::Struct(&LINK))] };

/// A burst in kilobits that is less than a packet.
const LESS_THAN_A_PACKET: i64 = 1;

impl Object for Netprofile {
    const KIND: ObjectType = ObjectType::Netprofile;
    const SHAPE: &'static Shape = &SHAPE;
    const KEY: &'static [&'static str] = &["tenantName", "profileName"];
    type Oper = ();

    fn key(&self) -> &str {
        &self.key
    }

    fn create(mut self, draft: &mut Draft<'_>) -> Result<Self, Problem> {
        if self.tenant_name.is_empty() {
            return Err(Problem::invalid("Invalid tenant name"));
        }
        if self.burst == LESS_THAN_A_PACKET {
            return Err(Problem::invalid("Invalid Burst size. burst size > 1500 bytes"));
        }
        let tenant = draft.get::<Tenant>(&self.tenant_name);
        let mut tenant = (*tenant.ok_or_else(|| Problem::not_found("Tenant not found"))?).clone();

        tenant.link_sets.net_profiles.insert(self.key.clone(), Link::to(ObjectType::Netprofile, &self.key));
        draft.put(&self.tenant_name, tenant);
        self.links.tenant = Link::to(ObjectType::Tenant, &self.tenant_name);
        draft.put(&self.key, self.clone());
        Ok(self)
    }

    fn update(self, old: &Self, draft: &mut Draft<'_>) -> Result<(), Problem> {
        if self.burst == LESS_THAN_A_PACKET {
            return Err(Problem::invalid("Invalid Burst size. burst size must be > 1500 bytes"));
        }
        let traffic = Traffic::of(&self);
        for group in old.link_sets.endpoint_groups.keys() {
            if let Some((_, change)) = draft.ledger::<group::State>(&state_key(group)) {
                change.traffic = Some(traffic.clone());
            }
        }
        let new = Netprofile { dscp: self.dscp, bandwidth: self.bandwidth, burst: self.burst, ..old.clone() };
        draft.put(&old.key, new);
        Ok(())
    }

    fn delete(&self, draft: &mut Draft<'_>) -> Result<(), Problem> {
        if !self.link_sets.endpoint_groups.is_empty() {
            return Err(Problem::conflict("NetProfile is being used"));
        }
        if let Some(tenant) = draft.get::<Tenant>(&self.tenant_name) {
            let mut tenant = (*tenant).clone();
            tenant.link_sets.net_profiles.remove(&self.key);
            draft.put(&self.tenant_name, tenant);
        }
        Ok(())
    }

    fn oper(&self, _world: &World, _cluster: &Cluster) -> Option<()> {
        None
    }
}
