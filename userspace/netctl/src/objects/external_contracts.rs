//! `netctl external-contracts`.

use clap::{ArgGroup, Args};
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    commands::object::CreateArgs,
    flags::ObjectName,
    output::text,
    schema::{Field, Kind, Mutability, format::Format},
};

/// Groups of external contracts. The empty columns are those of the original.
pub static KIND: Kind = Kind {
    object_type: ObjectType::ExtContractsGroup,
    aliases: &["external-contract"],
    key_fields: &["tenantName", "contractsGroupName"],
    fields: &[
        Field::tenant(),
        Field::new("contractsGroupName", Format::Name).required(),
        Field::new("contractsType", Format::OneOf(&["provided", "consumed"])).required(),
        Field::new("contracts", Format::List(&Format::Text)),
    ],
    mutability: Mutability::Immutable,
    columns: &[
        ("Tenant", "------"),
        ("Name", "------"),
        ("", ""),
        ("Type", "------"),
        ("", ""),
        ("Contracts", "-------"),
    ],
    row: |group| {
        vec![
            text(group, "tenantName"),
            text(group, "contractsGroupName"),
            String::new(),
            text(group, "contractsType"),
            format!("[{}]", text(group, "contracts").replace(',', " ")),
        ]
    },
    created: "Creating ExternalContracts {key}",
    deleted: "Deleting external contracts group {name} in tenant {tenant}",
    check: None,
};

/// Arguments of `netctl external-contracts create`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("type").required(true).args(["consumed", "provided"])))]
pub struct Create {
    #[command(flatten)]
    object: ObjectName,
    /// The group consumes the contracts.
    #[arg(long, short)]
    consumed: bool,
    /// The group provides the contracts.
    #[arg(long, short)]
    provided: bool,
    /// Name of a contract; repeatable.
    #[arg(long, short = 'a', required = true)]
    contract: Vec<String>,
}

impl CreateArgs for Create {
    fn name(&self) -> (&str, &str) {
        self.object.parts()
    }

    fn fields(&self) -> Value {
        let contracts_type = if self.provided { "provided" } else { "consumed" };
        json!({"contractsType": contracts_type, "contracts": self.contract})
    }
}
