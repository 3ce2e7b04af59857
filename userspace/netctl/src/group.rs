//! `netctl group`.

use clap::Args;
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    cli::OfTenant,
    kind::{Change, Field, Form, Kind},
    listing::text,
    verb::Make,
};

const FIELDS: [&str; 7] =
    ["tenantName", "groupName", "networkName", "ipPool", "cfgdTag", "policies", "netProfile"];

/// Endpoint groups.
pub static KIND: Kind = Kind {
    of: ObjectType::EndpointGroup,
    words: &["group", "epg"],
    key: &["tenantName", "groupName"],
    fields: &[
        Field::tenant(),
        Field::new("groupName", Form::Name).required(),
        Field::naming("networkName", Form::Name, ObjectType::Network).required(),
        Field::new("ipPool", Form::POOL),
        Field::naming("policies", Form::List(&Form::Name), ObjectType::Policy),
        Field::naming("netProfile", Form::Text, ObjectType::Netprofile),
        Field::naming("extContractsGrps", Form::List(&Form::Name), ObjectType::ExtContractsGroup),
        Field::new("cfgdTag", Form::Name),
    ],
    change: Change::AllBut(&["networkName", "ipPool", "cfgdTag"]),
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
};

/// A group to make.
#[derive(Args, Clone, Debug)]
pub struct Create {
    /// Whose.
    #[command(flatten)]
    pub of: OfTenant,
    /// The network that its endpoints are on.
    pub network: String,
    /// Its name.
    pub group: String,
    /// A policy to attach; may be given again.
    #[arg(long, short)]
    pub policy: Vec<String>,
    /// The net profile to attach.
    #[arg(long, short)]
    pub networkprofile: Option<String>,
    /// An external contract to attach; may be given again.
    #[arg(long, short)]
    pub external_contract: Vec<String>,
    /// The addresses that the group takes from its network, e.g. 10.1.1.10-10.1.1.20.
    #[arg(long, short = 'r')]
    pub ip_pool: Option<String>,
    /// A tag to find the group by (also -tag).
    #[arg(long, visible_alias = "tag")]
    pub epg_tag: Option<String>,
}

impl Make for Create {
    fn named(&self) -> (&str, &str) {
        (&self.of.tenant, &self.group)
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
