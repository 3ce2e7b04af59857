//! `netctl policy rule-...`.

use std::io::Write;

use clap::{Args, ValueEnum};
use contiv_model::{key::ObjectType, policy};
use serde_json::{Value, json};

use crate::{
    client::{Client, listing::Selection},
    commands::watch,
    error::Error,
    flags::{ListFlags, TenantFlag, integer},
    output::{
        list::{self, Width},
        number,
        table::{self, Column},
        text,
    },
    schema::{DefaultValue, Field, Kind, Mutability, format::Format},
};

/// Rules.
pub static KIND: Kind = Kind {
    object_type: ObjectType::Rule,
    aliases: &[],
    key_fields: &["tenantName", "policyName", "ruleId"],
    fields: &[
        Field::tenant(),
        Field::reference("policyName", Format::Name, ObjectType::Policy).required(),
        Field::new("ruleId", Format::Name).required(),
        Field::new("priority", Format::Number(0, 100)).or(DefaultValue::Number(1)),
        Field::new("direction", Format::OneOf(&["in", "out"])).required(),
        Field::reference("fromEndpointGroup", Format::Name, ObjectType::EndpointGroup),
        Field::reference("toEndpointGroup", Format::Name, ObjectType::EndpointGroup),
        Field::reference("fromNetwork", Format::Name, ObjectType::Network),
        Field::reference("toNetwork", Format::Name, ObjectType::Network),
        Field::new("fromIpAddress", Format::PEER).derived_from("fromNetwork"),
        Field::new("toIpAddress", Format::PEER).derived_from("toNetwork"),
        Field::new("protocol", Format::PROTOCOL),
        Field::new("port", Format::at_most(65_535)),
        Field::new("action", Format::OneOf(&["allow", "deny"])).required(),
    ],
    mutability: Mutability::Immutable,
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
    check: Some(check),
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

/// netmaster accepts these rules, as the original does, and the nodes ignore the port or the protocol: a rule that is meant for
/// one port matches all.
fn check(rule: &Value) -> Option<String> {
    let (protocol, port) = (text(rule, "protocol"), number(rule, "port"));
    let is_number = !protocol.is_empty() && protocol.bytes().all(|byte| byte.is_ascii_digit());
    let code = match protocol.as_str() {
        "tcp" => Some(policy::TCP),
        "udp" => Some(policy::UDP),
        number => number.parse::<u8>().ok(),
    };
    if is_number && code.is_none() {
        return Some(format!("protocol {protocol}: expected tcp, udp, icmp or a number from 0 to 255"));
    }
    if port < 0 {
        return Some(format!("port {port}: expected a number from 0 to 65535"));
    }
    let has_ports = code.is_some_and(|code| [policy::TCP, policy::UDP].contains(&code));
    (port != 0 && !has_ports)
        .then(|| format!("port {port} requires protocol tcp or udp; without, the rule matches all ports"))
}

/// `netctl policy rule-ls`.
#[derive(Args, Debug)]
pub struct List {
    #[command(flatten)]
    tenant: TenantFlag,
    #[command(flatten)]
    flags: ListFlags,
    /// Name of the policy.
    policy: String,
}

/// `netctl policy rule-rm`.
#[derive(Args, Debug)]
pub struct Remove {
    #[command(flatten)]
    tenant: TenantFlag,
    /// Name of the policy.
    policy: String,
    /// Id of the rule.
    rule: String,
}

/// Direction of the connection, as seen from the endpoints of the policy's groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Direction {
    In,
    Out,
}

/// `netctl policy rule-add`.
#[derive(Args, Debug)]
pub struct Add {
    #[command(flatten)]
    tenant: TenantFlag,
    /// Priority, 1 to 100: of the matching rules, the one with the highest priority decides.
    #[arg(long, short, default_value_t = 1, value_parser = integer)]
    priority: i64,
    /// Direction of the connection, as seen from the endpoints of the policy's groups.
    #[arg(long, short, value_enum, default_value = "in")]
    direction: Direction,
    /// Source group of an incoming connection.
    #[arg(long, short = 'g')]
    from_group: Option<String>,
    /// Destination group of an outgoing connection.
    #[arg(long, short = 'e')]
    to_group: Option<String>,
    /// Source network of an incoming connection.
    #[arg(long, short = 'n')]
    from_network: Option<String>,
    /// Destination network of an outgoing connection.
    #[arg(long, short = 'o')]
    to_network: Option<String>,
    /// Source address or subnet of an incoming connection.
    #[arg(long, short = 'i')]
    from_ip_address: Option<String>,
    /// Destination address or subnet of the connection.
    #[arg(long, short = 's')]
    to_ip_address: Option<String>,
    /// IP protocol: tcp, udp, icmp or a number from 0 to 255 [default: any].
    #[arg(long, short = 'l')]
    protocol: Option<String>,
    /// Destination port, which requires protocol tcp or udp; 0 matches any port.
    #[arg(long, short = 'P', default_value_t = 0, value_parser = integer)]
    port: i64,
    /// Action: `allow` or `deny`.
    #[arg(long, short = 'j', default_value = "allow", value_parser = ["allow", "deny"])]
    action: String,
    /// Name of the policy.
    policy: String,
    /// Id of the rule.
    rule: String,
}

/// Columns of incoming rules.
const INCOMING: &[Column<'_>] = &[
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
const OUTGOING: &[Column<'_>] = &[
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
pub fn list(client: &Client, args: &List, out: &mut dyn Write) -> Result<(), Error> {
    client.object(ObjectType::Tenant, &args.tenant.tenant)?;
    client.object(ObjectType::Policy, &format!("{}:{}", args.tenant.tenant, args.policy))?;
    let selection = Selection::of(KIND.object_type)
        .with("tenantName", &args.tenant.tenant)
        .with("policyName", &args.policy);
    watch::objects(client, args.flags.watch, &[selection], out, &|found, out| {
        show(found.concat(), &args.flags, out)
    })
}

fn show(mut rules: Vec<Value>, flags: &ListFlags, out: &mut dyn Write) -> Result<(), Error> {
    rules.sort_by_cached_key(|rule| (number(rule, "priority"), text(rule, "key")));
    let list = list::List {
        objects: &rules,
        name: &|rule| text(rule, "ruleId"),
        table: &|out, width| match width {
            Width::Normal => tables(&rules, out),
            Width::Wide => KIND.table(&rules, out, width),
        },
    };
    list.write(&flags.format(), out)
}

fn tables(rules: &[Value], out: &mut dyn Write) -> Result<(), Error> {
    writeln!(out, "Incoming Rules:")?;
    table::write(out, INCOMING, &rows(rules, "in", &INCOMING_FIELDS))?;
    writeln!(out, "Outgoing Rules:")?;
    Ok(table::write(out, OUTGOING, &rows(rules, "out", &OUTGOING_FIELDS))?)
}

fn rows(rules: &[Value], direction: &str, fields: &[&str]) -> Vec<Vec<String>> {
    let cell = |rule: &Value, field: &str| match field {
        "port" | "priority" => number(rule, field).to_string(),
        _ => text(rule, field),
    };
    let matching = rules.iter().filter(|rule| text(rule, "direction") == direction);
    matching.map(|rule| fields.iter().map(|field| cell(rule, field)).collect()).collect()
}

/// `netctl policy rule-rm`.
pub fn remove(client: &Client, args: &Remove) -> Result<(), Error> {
    client.delete(KIND.object_type, &format!("{}:{}:{}", args.tenant.tenant, args.policy, args.rule))
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
    let both = match rule.direction {
        Direction::In => rule.from_group.is_some() && rule.from_network.is_some(),
        Direction::Out => rule.to_group.is_some() && rule.to_network.is_some(),
    };
    if both {
        let (side, kind) = if direction == "in" { ("from", "incoming") } else { ("to", "outgoing") };
        return Err(Error::Usage(format!(
            "Cant specify both {side}-group and {side}-network for {kind} rule"
        )));
    }
    let body = json!({
        "tenantName": rule.tenant.tenant,
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
    if let Some(why) = check(&body) {
        return Err(Error::Usage(why));
    }
    let key = format!("{}:{}:{}", rule.tenant.tenant, rule.policy, rule.rule);
    client.put(KIND.object_type, &key, &body).map(drop)
}
