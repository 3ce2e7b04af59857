//! `netctl external-contracts`.

use clap::{ArgGroup, Args};
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    cli::Named,
    kind::{Change, Field, Form, Kind},
    listing::text,
    verb::Make,
};

/// Groups of external contracts; the empty columns are the original's.
pub static KIND: Kind = Kind {
    of: ObjectType::ExtContractsGroup,
    words: &["external-contract"],
    key: &["tenantName", "contractsGroupName"],
    fields: &[
        Field::tenant(),
        Field::new("contractsGroupName", Form::Name).required(),
        Field::new("contractsType", Form::OneOf(&["provided", "consumed"])).required(),
        Field::new("contracts", Form::List(&Form::Text)),
    ],
    change: Change::Never,
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
};

/// A contract group to make: either provided or consumed.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("type").required(true).args(["consumed", "provided"])))]
pub struct Create {
    #[command(flatten)]
    named: Named,
    /// The contracts are consumed.
    #[arg(long, short)]
    consumed: bool,
    /// The contracts are provided.
    #[arg(long, short)]
    provided: bool,
    /// A contract; may be given again.
    #[arg(long, short = 'a')]
    contract: Vec<String>,
}

impl Make for Create {
    fn named(&self) -> (&str, &str) {
        self.named.parts()
    }

    fn fields(&self) -> Value {
        let of_type = if self.provided { "provided" } else { "consumed" };
        json!({"contractsType": of_type, "contracts": self.contract})
    }
}
