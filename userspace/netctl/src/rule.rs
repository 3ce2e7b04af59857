//! `netctl policy rule-...`.

use std::io::Write;

use clap::{Args, ValueEnum};
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    Error,
    cli::{Form as Shape, OfTenant, Shown},
    client::Client,
    kind::{Change, Field, Form, Kind, Preset},
    listing::{number, pretty, text, yaml},
    table::{self, Column},
};

/// Rules.
pub static KIND: Kind = Kind {
    of: ObjectType::Rule,
    words: &[],
    key: &["tenantName", "policyName", "ruleId"],
    fields: &[
        Field::tenant(),
        Field::naming("policyName", Form::Name, ObjectType::Policy).required(),
        Field::new("ruleId", Form::Name).required(),
        Field::new("priority", Form::Number(0, 100)).or(Preset::Number(1)),
        Field::new("direction", Form::OneOf(&["in", "out"])).required(),
        Field::naming("fromEndpointGroup", Form::Name, ObjectType::EndpointGroup),
        Field::naming("toEndpointGroup", Form::Name, ObjectType::EndpointGroup),
        Field::naming("fromNetwork", Form::Name, ObjectType::Network),
        Field::naming("toNetwork", Form::Name, ObjectType::Network),
        Field::new("fromIpAddress", Form::PEER).following("fromNetwork"),
        Field::new("toIpAddress", Form::PEER).following("toNetwork"),
        Field::new("protocol", Form::PROTOCOL),
        Field::new("port", Form::Number(0, 65535)),
        Field::new("action", Form::OneOf(&["allow", "deny"])).required(),
    ],
    change: Change::Never,
    columns: &[
        ("Tenant", "------"),
        ("Policy", "------"),
        ("Rule", "----"),
        ("Direction", "---------"),
        ("Priority", "--------"),
        ("EndpointGroup", "-------------"),
        ("Network", "-------"),
        ("IpAddress", "---------"),
        ("Protocol", "--------"),
        ("Port", "----"),
        ("Action", "------"),
    ],
    row,
    created: "",
    deleted: "",
};

fn row(rule: &Value) -> Vec<String> {
    let field = |name| text(rule, name);
    let either = |from, to| if field(from).is_empty() { field(to) } else { field(from) };
    vec![
        field("tenantName"),
        field("policyName"),
        field("ruleId"),
        field("direction"),
        number(rule, "priority").to_string(),
        either("fromEndpointGroup", "toEndpointGroup"),
        either("fromNetwork", "toNetwork"),
        either("fromIpAddress", "toIpAddress"),
        field("protocol"),
        number(rule, "port").to_string(),
        field("action"),
    ]
}

/// `netctl policy rule-ls`.
#[derive(Args, Debug)]
pub struct List {
    #[command(flatten)]
    of: OfTenant,
    #[command(flatten)]
    shown: Shown,
    /// The policy.
    policy: String,
}

/// `netctl policy rule-rm`.
#[derive(Args, Debug)]
pub struct Remove {
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
pub struct Add {
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

/// `netctl policy rule-ls`.
pub fn list(client: &Client, how: &List, out: &mut dyn Write) -> Result<(), Error> {
    client.object(ObjectType::Policy, &format!("{}:{}", how.of.tenant, how.policy))?;
    let mut rules = client.list(KIND.of)?;
    rules.retain(|rule| text(rule, "tenantName") == how.of.tenant && text(rule, "policyName") == how.policy);
    rules.sort_by_cached_key(|rule| (number(rule, "priority"), text(rule, "key")));
    match how.shown.form() {
        Shape::Json => pretty(out, &Value::Array(rules)),
        Shape::Yaml => yaml(out, &Value::Array(rules)),
        Shape::Name => Ok(rules.iter().try_for_each(|rule| writeln!(out, "{}", text(rule, "ruleId")))?),
        Shape::Table => {
            writeln!(out, "Incoming Rules:")?;
            table::write(out, INCOMING, &rows(&rules, "in", &INCOMING_FIELDS))?;
            writeln!(out, "Outgoing Rules:")?;
            Ok(table::write(out, OUTGOING, &rows(&rules, "out", &OUTGOING_FIELDS))?)
        }
    }
}

fn rows(rules: &[Value], direction: &str, fields: &[&str]) -> Vec<Vec<String>> {
    let cell = |rule: &Value, field: &str| match field {
        "port" | "priority" => number(rule, field).to_string(),
        _ => text(rule, field),
    };
    let those = rules.iter().filter(|rule| text(rule, "direction") == direction);
    those.map(|rule| fields.iter().map(|field| cell(rule, field)).collect()).collect()
}

/// `netctl policy rule-rm`.
pub fn remove(client: &Client, it: &Remove) -> Result<(), Error> {
    client.delete(KIND.of, &format!("{}:{}:{}", it.of.tenant, it.policy, it.rule))
}

/// `netctl policy rule-add`.
pub fn add(client: &Client, rule: &Add) -> Result<(), Error> {
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
    client.put(KIND.of, &key, &body).map(drop)
}
