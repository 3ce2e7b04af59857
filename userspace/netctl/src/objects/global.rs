//! `netctl global`.

use clap::Args;
use contiv_model::key::ObjectType;

use crate::{
    commands::settings::SetFlags,
    output::text,
    schema::{Field, Kind, Mutability, format::Format},
};

/// Settings of the cluster.
pub static KIND: Kind = Kind {
    object_type: ObjectType::Global,
    aliases: &[],
    key_fields: &["name"],
    fields: &[
        Field::new("name", Format::OneOf(&["global"])).required(),
        Field::new("networkInfraType", Format::OneOf(&["default", "aci", "aci-opflex"])).kept(),
        Field::new("fwdMode", Format::OneOf(&["bridge", "routing"])).kept(),
        Field::new("arpMode", Format::OneOf(&["proxy", "flood"])).kept(),
        Field::new("vlans", Format::TAGS),
        Field::new("vxlans", Format::TAGS),
        Field::new("pvtSubnet", Format::PRIVATE_SUBNET).kept(),
    ],
    mutability: Mutability::Settings,
    columns: &[
        ("Fabric mode", "-----------"),
        ("Forward mode", "------------"),
        ("ARP mode", "--------"),
        ("Vlan Range", "----------"),
        ("Vxlan range", "-----------"),
        ("Private subnet", "--------------"),
    ],
    row: |global| {
        ["networkInfraType", "fwdMode", "arpMode", "vlans", "vxlans", "pvtSubnet"]
            .map(|field| text(global, field))
            .into()
    },
    created: "",
    deleted: "",
    check: None,
};

/// Flags of `netctl global set`.
#[derive(Args, Clone, Debug)]
pub struct Set {
    /// Fabric mode: `default`, `aci` or `aci-opflex`.
    #[arg(long, short)]
    pub fabric_mode: Option<String>,
    /// Range of VLAN ids for networks, such as 1-4094.
    #[arg(long, short)]
    pub vlan_range: Option<String>,
    /// Range of VNIs for networks, such as 1-10000.
    #[arg(long, short = 'x')]
    pub vxlan_range: Option<String>,
    /// Forwarding mode: `bridge` or `routing`.
    #[arg(long, short = 'b')]
    pub fwd_mode: Option<String>,
    /// ARP mode: `proxy` or `flood`.
    #[arg(long, short)]
    pub arp_mode: Option<String>,
    /// Subnet for access from nodes to pods, such as 172.19.0.0/16; the prefix length must be 16.
    #[arg(long, short = 's')]
    pub private_subnet: Option<String>,
}

/// Without its flag the private subnet keeps its value; the original resets it to the default.
impl SetFlags for Set {
    fn changes(&self) -> Vec<(&'static str, &Option<String>)> {
        vec![
            ("networkInfraType", &self.fabric_mode),
            ("vlans", &self.vlan_range),
            ("vxlans", &self.vxlan_range),
            ("fwdMode", &self.fwd_mode),
            ("arpMode", &self.arp_mode),
            ("pvtSubnet", &self.private_subnet),
        ]
    }
}
