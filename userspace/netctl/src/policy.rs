//! `netctl policy`.

use std::io::Write;

use clap::{Args, Subcommand, ValueEnum};
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    Error,
    cli::{Form, Inspected, Listed, Named, OfTenant, Shown},
    client::Client,
    listing::{Listing, inspect, pretty, text, yaml},
    table::{self, Column},
};

/// What can be done with policies.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists the policies of a tenant.
    #[command(visible_alias = "list")]
    Ls(Listed),
    /// Makes a policy without rules.
    Create(Named),
    /// Removes a policy that no group has, with its rules.
    #[command(visible_alias = "delete")]
    Rm(Named),
    /// Shows a policy and the endpoints that it is for.
    Inspect(Inspected),
    /// Lists the rules of a policy by priority.
    RuleLs(RuleLs),
    /// Adds a rule to a policy.
    RuleAdd(Box<RuleAdd>),
    /// Removes a rule from a policy.
    RuleRm(RuleRm),
}

/// `netctl policy rule-ls`.
#[derive(Args, Debug)]
pub struct RuleLs {
    #[command(flatten)]
    of: OfTenant,
    #[command(flatten)]
    shown: Shown,
    /// The policy.
    policy: String,
}

/// `netctl policy rule-rm`.
#[derive(Args, Debug)]
pub struct RuleRm {
    #[command(flatten)]
    of: OfTenant,
    /// The policy.
    policy: String,
    /// The rule's id.
    rule: String,
}

/// Seen from the endpoints of the policy's groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Direction {
    In,
    Out,
}

/// `netctl policy rule-add`.
#[derive(Args, Debug)]
pub struct RuleAdd {
    #[command(flatten)]
    of: OfTenant,
    /// 1 to 100; the highest that matches decides.
    #[arg(long, short, default_value_t = 1)]
    priority: i64,
    /// Of the connection, seen from the policy's groups.
    #[arg(long, short, value_enum, default_value = "in")]
    direction: Direction,
    /// The group that an incoming connection comes from.
    #[arg(long, short = 'g')]
    from_group: Option<String>,
    /// The group that an outgoing connection goes to.
    #[arg(long, short = 'e')]
    to_group: Option<String>,
    /// The network that an incoming connection comes from.
    #[arg(long, short = 'n')]
    from_network: Option<String>,
    /// The network that an outgoing connection goes to.
    #[arg(long, short = 'o')]
    to_network: Option<String>,
    /// The address or subnet that an incoming connection comes from.
    #[arg(long, short = 'i')]
    from_ip_address: Option<String>,
    /// The address or subnet that a connection goes to.
    #[arg(long, short = 's')]
    to_ip_address: Option<String>,
    /// tcp, udp, icmp or a number; any unless given.
    #[arg(long, short = 'l')]
    protocol: Option<String>,
    /// The port that a connection goes to; any unless given.
    #[arg(long, short = 'P', default_value_t = 0)]
    port: u16,
    /// `allow` or `deny`.
    #[arg(long, short = 'j', default_value = "allow", value_parser = ["allow", "deny"])]
    action: String,
    /// The policy.
    policy: String,
    /// The rule's id.
    rule: String,
}

/// As lists show policies.
pub const LISTING: Listing = Listing {
    kind: ObjectType::Policy,
    name: "policyName",
    columns: &[("Tenant", "------"), ("Policy", "------")],
    row: |policy| ["tenantName", "policyName"].map(|field| text(policy, field)).into(),
};

/// The titles that incoming and outgoing rules share at the end.
const INCOMING: &[Column] = &[
    ("Rule", "----"),
    ("Priority", "--------"),
    ("From EndpointGroup", "------------------"),
    ("From Network", "------------"),
    ("From IpAddress", "---------"),
    ("To IpAddress", "------------"),
    ("Protocol", "--------"),
    ("Port", "----"),
    ("Action", "------"),
];
const INCOMING_FIELDS: [&str; 9] = [
    "ruleId",
    "priority",
    "fromEndpointGroup",
    "fromNetwork",
    "fromIpAddress",
    "toIpAddress",
    "protocol",
    "port",
    "action",
];
const OUTGOING: &[Column] = &[
    ("Rule", "----"),
    ("Priority", "--------"),
    ("To EndpointGroup", "----------------"),
    ("To Network", "----------"),
    ("To IpAddress", "---------"),
    ("Protocol", "--------"),
    ("Port", "----"),
    ("Action", "------"),
];
const OUTGOING_FIELDS: [&str; 8] =
    ["ruleId", "priority", "toEndpointGroup", "toNetwork", "toIpAddress", "protocol", "port", "action"];

/// Runs one of the commands.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Ls(how) => LISTING.of_tenant(client, how, out),
        Command::Create(it) => {
            let body = json!({"tenantName": it.of.tenant, "policyName": it.name});
            client.put(ObjectType::Policy, &it.key(), &body)?;
            Ok(writeln!(out, "Creating policy {}", it.key())?)
        }
        Command::Rm(it) => {
            client.delete(ObjectType::Policy, &it.key())?;
            Ok(writeln!(out, "Deleting policy {}", it.key())?)
        }
        Command::Inspect(it) => inspect(client, "policy", &it.named.key(), &it.form, out),
        Command::RuleLs(how) => rules(client, how, out),
        Command::RuleAdd(rule) => add(client, rule),
        Command::RuleRm(it) => {
            client.delete(ObjectType::Rule, &format!("{}:{}:{}", it.of.tenant, it.policy, it.rule))
        }
    }
}

fn rules(client: &Client, how: &RuleLs, out: &mut dyn Write) -> Result<(), Error> {
    client.object(ObjectType::Policy, &format!("{}:{}", how.of.tenant, how.policy))?;
    let mut rules = client.list(ObjectType::Rule)?;
    rules.retain(|rule| text(rule, "tenantName") == how.of.tenant && text(rule, "policyName") == how.policy);
    rules.sort_by_cached_key(|rule| (rule["priority"].as_i64().unwrap_or(0), text(rule, "key")));
    match how.shown.form() {
        Form::Json => pretty(out, &Value::Array(rules)),
        Form::Yaml => yaml(out, &Value::Array(rules)),
        Form::Name => Ok(rules.iter().try_for_each(|rule| writeln!(out, "{}", text(rule, "ruleId")))?),
        Form::Table => {
            writeln!(out, "Incoming Rules:")?;
            table::write(out, INCOMING, &rows(&rules, "in", &INCOMING_FIELDS))?;
            writeln!(out, "Outgoing Rules:")?;
            Ok(table::write(out, OUTGOING, &rows(&rules, "out", &OUTGOING_FIELDS))?)
        }
    }
}

fn rows(rules: &[Value], direction: &str, fields: &[&str]) -> Vec<Vec<String>> {
    let cell = |rule: &Value, field: &str| match field {
        "port" | "priority" => rule.get(field).and_then(Value::as_i64).unwrap_or(0).to_string(),
        _ => text(rule, field),
    };
    let those = rules.iter().filter(|rule| text(rule, "direction") == direction);
    those.map(|rule| fields.iter().map(|field| cell(rule, field)).collect()).collect()
}

fn add(client: &Client, rule: &RuleAdd) -> Result<(), Error> {
    let (direction, misplaced) = match rule.direction {
        Direction::In => {
            ("in", [("to-group", &rule.to_group), ("to-network", &rule.to_network), ("", &None)])
        }
        Direction::Out => (
            "out",
            [
                ("from-group", &rule.from_group),
                ("from-network", &rule.from_network),
                ("from-ip-address", &rule.from_ip_address),
            ],
        ),
    };
    if let Some((flag, _)) = misplaced.iter().find(|(_, value)| value.is_some()) {
        let rule = if direction == "in" { "incoming" } else { "outgoing" };
        return Err(Error::Usage(format!("Cant specify {flag} for {rule} rule")));
    }
    let body = json!({
        "tenantName": rule.of.tenant,
        "policyName": rule.policy,
        "ruleId": rule.rule,
        "priority": rule.priority,
        "direction": direction,
        "fromEndpointGroup": rule.from_group.as_deref().unwrap_or_default(),
        "toEndpointGroup": rule.to_group.as_deref().unwrap_or_default(),
        "fromNetwork": rule.from_network.as_deref().unwrap_or_default(),
        "toNetwork": rule.to_network.as_deref().unwrap_or_default(),
        "fromIpAddress": rule.from_ip_address.as_deref().unwrap_or_default(),
        "toIpAddress": rule.to_ip_address.as_deref().unwrap_or_default(),
        "protocol": rule.protocol.as_deref().unwrap_or_default(),
        "port": rule.port,
        "action": rule.action,
    });
    let key = format!("{}:{}:{}", rule.of.tenant, rule.policy, rule.rule);
    client.put(ObjectType::Rule, &key, &body).map(drop)
}
