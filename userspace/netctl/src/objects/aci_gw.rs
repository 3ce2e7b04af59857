//! `netctl aci-gw`.

use clap::Args;
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    commands::settings::SetFlags,
    output::text,
    schema::{Field, Kind, Mutability, format::Format},
};

/// Settings of the ACI gateway.
pub static KIND: Kind = Kind {
    object_type: ObjectType::AciGw,
    aliases: &["aci-gw"],
    key_fields: &["name"],
    fields: &[
        Field::new("name", Format::OneOf(&["aciGw"])).required(),
        Field::new("pathBindings", Format::Text),
        Field::new("nodeBindings", Format::Text),
        Field::new("physicalDomain", Format::Name),
        Field::new("enforcePolicies", Format::OneOf(&["yes", "no"])),
        Field::new("includeCommonTenant", Format::OneOf(&["yes", "no"])),
    ],
    mutability: Mutability::Settings,
    columns: &[
        ("Path bindings", "-------------"),
        ("Node bindings", "-------------"),
        ("Physical domain", "---------------"),
        ("Enforce policies", "----------------"),
        ("Include Common-Tenant", "---------------------"),
    ],
    row: |settings| {
        ["pathBindings", "nodeBindings", "physicalDomain", "enforcePolicies", "includeCommonTenant"]
            .map(|field| text(settings, field))
            .into()
    },
    created: "",
    deleted: "",
    check: None,
};

/// Flags of `netctl aci-gw set`.
#[derive(Args, Debug)]
pub struct Set {
    /// Path bindings, comma-separated.
    #[arg(long, short)]
    path_bindings: Option<String>,
    /// Node bindings, comma-separated.
    #[arg(long, short)]
    node_bindings: Option<String>,
    /// Physical domain.
    #[arg(long = "phys-domain", short = 'd')]
    physical_domain: Option<String>,
    /// Whether ACI enforces policies [default: yes].
    #[arg(long, short, value_parser = ["yes", "no"])]
    enforce_policies: Option<String>,
    /// Whether the tenant `common` is included [default: no].
    #[arg(long, short, value_parser = ["yes", "no"])]
    include_common_tenant: Option<String>,
}

impl SetFlags for Set {
    fn changes(&self) -> Vec<(&'static str, &Option<String>)> {
        vec![
            ("pathBindings", &self.path_bindings),
            ("nodeBindings", &self.node_bindings),
            ("physicalDomain", &self.physical_domain),
            ("enforcePolicies", &self.enforce_policies),
            ("includeCommonTenant", &self.include_common_tenant),
        ]
    }

    fn initial() -> Option<Value> {
        Some(json!({"name": "aciGw", "enforcePolicies": "yes", "includeCommonTenant": "no"}))
    }
}
