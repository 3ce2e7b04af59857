//! What the gateway is told of an application profile, in the words of the original's `aci-gw` protocol.

use std::collections::BTreeMap;

use contiv_model::api::{AciGw, AppProfile, EndpointGroup, ExtContractsGroup, Policy, Rule};
use contiv_model::{global, group, network};
use serde::Serialize;

use crate::cache::{Draft, Pending, World};
use crate::problem::Problem;

/// The infrastructure type of an ACI fabric.
const ACI: &str = "aci";

/// Is the cluster at an ACI fabric?
pub fn is_on(draft: &Draft<'_>) -> bool {
    draft.get::<global::Config>("").is_some_and(|config| config.nw_infra_type == ACI)
}

pub fn is_on_in(world: &World) -> bool {
    world.get::<global::Config>("").is_some_and(|config| config.nw_infra_type == ACI)
}

/// Notes the profiles that the draft makes something else for the fabric.
pub fn note(draft: &mut Draft<'_>) {
    let world = draft.world();
    if !is_on(draft) || world.table::<AppProfile>().is_empty() {
        return;
    }
    let before = Draft::new(world);
    let was_on = is_on(&before);
    for profile in world.all::<AppProfile>() {
        let same = || Spec::of(profile, &before).ok() == Spec::of(profile, draft).ok();
        if !was_on || !same() {
            draft.put(&profile.key, Pending { id: profile.key.clone() });
        }
    }
}

/// The body of `createAppProf`; with the names alone, that of `deleteAppProf`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Spec {
    #[serde(skip_serializing_if = "Option::is_none")]
    aci_gw_api_version: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gw_config: Option<AciGw>,
    tenant: String,
    app_prof: String,
    /// By their names: defined by the policies of the profile's groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    contract_defs: Vec<Contract>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    epgs: Vec<Group>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Contract {
    name: String,
    filter_info: Vec<Filter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Filter {
    #[serde(skip_serializing_if = "String::is_empty")]
    protocol: String,
    servport: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Group {
    name: String,
    nw_name: String,
    gw_cidr: String,
    vlan_tag: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    contract_links: Vec<Link>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Link {
    link_kind: Kind,
    #[serde(skip_serializing_if = "String::is_empty")]
    contract_name: String,
    #[serde(rename = "contract-dn", skip_serializing_if = "String::is_empty")]
    contract_dn: String,
    contract_kind: Whose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
enum Kind {
    Provide,
    Consume,
}

/// Whether this profile defines the contract, or the fabric has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
enum Whose {
    Internal,
    External,
}

const VERSION: &str = "v1.2";
/// The key of the gateway's settings.
const GATEWAY: &str = "aciGw";

impl Spec {
    /// By name only.
    pub fn named(key: &str) -> Spec {
        let (tenant, profile) = key.split_once(':').unwrap_or(("", key));
        Spec { tenant: tenant.to_owned(), app_prof: profile.to_owned(), ..Spec::default() }
    }

    /// All that the store, with the draft's changes, says of the profile.
    pub fn of(profile: &AppProfile, draft: &Draft<'_>) -> Result<Spec, Problem> {
        let profile = draft.get::<AppProfile>(&profile.key).ok_or_else(Problem::key_not_found)?;
        let mut contracts = BTreeMap::new();
        let mut epgs = vec![];
        for key in profile.link_sets.endpoint_groups.keys() {
            let group = draft.get::<EndpointGroup>(key);
            let group = group.ok_or_else(|| Problem::not_found(format!("Epg {key} does not exist")))?;
            epgs.push(Group::of(&group, draft, &mut contracts)?);
        }
        let contract = |(name, filter_info)| Contract { name, filter_info };
        Ok(Spec {
            aci_gw_api_version: Some(VERSION),
            gw_config: draft.get::<AciGw>(GATEWAY).map(|settings| (*settings).clone()),
            contract_defs: contracts.into_iter().map(contract).collect(),
            epgs,
            ..Spec::named(&profile.key)
        })
    }
}

/// Filters by the names of their contracts.
type Contracts = BTreeMap<String, Vec<Filter>>;

impl Group {
    fn of(group: &EndpointGroup, draft: &Draft<'_>, contracts: &mut Contracts) -> Result<Group, Problem> {
        let (name, tenant) = (&group.group_name, &group.tenant_name);
        let missing = |what: String| Problem::not_found(format!("{what} has no state"));
        let state = draft.ledger_before::<group::State>(&format!("{name}:{tenant}"));
        let state = &state.ok_or_else(|| missing(format!("group {}", group.key)))?.body;
        let id = format!("{}.{tenant}", group.network_name);
        let network = &draft.ledger_before::<network::State>(&id).ok_or_else(|| missing(id))?.body;
        let mut links = vec![];
        for policy in &group.policies {
            let policy = draft.get::<Policy>(&format!("{tenant}:{policy}"));
            for rule in policy.iter().flat_map(|policy| policy.link_sets.rules.keys()) {
                let Some(rule) = draft.get::<Rule>(rule) else { continue };
                links.extend(define(&rule, contracts)?);
            }
        }
        let matching = group.link_sets.match_rules.keys().filter_map(|key| draft.get::<Rule>(key));
        links.extend(matching.filter(|rule| rule.action != "deny").map(|rule| Link::of_matched(&rule)));
        for name in &group.ext_contracts_grps {
            let external = draft.get::<ExtContractsGroup>(&format!("{tenant}:{name}"));
            links.extend(external.iter().flat_map(|external| Link::of_external(external)));
        }
        let mut once: Vec<Link> = vec![];
        links.into_iter().for_each(|link| {
            if !once.contains(&link) {
                once.push(link);
            }
        });
        Ok(Group {
            name: name.clone(),
            nw_name: group.network_name.clone(),
            gw_cidr: format!("{}/{}", network.gateway, network.subnet_len),
            vlan_tag: state.pkt_tag.to_string(),
            contract_links: once,
        })
    }
}

/// The rule becomes a filter of a contract that the group is linked to; one that denies becomes nothing, for what no
/// contract allows is denied.
fn define(rule: &Rule, contracts: &mut Contracts) -> Result<Option<Link>, Problem> {
    let addresses = [&rule.from_ip_address, &rule.from_network, &rule.to_ip_address, &rule.to_network];
    if addresses.into_iter().any(|text| !text.is_empty()) {
        let key = &rule.key;
        let error = format!("rule {key} is invalid, only From/ToEndpointGroup may be specified in ACI mode");
        return Err(Problem::conflict(error));
    }
    if rule.action == "deny" {
        return Ok(None);
    }
    let filter = Filter { protocol: rule.protocol.clone(), servport: rule.port.to_string() };
    let filters: &mut Vec<Filter> = contracts.entry(contract_name(rule)).or_default();
    if !filters.contains(&filter) {
        filters.push(filter);
    }
    let kind = if rule.to_endpoint_group.is_empty() { Kind::Provide } else { Kind::Consume };
    Ok(Some(Link::internal(kind, rule)))
}

fn contract_name(rule: &Rule) -> String {
    let policy = &rule.policy_name;
    match (rule.from_endpoint_group.as_str(), rule.to_endpoint_group.as_str()) {
        ("", "") => format!("{policy}Expose"),
        ("", provider) => format!("{policy}To{provider}"),
        (consumer, _) => format!("{policy}Frm{consumer}"),
    }
}

impl Link {
    fn internal(link_kind: Kind, rule: &Rule) -> Link {
        Link {
            link_kind,
            contract_name: contract_name(rule),
            contract_dn: String::new(),
            contract_kind: Whose::Internal,
        }
    }

    /// Of the group that the rule names: the other side.
    fn of_matched(rule: &Rule) -> Link {
        let kind = if rule.from_endpoint_group.is_empty() { Kind::Provide } else { Kind::Consume };
        Link::internal(kind, rule)
    }

    fn of_external(contracts: &ExtContractsGroup) -> impl Iterator<Item = Link> {
        let link_kind = if contracts.contracts_type == "consumed" { Kind::Consume } else { Kind::Provide };
        contracts.contracts.iter().map(move |dn| Link {
            link_kind,
            contract_name: String::new(),
            contract_dn: dn.clone(),
            contract_kind: Whose::External,
        })
    }
}
