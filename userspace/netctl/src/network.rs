//! `netctl network`.

use std::net::{Ipv4Addr, Ipv6Addr};

use clap::Args;
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    cli::Named,
    kind::{Change, Field, Form, Kind, Preset},
    listing::{number, text},
    verb::Make,
};

/// Networks.
pub static KIND: Kind = Kind {
    of: ObjectType::Network,
    words: &["net"],
    key: &["tenantName", "networkName"],
    fields: &[
        Field::tenant(),
        Field::new("networkName", Form::Name).required(),
        Field::new("nwType", Form::OneOf(&["data", "infra"])).or(Preset::Text("data")),
        Field::new("encap", Form::OneOf(&["vlan", "vxlan"])).required(),
        Field::new("pktTag", Form::Number(0, 1 << 24)),
        Field::new("subnet", Form::SUBNET).required(),
        Field::new("gateway", Form::IPV4),
        Field::new("ipv6Subnet", Form::SUBNET6),
        Field::new("ipv6Gateway", Form::IPV6),
        Field::new("cfgdTag", Form::Name),
    ],
    change: Change::Never,
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

/// A network to make.
#[derive(Args, Clone, Debug)]
pub struct Create {
    /// The network.
    #[command(flatten)]
    pub named: Named,
    /// `data` for pods, `infra` for the nodes themselves.
    #[arg(long, short, default_value = "data")]
    pub nw_type: String,
    /// `vlan` or `vxlan`.
    #[arg(long, short, default_value = "vxlan")]
    pub encap: String,
    /// The VLAN or VNI; 0 takes the lowest free one.
    #[arg(long, short, default_value_t = 0, allow_negative_numbers = true)]
    pub pkt_tag: i64,
    /// The IPv4 subnet, e.g. 10.1.1.0/24 or 10.1.1.10-10.1.1.20/24.
    #[arg(long, short)]
    pub subnet: String,
    /// The IPv4 gateway.
    #[arg(long, short)]
    pub gateway: Option<Ipv4Addr>,
    /// The IPv6 subnet, e.g. 2001:db8::/64 (also -s6).
    #[arg(long, visible_alias = "s6")]
    pub subnetv6: Option<String>,
    /// The IPv6 gateway (also -g6).
    #[arg(long, visible_alias = "g6")]
    pub gatewayv6: Option<Ipv6Addr>,
    /// A tag to find the network by (also -tag).
    #[arg(long, visible_alias = "tag")]
    pub nw_tag: Option<String>,
}

impl Make for Create {
    fn named(&self) -> (&str, &str) {
        self.named.parts()
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
