//! `netctl service`.

use clap::Args;
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    cli::Named,
    kind::{Change, Field, Form, Kind},
    listing::text,
    verb::Make,
};

/// Services; a row ends with an empty cell, as in the original.
pub static KIND: Kind = Kind {
    of: ObjectType::ServiceLb,
    words: &["service"],
    key: &["tenantName", "serviceName"],
    fields: &[
        Field::tenant(),
        Field::new("serviceName", Form::Name).required(),
        Field::naming("networkName", Form::Name, ObjectType::Network).required(),
        Field::new("ipAddress", Form::IPV4),
        Field::new("selectors", Form::List(&Form::SELECTOR)).required(),
        Field::new("ports", Form::List(&Form::PORT)).required(),
    ],
    // The address that it has got stays.
    change: Change::AllBut(&["networkName", "ipAddress"]),
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
};

/// A service to make.
#[derive(Args, Debug)]
pub struct Create {
    #[command(flatten)]
    named: Named,
    /// The network that the service's address is from.
    #[arg(long, short = 's')]
    network: String,
    /// A label of the endpoints that provide it, `key=value`; may be given again.
    #[arg(long, short = 'l')]
    selector: Vec<String>,
    /// `PORT:TARGETPORT:PROTOCOL`, e.g. 80:8080:TCP; may be given again.
    #[arg(long, short)]
    port: Vec<String>,
    /// The address to take (also -ip).
    #[arg(long)]
    preferred_ip: Option<std::net::Ipv4Addr>,
}

impl Make for Create {
    fn named(&self) -> (&str, &str) {
        self.named.parts()
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
