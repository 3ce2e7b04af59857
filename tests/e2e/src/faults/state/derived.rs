//! What netmaster derives from policies and application profiles: all of it is written, and nothing is left over.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use contiv_model::{
    api::{AppProfile, EndpointGroup},
    policy::PolicyState,
};

use super::{Check, State};

impl Check {
    /// Each policy of a group is expanded for it, and nothing else is.
    pub(super) fn policies(&mut self, state: &State) -> Result<()> {
        let groups = state.read_prefix::<EndpointGroup>("obj/modeldb/endpointGroup/")?;
        let attached = groups.iter().flat_map(|(key, group)| {
            group.policies.iter().map(move |policy| format!("{key}:{}:{policy}", group.tenant_name))
        });
        let expanded: BTreeMap<String, PolicyState> = state.read_prefix("state/policy/")?;
        self.same("policies of groups", &expanded.keys().cloned().collect(), &attached.collect());
        let rules: BTreeMap<String, serde_json::Value> = state.read_prefix("state/policyRule/")?;
        let directed = expanded.values().flat_map(|policy| policy.rules.values());
        let directed: BTreeSet<_> = directed.flat_map(|rule| rule.directed.keys().cloned()).collect();
        self.same("rules of groups", &rules.into_keys().collect(), &directed);
        Ok(())
    }

    /// Groups link to the application profile that contains them.
    pub(super) fn profiles(&mut self, state: &State) -> Result<()> {
        let groups = state.read_prefix::<EndpointGroup>("obj/modeldb/endpointGroup/")?;
        let linked: BTreeSet<_> = groups
            .into_iter()
            .filter(|(_, group)| !group.links.app_profile.key.is_empty())
            .map(|(key, group)| (key, group.links.app_profile.key))
            .collect();
        let profiles = state.read_prefix::<AppProfile>("obj/modeldb/appProfile/")?;
        let contained = profiles.into_iter().flat_map(|(profile, body)| {
            let groups = body.endpoint_groups.into_iter();
            groups.map(move |group| (format!("{}:{group}", body.tenant_name), profile.clone()))
        });
        self.same("groups of application profiles", &linked, &contained.collect());
        Ok(())
    }
}
