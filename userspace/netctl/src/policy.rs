//! `netctl policy`.

use std::io::Write;

use clap::{Args, Subcommand};
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    Error, Outcome, check,
    cli::Named,
    client::Client,
    kind::{Change, Field, Form, Kind},
    listing::text,
    rule,
    verb::{self, Make, Verb},
};

/// Policies.
pub static KIND: Kind = Kind {
    of: ObjectType::Policy,
    words: &[],
    key: &["tenantName", "policyName"],
    fields: &[Field::tenant(), Field::new("policyName", Form::Name).required()],
    change: Change::AllBut(&[]),
    columns: &[("Tenant", "------"), ("Policy", "------")],
    row: |policy| ["tenantName", "policyName"].map(|field| text(policy, field)).into(),
    created: "Creating policy {key}",
    deleted: "Deleting policy {key}",
};

/// What can be done with policies.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// What every kind has. A policy is made without rules, and removed with them.
    #[command(flatten)]
    Each(Verb<Create>),
    /// Lists the rules of a policy by priority.
    RuleLs(rule::List),
    /// Adds a rule to a policy.
    RuleAdd(Box<rule::Add>),
    /// Removes a rule from a policy.
    RuleRm(rule::Remove),
    /// Tells whether policies let a connection through, and by which rules. Exit code 5 if they do not.
    Check(check::Check),
}

/// A policy to make.
#[derive(Args, Debug)]
pub struct Create {
    #[command(flatten)]
    named: Named,
}

impl Make for Create {
    fn named(&self) -> (&str, &str) {
        self.named.parts()
    }

    fn fields(&self) -> Value {
        json!({})
    }
}

/// Runs one of the commands.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<Outcome, Error> {
    let done = match command {
        Command::Check(it) => return check::run(client, it, out),
        Command::Each(verb) => verb::run(&KIND, client, verb, out),
        Command::RuleLs(how) => rule::list(client, how, out),
        Command::RuleAdd(it) => rule::add(client, it),
        Command::RuleRm(it) => rule::remove(client, it),
    };
    done.map(|()| Outcome::Done)
}
