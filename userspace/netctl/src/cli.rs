//! What can be typed.

use std::ffi::OsString;

use clap::{Args, Parser, Subcommand};

/// Shows and changes the networks, groups and endpoints of a contiv-rs cluster.
#[derive(Debug, Parser)]
#[command(name = "netctl", version)]
pub struct Cli {
    /// The address of netmaster.
    #[arg(
        long,
        env = "NETMASTER",
        default_value = "http://netmaster:9999",
        global = true,
        value_name = "URL"
    )]
    pub netmaster: String,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The kinds of object.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The versions of this program and of netmaster.
    Version,
    /// The cluster's settings.
    #[command(subcommand)]
    Global(Global),
    /// Tenants.
    #[command(subcommand)]
    Tenant(Tenant),
    /// Networks.
    #[command(subcommand, visible_alias = "net")]
    Network(Network),
    /// Endpoint groups.
    #[command(subcommand)]
    Group(Group),
    /// Endpoints.
    #[command(subcommand, visible_alias = "ep")]
    Endpoint(Endpoint),
}

/// `--tenant`.
#[derive(Args, Clone, Debug)]
pub struct OfTenant {
    /// The tenant.
    #[arg(long, short, default_value = "default")]
    pub tenant: String,
}

/// How a list is shown.
#[derive(Args, Clone, Debug)]
pub struct Shown {
    /// Names only.
    #[arg(long, short)]
    pub quiet: bool,
    /// The objects as a JSON array.
    #[arg(long, short, conflicts_with = "quiet")]
    pub json: bool,
}

/// How a list of a tenant's objects is shown.
#[derive(Args, Clone, Debug)]
pub struct Listed {
    /// Whose.
    #[command(flatten)]
    pub of: OfTenant,
    /// Of all tenants.
    #[arg(long, short)]
    pub all: bool,
    /// In which form.
    #[command(flatten)]
    pub shown: Shown,
}

/// One object of a tenant.
#[derive(Args, Clone, Debug)]
pub struct Named {
    /// Whose.
    #[command(flatten)]
    pub of: OfTenant,
    /// Its name.
    pub name: String,
}

impl Named {
    /// `<tenant>:<name>`.
    pub fn key(&self) -> String {
        format!("{}:{}", self.of.tenant, self.name)
    }
}

/// `netctl global`.
#[derive(Debug, Subcommand)]
pub enum Global {
    /// Shows the settings.
    Info {
        /// As a JSON array.
        #[arg(long, short)]
        json: bool,
    },
    /// Shows the settings and what is in use, as JSON.
    Inspect,
    /// Changes the settings that are named; the others stay.
    Set(GlobalSet),
}

/// The settings that `netctl global set` changes.
#[derive(Args, Clone, Debug)]
pub struct GlobalSet {
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

/// `netctl tenant`.
#[derive(Debug, Subcommand)]
pub enum Tenant {
    /// Lists the tenants.
    Ls(Shown),
    /// Makes a tenant.
    Create {
        /// Its name.
        name: String,
    },
    /// Removes an empty tenant.
    #[command(visible_alias = "delete")]
    Rm {
        /// Its name.
        name: String,
    },
    /// Shows a tenant and what it holds, as JSON.
    Inspect {
        /// Its name.
        name: String,
    },
}

/// `netctl network`.
#[derive(Debug, Subcommand)]
pub enum Network {
    /// Lists the networks of a tenant.
    Ls(Listed),
    /// Makes a network.
    Create(NetworkCreate),
    /// Removes a network without endpoints.
    #[command(visible_alias = "delete")]
    Rm(Named),
    /// Shows a network, its addresses and endpoints, as JSON.
    Inspect(Named),
}

/// A network to make.
#[derive(Args, Clone, Debug)]
pub struct NetworkCreate {
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
    pub gateway: Option<String>,
    /// The IPv6 subnet, e.g. 2001:db8::/64 (also -s6).
    #[arg(long, visible_alias = "s6")]
    pub subnetv6: Option<String>,
    /// The IPv6 gateway (also -g6).
    #[arg(long, visible_alias = "g6")]
    pub gatewayv6: Option<String>,
    /// A tag to find the network by (also -tag).
    #[arg(long, visible_alias = "tag")]
    pub nw_tag: Option<String>,
}

/// `netctl group`.
#[derive(Debug, Subcommand)]
pub enum Group {
    /// Lists the groups of a tenant.
    Ls(Listed),
    /// Makes a group.
    Create(GroupCreate),
    /// Removes a group without endpoints.
    #[command(visible_alias = "delete")]
    Rm(Named),
    /// Shows a group, its addresses and endpoints, as JSON.
    Inspect(Named),
}

/// A group to make.
#[derive(Args, Clone, Debug)]
pub struct GroupCreate {
    /// Whose.
    #[command(flatten)]
    pub of: OfTenant,
    /// The network that its endpoints are on.
    pub network: String,
    /// Its name.
    pub group: String,
    /// A policy to attach; may be given again.
    #[arg(long, short)]
    pub policy: Vec<String>,
    /// The net profile to attach.
    #[arg(long, short)]
    pub networkprofile: Option<String>,
    /// An external contract to attach; may be given again.
    #[arg(long, short)]
    pub external_contract: Vec<String>,
    /// The addresses that the group takes from its network, e.g. 10.1.1.10-10.1.1.20.
    #[arg(long, short = 'r')]
    pub ip_pool: Option<String>,
    /// A tag to find the group by (also -tag).
    #[arg(long, visible_alias = "tag")]
    pub epg_tag: Option<String>,
}

/// `netctl endpoint`.
#[derive(Debug, Subcommand)]
pub enum Endpoint {
    /// Shows an endpoint, as JSON.
    Inspect {
        /// The endpoint's or container's id.
        id: String,
    },
}

/// The original's flags of two letters behind one dash, as their long forms.
pub fn long_flags(args: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    args.map(|arg| match arg.to_str() {
        Some("-s6") => "--subnetv6".into(),
        Some("-g6") => "--gatewayv6".into(),
        Some("-tag") => "--tag".into(),
        _ => arg,
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definitions_hold_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_originals_short_flags_are_understood() {
        let typed = "netctl net create -s 10.9.0.0/24 -s6 2001:db8::/64 -g6 2001:db8::1 -tag lab1 n6";
        let cli = Cli::try_parse_from(long_flags(typed.split(' ').map(OsString::from))).unwrap();
        let Command::Network(Network::Create(network)) = cli.command else { panic!("{cli:?}") };
        assert_eq!(network.subnetv6.as_deref(), Some("2001:db8::/64"));
        assert_eq!(network.gatewayv6.as_deref(), Some("2001:db8::1"));
        assert_eq!(network.nw_tag.as_deref(), Some("lab1"));
        assert_eq!((network.encap.as_str(), network.named.of.tenant.as_str()), ("vxlan", "default"));
    }
}
