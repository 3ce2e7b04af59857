//! `netctl group`.

use clap::Args;
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    commands::object::CreateArgs,
    flags::TenantFlag,
    output::text,
    schema::{Field, Kind, Mutability, format::Format},
};

const FIELDS: [&str; 7] =
    ["tenantName", "groupName", "networkName", "ipPool", "cfgdTag", "policies", "netProfile"];

/// Endpoint groups.
pub static KIND: Kind = Kind {
    object_type: ObjectType::EndpointGroup,
    aliases: &["group", "epg"],
    key_fields: &["tenantName", "groupName"],
    fields: &[
        Field::tenant(),
        Field::new("groupName", Format::Name).required(),
        Field::reference("networkName", Format::Name, ObjectType::Network).required(),
        Field::new("ipPool", Format::POOL),
        Field::reference("policies", Format::List(&Format::Name), ObjectType::Policy),
        Field::reference("netProfile", Format::Text, ObjectType::Netprofile),
        Field::reference("extContractsGrps", Format::List(&Format::Name), ObjectType::ExtContractsGroup),
        Field::new("cfgdTag", Format::Name),
    ],
    mutability: Mutability::Except(&["networkName", "ipPool", "cfgdTag"]),
    columns: &[
        ("Tenant", "------"),
        ("Group", "-----"),
        ("Network", "-------"),
        ("IP Pool", "-------"),
        ("CfgdTag", "-------"),
        ("Policies", "--------"),
        ("Network profile", "---------------"),
    ],
    row: |group| FIELDS.map(|field| text(group, field)).into(),
    created: "Creating EndpointGroup {key}",
    deleted: "",
    check: None,
};

/// Arguments of `netctl group create`.
#[derive(Args, Clone, Debug)]
pub struct Create {
    /// Tenant of the group.
    #[command(flatten)]
    pub tenant: TenantFlag,
    /// Network of the group's endpoints.
    pub network: String,
    /// Name of the group.
    pub group: String,
    /// Policy to attach; repeatable.
    #[arg(long, short)]
    pub policy: Vec<String>,
    /// Network profile to attach.
    #[arg(long, short)]
    pub networkprofile: Option<String>,
    /// Group of external contracts to attach; repeatable.
    #[arg(long, short)]
    pub external_contract: Vec<String>,
    /// Addresses of the network for this group's endpoints, such as 10.1.1.10-10.1.1.20.
    #[arg(long, short = 'r')]
    pub ip_pool: Option<String>,
    /// Tag of the group, for lookups by tag (also -tag).
    #[arg(long, visible_alias = "tag")]
    pub epg_tag: Option<String>,
}

impl CreateArgs for Create {
    fn name(&self) -> (&str, &str) {
        (&self.tenant.tenant, &self.group)
    }

    fn fields(&self) -> Value {
        json!({
            "networkName": self.network,
            "policies": self.policy,
            "netProfile": self.networkprofile.as_deref().unwrap_or_default(),
            "extContractsGrps": self.external_contract,
            "ipPool": self.ip_pool.as_deref().unwrap_or_default(),
            "cfgdTag": self.epg_tag.as_deref().unwrap_or_default(),
        })
    }
}
