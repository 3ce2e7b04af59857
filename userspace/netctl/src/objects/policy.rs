//! `netctl policy`.

use std::io::Write;

use clap::{Args, Subcommand};
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    client::Client,
    commands::object::{self, CreateArgs, ObjectCommand},
    error::{Error, Outcome},
    flags::ObjectName,
    objects::rule,
    observe::policy_check,
    output::text,
    schema::{Field, Kind, Mutability, format::Format},
};

/// Policies.
pub static KIND: Kind = Kind {
    object_type: ObjectType::Policy,
    aliases: &[],
    key_fields: &["tenantName", "policyName"],
    fields: &[Field::tenant(), Field::new("policyName", Format::Name).required()],
    mutability: Mutability::Except(&[]),
    columns: &[("Tenant", "------"), ("Policy", "------")],
    row: |policy| ["tenantName", "policyName"].map(|field| text(policy, field)).into(),
    created: "Creating policy {key}",
    deleted: "Deleting policy {key}",
    check: None,
};

/// Commands for policies.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Commands that every kind has. A new policy has no rules; deleting a policy deletes its rules.
    #[command(flatten)]
    Common(ObjectCommand<Create>),
    /// List the rules of a policy by priority.
    RuleLs(rule::List),
    /// Add a rule to a policy.
    RuleAdd(Box<rule::Add>),
    /// Delete a rule of a policy.
    RuleRm(rule::Remove),
    /// Evaluate the policies for a connection and show the deciding rules. Exit code 5 if it is denied.
    Check(policy_check::Check),
}

/// Arguments of `netctl policy create`.
#[derive(Args, Debug)]
pub struct Create {
    #[command(flatten)]
    object: ObjectName,
}

impl CreateArgs for Create {
    fn name(&self) -> (&str, &str) {
        self.object.parts()
    }

    fn fields(&self) -> Value {
        json!({})
    }
}

/// Runs a command.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<Outcome, Error> {
    let done = match command {
        Command::Check(check) => return policy_check::run(client, check, out),
        Command::Common(command) => object::run(&KIND, client, command, out),
        Command::RuleLs(args) => rule::list(client, args, out),
        Command::RuleAdd(args) => rule::add(client, args),
        Command::RuleRm(args) => rule::remove(client, args),
    };
    done.map(|()| Outcome::Done)
}
