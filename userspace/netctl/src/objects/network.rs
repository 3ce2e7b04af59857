//! `netctl network`.

use std::net::{Ipv4Addr, Ipv6Addr};

use clap::Args;
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    commands::object::CreateArgs,
    flags::{ObjectName, integer},
    output::{number, text},
    schema::{DefaultValue, Field, Kind, Mutability, format::Format},
};

/// Networks.
pub static KIND: Kind = Kind {
    object_type: ObjectType::Network,
    aliases: &["net"],
    key_fields: &["tenantName", "networkName"],
    fields: &[
        Field::tenant(),
        Field::new("networkName", Format::Name).required(),
        Field::new("nwType", Format::OneOf(&["data", "infra"])).or(DefaultValue::Text("data")),
        Field::new("encap", Format::OneOf(&["vlan", "vxlan"])).required(),
        Field::new("pktTag", Format::Number(0, 1 << 24)),
        Field::new("subnet", Format::SUBNET).required(),
        Field::new("gateway", Format::IPV4),
        Field::new("ipv6Subnet", Format::SUBNET6),
        Field::new("ipv6Gateway", Format::IPV6),
        Field::new("cfgdTag", Format::Name),
    ],
    mutability: Mutability::Immutable,
    columns: &[
        ("Tenant", "------"),
        ("Network", "-------"),
        ("Nw Type", "-------"),
        ("Encap type", "----------"),
        ("Packet tag", "----------"),
        ("Subnet", "-------"),
        ("Gateway", "------"),
        ("IPv6Subnet", "----------"),
        ("IPv6Gateway", "-----------"),
        ("Cfgd Tag ", "---------"),
    ],
    row,
    created: "Creating network {key}",
    deleted: "Deleting network {key}",
    check: None,
};

fn row(network: &Value) -> Vec<String> {
    let field = |name| text(network, name);
    vec![
        field("tenantName"),
        field("networkName"),
        field("nwType"),
        field("encap"),
        number(network, "pktTag").to_string(),
        field("subnet"),
        field("gateway"),
        field("ipv6Subnet"),
        field("ipv6Gateway"),
        field("cfgdTag"),
    ]
}

/// Arguments of `netctl network create`.
#[derive(Args, Clone, Debug)]
pub struct Create {
    /// Name of the network.
    #[command(flatten)]
    pub object: ObjectName,
    /// Type of the network: `data` for pods, `infra` for nodes.
    #[arg(long, short, default_value = "data")]
    pub nw_type: String,
    /// Encapsulation: `vlan` or `vxlan`.
    #[arg(long, short, default_value = "vxlan")]
    pub encap: String,
    /// VLAN id or VNI; 0 allocates the lowest free one.
    #[arg(long, short, default_value_t = 0, value_parser = integer)]
    pub pkt_tag: i64,
    /// IPv4 subnet or range, such as 10.1.1.0/24 or 10.1.1.10-10.1.1.20/24.
    #[arg(long, short)]
    pub subnet: String,
    /// Address of the IPv4 gateway.
    #[arg(long, short)]
    pub gateway: Option<Ipv4Addr>,
    /// IPv6 subnet, such as 2001:db8::/64 (also -s6).
    #[arg(long, visible_alias = "s6")]
    pub subnetv6: Option<String>,
    /// Address of the IPv6 gateway (also -g6).
    #[arg(long, visible_alias = "g6")]
    pub gatewayv6: Option<Ipv6Addr>,
    /// Tag of the network, for lookups by tag (also -tag).
    #[arg(long, visible_alias = "tag")]
    pub nw_tag: Option<String>,
}

impl CreateArgs for Create {
    fn name(&self) -> (&str, &str) {
        self.object.parts()
    }

    fn fields(&self) -> Value {
        json!({
            "nwType": self.nw_type,
            "encap": self.encap,
            "pktTag": self.pkt_tag,
            "subnet": self.subnet,
            "gateway": self.gateway.map(|ip| ip.to_string()).unwrap_or_default(),
            "ipv6Subnet": self.subnetv6.as_deref().unwrap_or_default(),
            "ipv6Gateway": self.gatewayv6.map(|ip| ip.to_string()).unwrap_or_default(),
            "cfgdTag": self.nw_tag.as_deref().unwrap_or_default(),
        })
    }
}
