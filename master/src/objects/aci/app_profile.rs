//! Application profiles.

use contiv_model::api::{AppProfile, EndpointGroup, Link, Tenant};
use contiv_model::key::ObjectType;

use crate::cache::{ClusterCache, StagedTxn};
use crate::domain::object_key;
use crate::objects::{Cluster, Object};
use crate::problem::Problem;
use crate::reports::Report;
use crate::schema::{Field, LINK, Schema, Type, format};

static SCHEMA: Schema = Schema {
    go_type: "contivModel.AppProfile",
    fields: &[
        Field::any("key", Type::Text),
        Field::text("appProfileName", 64, format::NAME),
        Field::any("endpointGroups", Type::Texts),
        Field::text("tenantName", 64, format::NAME),
        Field::any("link-sets", Type::Struct(&LINK_SETS)),
        Field::any("links", Type::Struct(&LINKS)),
    ],
};

static LINK_SETS: Schema = Schema {
    go_type: "contivModel.AppProfileLinkSets",
    fields: &[Field::any("EndpointGroups", Type::StructMap(&LINK))],
};

static LINKS: Schema =
    Schema { go_type: "contivModel.AppProfileLinks", fields: &[Field::any("Tenant", Type::Struct(&LINK))] };

impl Object for AppProfile {
    const KIND: ObjectType = ObjectType::AppProfile;
    const SCHEMA: &'static Schema = &SCHEMA;
    const KEY: &'static [&'static str] = &["tenantName", "appProfileName"];
    type Oper = ();

    fn key(&self) -> &str {
        &self.key
    }

    fn tenant(&self) -> Option<&str> {
        Some(&self.tenant_name)
    }

    /// Like the original, the response to an update contains the links.
    fn echo(&self) -> Self {
        let mut echo = self.clone();
        echo.link_groups();
        echo
    }

    fn create(mut self, staged: &mut StagedTxn<'_>) -> Result<Self, Problem> {
        let tenant = &self.tenant_name;
        if staged.get::<Tenant>(tenant).is_none() {
            return Err(Problem::not_found(format!("Tenant {tenant} not found")));
        }
        self.link_groups();
        self.find_groups(staged)?;

        staged.guard_unchanged::<Tenant>(&self.tenant_name);
        self.links.tenant = Link::to(ObjectType::Tenant, &self.tenant_name);
        self.attach_groups(staged);
        staged.put(&self.key, self.clone());
        Ok(self)
    }

    fn update(self, old: &Self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        let mut new = AppProfile { endpoint_groups: self.endpoint_groups, ..old.clone() };
        new.link_groups();
        new.find_groups(staged)?;

        new.attach_groups(staged);
        staged.put(&new.key, new.clone());
        let left = old.link_sets.endpoint_groups.keys();
        for group in left.filter(|key| !new.link_sets.endpoint_groups.contains_key(*key)) {
            new.detach_group(group, staged);
        }
        Ok(())
    }

    fn delete(&self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        for group in self.link_sets.endpoint_groups.keys() {
            self.detach_group(group, staged);
        }
        Ok(())
    }

    fn oper(&self, _cache: &ClusterCache, _cluster: &Cluster) -> Option<Report<()>> {
        None
    }
}

/// Links between a profile and its groups.
trait Groups {
    fn link_groups(&mut self);
    fn find_groups(&self, staged: &StagedTxn<'_>) -> Result<(), Problem>;
    fn attach_groups(&self, staged: &mut StagedTxn<'_>);
    fn detach_group(&self, group: &str, staged: &mut StagedTxn<'_>);
}

impl Groups for AppProfile {
    /// Links the groups that the fields refer to.
    fn link_groups(&mut self) {
        let key = |name: &String| object_key(&self.tenant_name, name);
        let link = |key: String| (key.clone(), Link::to(ObjectType::EndpointGroup, key));
        self.link_sets.endpoint_groups = self.endpoint_groups.iter().map(key).map(link).collect();
    }

    fn find_groups(&self, staged: &StagedTxn<'_>) -> Result<(), Problem> {
        let keys = self.endpoint_groups.iter().map(|name| object_key(&self.tenant_name, name));
        match keys.into_iter().find(|key| staged.get::<EndpointGroup>(key).is_none()) {
            Some(key) => Err(Problem::not_found(format!("EndpointGroup {key} not found"))),
            None => Ok(()),
        }
    }

    /// Sets the link of each group to this profile. A group in several profiles links to the last
    /// one.
    fn attach_groups(&self, staged: &mut StagedTxn<'_>) {
        let link = Link::to(ObjectType::AppProfile, &self.key);
        for key in self.link_sets.endpoint_groups.keys() {
            if staged.get::<EndpointGroup>(key).is_some_and(|group| group.links.app_profile != link)
                && let Some(group) = staged.edit::<EndpointGroup>(key)
            {
                group.links.app_profile = link.clone();
            }
        }
    }

    /// Replaces the group's link to this profile by another profile that contains the group, if
    /// there is one.
    fn detach_group(&self, group: &str, staged: &mut StagedTxn<'_>) {
        if staged.get::<EndpointGroup>(group).is_none_or(|group| group.links.app_profile.key != self.key) {
            return;
        }
        let profiles = staged.linked::<Tenant, AppProfile>(&self.tenant_name);
        let has = |key: &&String| {
            let profile = staged.get::<AppProfile>(key);
            **key != self.key && profile.is_some_and(|p| p.link_sets.endpoint_groups.contains_key(group))
        };
        let other = profiles.iter().find(has).map(|key| Link::to(ObjectType::AppProfile, key));
        if let Some(group) = staged.edit::<EndpointGroup>(group) {
            group.links.app_profile = other.unwrap_or_default();
        }
    }
}
