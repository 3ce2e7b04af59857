//! Application profiles.

use std::collections::BTreeMap;

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
        new.detach_groups(left.filter(|key| !new.link_sets.endpoint_groups.contains_key(*key)), staged);
        Ok(())
    }

    fn delete(&self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        self.detach_groups(self.link_sets.endpoint_groups.keys(), staged);
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
    fn detach_groups<'k>(&self, groups: impl Iterator<Item = &'k String>, staged: &mut StagedTxn<'_>);
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

    /// Replaces the links of the groups to this profile by links to other profiles that contain them, if
    /// there are any. The first of several is used.
    fn detach_groups<'k>(&self, groups: impl Iterator<Item = &'k String>, staged: &mut StagedTxn<'_>) {
        let is_linked = |key: &&String| {
            staged.get::<EndpointGroup>(key).is_some_and(|group| group.links.app_profile.key == self.key)
        };
        let mut detached: BTreeMap<&str, Option<Link>> =
            groups.filter(is_linked).map(|key| (key.as_str(), None)).collect();
        if detached.is_empty() {
            return;
        }
        // Each profile of the tenant is read once, however many groups are detached.
        let profiles = staged.linked::<Tenant, AppProfile>(&self.tenant_name);
        for key in profiles.iter().filter(|key| **key != self.key) {
            let Some(profile) = staged.get::<AppProfile>(key) else { continue };
            for group in profile.link_sets.endpoint_groups.keys() {
                if let Some(link) = detached.get_mut(group.as_str()) {
                    link.get_or_insert_with(|| Link::to(ObjectType::AppProfile, key));
                }
            }
        }
        for (key, link) in detached {
            if let Some(group) = staged.edit::<EndpointGroup>(key) {
                group.links.app_profile = link.unwrap_or_default();
            }
        }
    }
}
