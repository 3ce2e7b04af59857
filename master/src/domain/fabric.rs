//! Application profiles as the ACI gateway receives them, in the original's `aci-gw` protocol.

mod pending;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use contiv_model::api::{AciGw, AppProfile, EndpointGroup, ExtContractsGroup, Global, Policy, Rule};
use contiv_model::{global, group, network};
use serde::Serialize;

pub use pending::mark_pending;

use crate::cache::{ClusterCache, ONLY, StagedTxn};
use crate::problem::Problem;

/// Infrastructure type of an ACI fabric.
const ACI: &str = "aci";
/// Key of the object with the settings of the cluster.
const SETTINGS: &str = "global";

/// Whether a cluster with these settings runs in ACI mode.
pub fn is_aci(config: &global::Config) -> bool {
    config.nw_infra_type == ACI
}

/// Whether the cluster runs in ACI mode; none if no record that can be decoded has the mode.
///
/// It is in the settings of the agents. Requests write it to the object `Global`, too, which is read while the settings
/// cannot be decoded.
pub fn aci_mode(staged: &StagedTxn<'_>) -> Option<bool> {
    let cache = staged.cache();
    let is_replaced = || staged.changed::<global::Config>().next().is_some();
    if !cache.is_unreadable::<global::Config>(ONLY) || is_replaced() {
        return Some(has_aci_config(staged));
    }
    let global = staged.get::<Global>(SETTINGS).filter(|_| !cache.is_unreadable::<Global>(SETTINGS))?;
    // A request without a type leaves that of the settings as it is.
    (!global.network_infra_type.is_empty()).then(|| global.network_infra_type == ACI)
}

fn has_aci_config(staged: &StagedTxn<'_>) -> bool {
    staged.get::<global::Config>(ONLY).is_some_and(|config| is_aci(&config))
}

/// Whether the cluster runs in ACI mode. If no record has the mode, the last valid settings of the agents decide.
pub fn is_enabled(staged: &StagedTxn<'_>) -> bool {
    aci_mode(staged).unwrap_or_else(|| has_aci_config(staged))
}

pub fn is_enabled_in(cache: &ClusterCache) -> bool {
    is_enabled(&StagedTxn::new(cache))
}

/// Body of `createAppProf`. With only the names set, body of `deleteAppProf`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Spec {
    #[serde(skip_serializing_if = "Option::is_none")]
    aci_gw_api_version: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gw_config: Option<AciGw>,
    tenant: String,
    app_prof: String,
    /// Contracts by name, defined by the policies of the profile's groups.
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

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
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

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Link {
    link_kind: Kind,
    #[serde(skip_serializing_if = "String::is_empty")]
    contract_name: String,
    #[serde(rename = "contract-dn", skip_serializing_if = "String::is_empty")]
    contract_dn: String,
    contract_kind: ContractKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
enum Kind {
    Provide,
    Consume,
}

/// Whether the contract is defined by this profile or by the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
enum ContractKind {
    Internal,
    External,
}

const VERSION: &str = "v1.2";
/// Key of the gateway settings.
const GATEWAY: &str = "aciGw";

impl Spec {
    /// Specification with only the names, as `deleteAppProf` takes it.
    pub fn named(key: &str) -> Spec {
        let (tenant, profile) = key.split_once(':').unwrap_or(("", key));
        Spec { tenant: tenant.to_owned(), app_prof: profile.to_owned(), ..Spec::default() }
    }

    /// Full specification of the profile, with staged changes applied.
    pub fn of(profile: &AppProfile, staged: &StagedTxn<'_>) -> Result<Spec, Problem> {
        let profile = staged.get::<AppProfile>(&profile.key).ok_or_else(Problem::key_not_found)?;
        let mut contracts = Contracts::default();
        let mut epgs = vec![];
        for key in profile.link_sets.endpoint_groups.keys() {
            let group = staged.get::<EndpointGroup>(key);
            let group = group.ok_or_else(|| Problem::not_found(format!("Epg {key} does not exist")))?;
            epgs.push(Group::of(&group, staged, &mut contracts)?);
        }
        let contract = |(name, filter_info)| Contract { name, filter_info };
        Ok(Spec {
            aci_gw_api_version: Some(VERSION),
            gw_config: staged.get::<AciGw>(GATEWAY).map(|settings| (*settings).clone()),
            contract_defs: contracts.filters.into_iter().map(contract).collect(),
            epgs,
            ..Spec::named(&profile.key)
        })
    }
}

#[derive(Default)]
struct Contracts {
    /// Filters by contract name.
    filters: BTreeMap<String, Vec<Filter>>,
    /// The same filters, with the names of their contracts.
    known: HashSet<(String, Filter)>,
}

impl Group {
    fn of(
        group: &EndpointGroup,
        staged: &StagedTxn<'_>,
        contracts: &mut Contracts,
    ) -> Result<Group, Problem> {
        let (name, tenant) = (&group.group_name, &group.tenant_name);
        let missing = |what: String| Problem::not_found(format!("{what} has no state"));
        let state = staged.committed::<group::State>(&format!("{name}:{tenant}"));
        let state = &state.ok_or_else(|| missing(format!("group {}", group.key)))?.body;
        let id = format!("{}.{tenant}", group.network_name);
        let network = &staged.committed::<network::State>(&id).ok_or_else(|| missing(id))?.body;
        let mut links = vec![];
        for policy in distinct(&group.policies) {
            for rule in staged.linked::<Policy, Rule>(&format!("{tenant}:{policy}")).iter() {
                let Some(rule) = staged.get::<Rule>(rule) else { continue };
                links.extend(define(&rule, contracts)?);
            }
        }
        let matching = staged.linked::<EndpointGroup, Rule>(&group.key);
        let matching = matching.iter().filter_map(|key| staged.get::<Rule>(key));
        links.extend(matching.filter(|rule| rule.action != "deny").map(|rule| Link::of_matched(&rule)));
        for name in distinct(&group.ext_contracts_grps) {
            let external = staged.get::<ExtContractsGroup>(&format!("{tenant}:{name}"));
            links.extend(external.iter().flat_map(|external| Link::of_external(external)));
        }
        let mut known = HashSet::new();
        links.retain(|link| known.insert(link.clone()));
        Ok(Group {
            name: name.clone(),
            nw_name: group.network_name.clone(),
            gw_cidr: format!("{}/{}", network.gateway, network.subnet_len),
            vlan_tag: state.pkt_tag.to_string(),
            contract_links: links,
        })
    }
}

/// The names in their order, each once.
fn distinct(names: &[String]) -> impl Iterator<Item = &str> {
    let mut seen = BTreeSet::new();
    names.iter().map(String::as_str).filter(move |name| seen.insert(*name))
}

/// Adds the rule as a filter of a contract, and returns the group's link to it. A deny rule adds
/// nothing: traffic that no contract allows is denied.
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
    let name = contract_name(rule);
    if contracts.known.insert((name.clone(), filter.clone())) {
        contracts.filters.entry(name).or_default().push(filter);
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
            contract_kind: ContractKind::Internal,
        }
    }

    /// Link of the group that the rule refers to: the other side of the contract.
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
            contract_kind: ContractKind::External,
        })
    }
}
