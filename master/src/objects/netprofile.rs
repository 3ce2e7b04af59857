//! Network profiles.

use contiv_model::api::{EndpointGroup, Link, Netprofile};
use contiv_model::{group, key::ObjectType};

use super::tenant::require_tenant;
use super::{Cluster, Object};
use crate::cache::{ClusterCache, StagedTxn, Traffic};
use crate::domain::attachment::state_key;
use crate::problem::Problem;
use crate::reports::Report;
use crate::schema::{Field, Format, LINK, Schema, Type, format};

static SCHEMA: Schema = Schema {
    go_type: "contivModel.Netprofile",
    fields: &[
        Field::any("key", Type::Text),
        Field::int("DSCP", 63),
        Field::text("bandwidth", 64, format::BANDWIDTH_OR_EMPTY),
        Field::int("burst", 10_486),
        Field::text("profileName", 64, Format::Any),
        Field::any("tenantName", Type::Text),
        Field::any("link-sets", Type::Struct(&LINK_SETS)),
        Field::any("links", Type::Struct(&LINKS)),
    ],
};

static LINK_SETS: Schema = Schema {
    go_type: "contivModel.NetprofileLinkSets",
    fields: &[Field::any("EndpointGroups", Type::StructMap(&LINK))],
};

static LINKS: Schema =
    Schema { go_type: "contivModel.NetprofileLinks", fields: &[Field::any("Tenant", Type::Struct(&LINK))] };

/// Burst in kilobits that is smaller than one packet.
const BURST_BELOW_PACKET: i64 = 1;

impl Object for Netprofile {
    const KIND: ObjectType = ObjectType::Netprofile;
    const SCHEMA: &'static Schema = &SCHEMA;
    const KEY: &'static [&'static str] = &["tenantName", "profileName"];
    type Oper = ();

    fn key(&self) -> &str {
        &self.key
    }

    fn tenant(&self) -> Option<&str> {
        Some(&self.tenant_name)
    }

    fn create(mut self, staged: &mut StagedTxn<'_>) -> Result<Self, Problem> {
        if self.tenant_name.is_empty() {
            return Err(Problem::invalid("Invalid tenant name"));
        }
        if self.burst == BURST_BELOW_PACKET {
            return Err(Problem::invalid("Invalid Burst size. burst size > 1500 bytes"));
        }
        require_tenant(&self.tenant_name, staged)?;

        self.links.tenant = Link::to(ObjectType::Tenant, &self.tenant_name);
        staged.put(&self.key, self.clone());
        Ok(self)
    }

    fn update(self, old: &Self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        if self.burst == BURST_BELOW_PACKET {
            return Err(Problem::invalid("Invalid Burst size. burst size must be > 1500 bytes"));
        }
        let traffic = Traffic::of(&self);
        for group in staged.linked::<Netprofile, EndpointGroup>(&old.key).iter() {
            if let Some((record, change)) = staged.allocation::<group::State>(&state_key(group))
                && (change.traffic.is_some() || Traffic::of_group(&record.body) != traffic)
            {
                change.traffic = Some(traffic.clone());
            }
        }
        let new = Netprofile { dscp: self.dscp, bandwidth: self.bandwidth, burst: self.burst, ..old.clone() };
        staged.put(&old.key, new);
        Ok(())
    }

    fn delete(&self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        let profile = staged.links_of::<Netprofile>(&self.key).added_to(self);
        match profile.link_sets.endpoint_groups.is_empty() {
            true => Ok(()),
            false => Err(Problem::conflict("NetProfile is being used")),
        }
    }

    fn oper(&self, _cache: &ClusterCache, _cluster: &Cluster) -> Option<Report<()>> {
        None
    }
}
