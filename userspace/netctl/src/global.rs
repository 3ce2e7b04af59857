//! `netctl global`.

use clap::Args;
use contiv_model::key::ObjectType;

use crate::{
    kind::{Change, Field, Form, Kind},
    listing::text,
    settings::Named,
};

/// The cluster's settings.
pub static KIND: Kind = Kind {
    of: ObjectType::Global,
    words: &[],
    key: &["name"],
    fields: &[
        Field::new("name", Form::OneOf(&["global"])).required(),
        Field::new("networkInfraType", Form::OneOf(&["default", "aci", "aci-opflex"])),
        Field::new("fwdMode", Form::OneOf(&["bridge", "routing"])),
        Field::new("arpMode", Form::OneOf(&["proxy", "flood"])),
        Field::new("vlans", Form::TAGS),
        Field::new("vxlans", Form::TAGS),
        Field::new("pvtSubnet", Form::PRIVATE_SUBNET),
    ],
    change: Change::Settings,
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
};

/// The settings that `netctl global set` changes.
#[derive(Args, Clone, Debug)]
pub struct Set {
    /// `default`, `aci` or `aci-opflex`.
    #[arg(long, short)]
    pub fabric_mode: Option<String>,
    /// The VLANs to allocate from, e.g. 1-4094.
    #[arg(long, short)]
    pub vlan_range: Option<String>,
    /// The VNIs to allocate from, e.g. 1-10000.
    #[arg(long, short = 'x')]
    pub vxlan_range: Option<String>,
    /// `bridge` or `routing`.
    #[arg(long, short = 'b')]
    pub fwd_mode: Option<String>,
    /// `proxy` or `flood`.
    #[arg(long, short)]
    pub arp_mode: Option<String>,
    /// The subnet for the nodes' own access to pods, a /16.
    #[arg(long, short = 's')]
    pub private_subnet: Option<String>,
}

/// The original resets the private subnet to its default whenever it is not named; ours stays.
impl Named for Set {
    fn named(&self) -> Vec<(&'static str, &Option<String>)> {
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
