//! `netctl service`.

use clap::Args;
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    commands::object::CreateArgs,
    flags::ObjectName,
    output::text,
    schema::{Field, Kind, Mutability, format::Format},
};

/// Services. A row ends with an empty cell, as in the original.
pub static KIND: Kind = Kind {
    object_type: ObjectType::ServiceLb,
    aliases: &["service"],
    key_fields: &["tenantName", "serviceName"],
    fields: &[
        Field::tenant(),
        Field::new("serviceName", Format::Name).required(),
        Field::reference("networkName", Format::Name, ObjectType::Network).required(),
        Field::new("ipAddress", Format::IPV4),
        Field::new("selectors", Format::List(&Format::SELECTOR)).required(),
        Field::new("ports", Format::List(&Format::PORT)).required(),
    ],
    // The allocated address is permanent.
    mutability: Mutability::Except(&["networkName", "ipAddress"]),
    columns: &[
        ("ServiceName", "---------"),
        ("Tenant", "--------"),
        ("Network", "-------"),
        ("Selectors", "-------"),
    ],
    row: |service| {
        vec![
            text(service, "serviceName"),
            text(service, "tenantName"),
            text(service, "networkName"),
            format!("[{}]", text(service, "selectors").replace(',', " ")),
            String::new(),
        ]
    },
    created: "Creating ServiceLB {key}",
    deleted: "Deleting Service  {name},{tenant}",
    check: None,
};

/// Arguments of `netctl service create`.
#[derive(Args, Debug)]
pub struct Create {
    #[command(flatten)]
    object: ObjectName,
    /// Network that the address of the service belongs to.
    #[arg(long, short = 's')]
    network: String,
    /// Label `key=value` of the endpoints that provide the service; repeatable, all labels must match.
    #[arg(long, short = 'l')]
    selector: Vec<String>,
    /// Port as PORT:TARGETPORT:PROTOCOL, such as 80:8080:TCP; repeatable.
    #[arg(long, short)]
    port: Vec<String>,
    /// IPv4 address of the service (also -ip) [default: the lowest free address].
    #[arg(long)]
    preferred_ip: Option<std::net::Ipv4Addr>,
}

impl CreateArgs for Create {
    fn name(&self) -> (&str, &str) {
        self.object.parts()
    }

    fn fields(&self) -> Value {
        json!({
            "networkName": self.network,
            "selectors": self.selector,
            "ports": self.port,
            "ipAddress": self.preferred_ip.map(|ip| ip.to_string()).unwrap_or_default(),
        })
    }
}
