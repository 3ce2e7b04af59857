//! `netctl aci-gw`.

use clap::Args;
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    kind::{Change, Field, Form, Kind},
    listing::text,
    settings::Named,
};

/// The gateway's settings.
pub static KIND: Kind = Kind {
    of: ObjectType::AciGw,
    words: &["aci-gw"],
    key: &["name"],
    fields: &[
        Field::new("name", Form::OneOf(&["aciGw"])).required(),
        Field::new("pathBindings", Form::Text),
        Field::new("nodeBindings", Form::Text),
        Field::new("physicalDomain", Form::Name),
        Field::new("enforcePolicies", Form::OneOf(&["yes", "no"])),
        Field::new("includeCommonTenant", Form::OneOf(&["yes", "no"])),
    ],
    change: Change::Settings,
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
};

/// The settings that `netctl aci-gw set` changes.
#[derive(Args, Debug)]
pub struct Set {
    /// Path bindings, with commas between them.
    #[arg(long, short)]
    path_bindings: Option<String>,
    /// Node bindings, with commas between them.
    #[arg(long, short)]
    node_bindings: Option<String>,
    /// The physical domain.
    #[arg(long = "phys-domain", short = 'd')]
    physical_domain: Option<String>,
    /// Whether policies are enforced: yes unless set.
    #[arg(long, short, value_parser = ["yes", "no"])]
    enforce_policies: Option<String>,
    /// Whether the tenant `common` is included: no unless set.
    #[arg(long, short, value_parser = ["yes", "no"])]
    include_common_tenant: Option<String>,
}

impl Named for Set {
    fn named(&self) -> Vec<(&'static str, &Option<String>)> {
        vec![
            ("pathBindings", &self.path_bindings),
            ("nodeBindings", &self.node_bindings),
            ("physicalDomain", &self.physical_domain),
            ("enforcePolicies", &self.enforce_policies),
            ("includeCommonTenant", &self.include_common_tenant),
        ]
    }

    fn fresh() -> Option<Value> {
        Some(json!({"name": "aciGw", "enforcePolicies": "yes", "includeCommonTenant": "no"}))
    }
}
