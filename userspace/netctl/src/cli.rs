//! What can be typed.

use std::{
    ffi::OsString,
    net::{Ipv4Addr, Ipv6Addr},
};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{aci, app_profile, bgp, contracts, policy, profile, service};

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
    /// Takes any certificate of an https netmaster (for tests: whoever is in between can read along).
    #[arg(long, env = "INSECURE", global = true, value_parser = clap::builder::FalseyValueParser::new())]
    pub insecure: bool,
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
    /// Policies and their rules.
    #[command(subcommand)]
    Policy(policy::Command),
    /// Network profiles: bandwidth, DSCP, burst.
    #[command(subcommand)]
    Netprofile(profile::Command),
    /// Groups of external contracts.
    #[command(subcommand)]
    ExternalContracts(contracts::Command),
    /// Application profiles.
    #[command(subcommand)]
    AppProfile(app_profile::Command),
    /// Services: one address for many endpoints.
    #[command(subcommand)]
    Service(service::Command),
    /// BGP of the nodes.
    #[command(subcommand)]
    Bgp(bgp::Command),
    /// The gateway to ACI.
    #[command(subcommand)]
    AciGw(aci::Command),
    /// Asks an https authentication proxy for a token and keeps it in ~/.netctl/config.json.
    Login,
    /// Writes a completion script for a shell.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
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
    /// The form.
    #[arg(long, short, value_enum, conflicts_with_all = ["quiet", "json"])]
    pub output: Option<Form>,
}

/// The form of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "each is the form that its name says")]
pub enum Form {
    Table,
    Json,
    Yaml,
    Name,
}

impl Shown {
    /// What the flags mean together.
    pub fn form(&self) -> Form {
        match (self.output, self.json, self.quiet) {
            (Some(form), ..) => form,
            (None, true, _) => Form::Json,
            (None, _, true) => Form::Name,
            (None, false, false) => Form::Table,
        }
    }
}

/// The form of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "each is the form that its name says")]
pub enum Tree {
    Json,
    Yaml,
}

/// `-o` of `inspect`.
#[derive(Args, Clone, Debug)]
pub struct Detailed {
    /// The form.
    #[arg(long, short, value_enum, default_value = "json")]
    pub output: Tree,
}

/// One object of a tenant to inspect.
#[derive(Args, Clone, Debug)]
pub struct Inspected {
    /// Which.
    #[command(flatten)]
    pub named: Named,
    /// In which form.
    #[command(flatten)]
    pub form: Detailed,
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
    Inspect(Detailed),
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
    #[command(visible_alias = "list")]
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
        /// In which form.
        #[command(flatten)]
        form: Detailed,
    },
}

/// `netctl network`.
#[derive(Debug, Subcommand)]
pub enum Network {
    /// Lists the networks of a tenant.
    #[command(visible_alias = "list")]
    Ls(Listed),
    /// Makes a network.
    Create(NetworkCreate),
    /// Removes a network without endpoints.
    #[command(visible_alias = "delete")]
    Rm(Named),
    /// Shows a network, its addresses and endpoints, as JSON.
    Inspect(Inspected),
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

/// `netctl group`.
#[derive(Debug, Subcommand)]
pub enum Group {
    /// Lists the groups of a tenant.
    #[command(visible_alias = "list")]
    Ls(Listed),
    /// Makes a group.
    Create(GroupCreate),
    /// Removes a group without endpoints.
    #[command(visible_alias = "delete")]
    Rm(Named),
    /// Shows a group, its addresses and endpoints, as JSON.
    Inspect(Inspected),
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
        /// In which form.
        #[command(flatten)]
        form: Detailed,
    },
}

/// The original's flags of two letters behind one dash, as their long forms.
pub fn long_flags(args: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    args.map(|arg| match arg.to_str() {
        Some("-s6") => "--subnetv6".into(),
        Some("-g6") => "--gatewayv6".into(),
        Some("-tag") => "--tag".into(),
        Some("-ip") => "--preferred-ip".into(),
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
        assert_eq!(network.gatewayv6, Some("2001:db8::1".parse().unwrap()));
        assert_eq!(network.nw_tag.as_deref(), Some("lab1"));
        assert_eq!((network.encap.as_str(), network.named.of.tenant.as_str()), ("vxlan", "default"));
    }
}
