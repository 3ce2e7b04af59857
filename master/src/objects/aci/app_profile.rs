//! Application profiles.

use contiv_model::api::{AppProfile, EndpointGroup, Link, Tenant};
use contiv_model::key::ObjectType;

use crate::cache::{Draft, World};
use crate::domain::object_key;
use crate::objects::{Cluster, Object};
use crate::problem::Problem;
use crate::schema::{LINK, Member, Shape, Type, format};

static SHAPE: Shape = Shape {
    go_type: "contivModel.AppProfile",
    members: &[
        Member::any("key", Type::Text),
        Member::text("appProfileName", 64, format::NAME),
        Member::any("endpointGroups", Type::Texts),
        Member::text("tenantName", 64, format::NAME),
        Member::any("link-sets", Type::Struct(&LINK_SETS)),
        Member::any("links", Type::Struct(&LINKS)),
    ],
};

static LINK_SETS: Shape = Shape {
    go_type: "contivModel.AppProfileLinkSets",
    members: &[Member::any("EndpointGroups", Type::StructMap(&LINK))],
};

static LINKS: Shape =
    Shape { go_type: "contivModel.AppProfileLinks", members: &[Member::any("Tenant", Type::Struct(&LINK))] };

impl Object for AppProfile {
    const KIND: ObjectType = ObjectType::AppProfile;
    const SHAPE: &'static Shape = &SHAPE;
    const KEY: &'static [&'static str] = &["tenantName", "appProfileName"];
    type Oper = ();

    fn key(&self) -> &str {
        &self.key
    }

    /// The original links the request with its groups.
    fn echo(&self) -> Self {
        let mut echo = self.clone();
        echo.link_groups();
        echo
    }

    fn create(mut self, draft: &mut Draft<'_>) -> Result<Self, Problem> {
        let tenant = &self.tenant_name;
        if draft.get::<Tenant>(tenant).is_none() {
            return Err(Problem::not_found(format!("Tenant {tenant} not found")));
        }
        self.link_groups();
        self.find_groups(draft)?;

        if let Some(tenant) = draft.edit::<Tenant>(&self.tenant_name) {
            tenant
                .link_sets
                .app_profiles
                .insert(self.key.clone(), Link::to(ObjectType::AppProfile, &self.key));
        }
        self.links.tenant = Link::to(ObjectType::Tenant, &self.tenant_name);
        self.take_in(draft);
        draft.put(&self.key, self.clone());
        Ok(self)
    }

    fn update(self, old: &Self, draft: &mut Draft<'_>) -> Result<(), Problem> {
        let mut new = AppProfile { endpoint_groups: self.endpoint_groups, ..old.clone() };
        new.link_groups();
        new.find_groups(draft)?;

        new.take_in(draft);
        draft.put(&new.key, new.clone());
        let left = old.link_sets.endpoint_groups.keys();
        for group in left.filter(|key| !new.link_sets.endpoint_groups.contains_key(*key)) {
            new.let_go(group, draft);
        }
        Ok(())
    }

    fn delete(&self, draft: &mut Draft<'_>) -> Result<(), Problem> {
        if let Some(tenant) = draft.edit::<Tenant>(&self.tenant_name) {
            tenant.link_sets.app_profiles.remove(&self.key);
        }
        for group in self.link_sets.endpoint_groups.keys() {
            self.let_go(group, draft);
        }
        Ok(())
    }

    fn oper(&self, _world: &World, _cluster: &Cluster) -> Option<()> {
        None
    }
}

/// The groups of a profile.
trait Groups {
    fn link_groups(&mut self);
    fn find_groups(&self, draft: &Draft<'_>) -> Result<(), Problem>;
    fn take_in(&self, draft: &mut Draft<'_>);
    fn let_go(&self, group: &str, draft: &mut Draft<'_>);
}

impl Groups for AppProfile {
    /// Links those that the fields name.
    fn link_groups(&mut self) {
        let key = |name: &String| object_key(&self.tenant_name, name);
        let link = |key: String| (key.clone(), Link::to(ObjectType::EndpointGroup, key));
        self.link_sets.endpoint_groups = self.endpoint_groups.iter().map(key).map(link).collect();
    }

    fn find_groups(&self, draft: &Draft<'_>) -> Result<(), Problem> {
        let keys = self.endpoint_groups.iter().map(|name| object_key(&self.tenant_name, name));
        match keys.into_iter().find(|key| draft.get::<EndpointGroup>(key).is_none()) {
            Some(key) => Err(Problem::not_found(format!("EndpointGroup {key} not found"))),
            None => Ok(()),
        }
    }

    /// The groups know the profile; one that is in several knows the last.
    fn take_in(&self, draft: &mut Draft<'_>) {
        let link = Link::to(ObjectType::AppProfile, &self.key);
        for key in self.link_sets.endpoint_groups.keys() {
            if draft.get::<EndpointGroup>(key).is_some_and(|group| group.links.app_profile != link)
                && let Some(group) = draft.edit::<EndpointGroup>(key)
            {
                group.links.app_profile = link.clone();
            }
        }
    }

    /// The group knows the profile no more, but another that it is still in, if there is one.
    fn let_go(&self, group: &str, draft: &mut Draft<'_>) {
        if draft.get::<EndpointGroup>(group).is_none_or(|group| group.links.app_profile.key != self.key) {
            return;
        }
        let profiles = draft.get::<Tenant>(&self.tenant_name);
        let profiles = profiles.iter().flat_map(|tenant| tenant.link_sets.app_profiles.keys());
        let has = |key: &&String| {
            let profile = draft.get::<AppProfile>(key);
            **key != self.key && profile.is_some_and(|p| p.link_sets.endpoint_groups.contains_key(group))
        };
        let other = profiles.into_iter().find(has).map(|key| Link::to(ObjectType::AppProfile, key));
        if let Some(group) = draft.edit::<EndpointGroup>(group) {
            group.links.app_profile = other.unwrap_or_default();
        }
    }
}
