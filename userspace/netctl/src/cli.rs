//! What can be typed.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{
    aci, app_profile, apply::Files, bgp, contracts, endpoint, get::Get, global, group, monitor, network,
    node, policy, profile, service, settings, tenant, verb::Verb,
};

/// Shows and changes the networks, groups and endpoints of a contiv-rs cluster.
#[derive(Debug, Parser)]
#[command(name = "netctl", version)]
pub struct Cli {
    /// Whom to ask.
    #[command(flatten)]
    pub server: Server,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The netmaster that is asked, and how it is known to be the right one.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connection")]
pub struct Server {
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
    /// The certificates (PEM) of those who sign for netmaster, instead of the system's.
    #[arg(long, env = "NETCTL_CACERT", global = true, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// A certificate of one's own (PEM, with those that signed it) for a netmaster that asks for it.
    #[arg(long, env = "NETCTL_CERT", global = true, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// The private key (PEM) of --cert.
    #[arg(long, env = "NETCTL_KEY", global = true, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// A token for netmaster, instead of the one that `login` keeps: the file's first line.
    #[arg(long, env = "NETCTL_TOKEN_FILE", global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// The kinds of object.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The versions of this program and of netmaster.
    Version,
    /// Which netmaster leads, and who else is there.
    Info(Detailed),
    /// Shows objects of any kind, in the form that `apply` takes.
    Get(Get),
    /// Makes netmaster hold the objects of files: makes what is not there, changes what differs.
    Apply(Files),
    /// Removes the objects that files name.
    Delete(Files),
    /// The nodes.
    #[command(subcommand)]
    Node(node::Command),
    /// Shows packets that a node drops and flows that begin there, until it is interrupted.
    Monitor(monitor::Watch),
    /// The cluster's settings.
    #[command(subcommand)]
    Global(settings::Command<global::Set>),
    /// Tenants.
    #[command(subcommand)]
    Tenant(tenant::Command),
    /// Networks.
    #[command(subcommand, visible_alias = "net")]
    Network(Verb<network::Create>),
    /// Endpoint groups.
    #[command(subcommand)]
    Group(Verb<group::Create>),
    /// Endpoints.
    #[command(subcommand, visible_alias = "ep")]
    Endpoint(endpoint::Command),
    /// Policies and their rules.
    #[command(subcommand)]
    Policy(policy::Command),
    /// Network profiles: bandwidth, DSCP, burst.
    #[command(subcommand)]
    Netprofile(Verb<profile::Create>),
    /// Groups of external contracts.
    #[command(subcommand)]
    ExternalContracts(Verb<contracts::Create>),
    /// Application profiles.
    #[command(subcommand)]
    AppProfile(app_profile::Command),
    /// Services: one address for many endpoints.
    #[command(subcommand)]
    Service(Verb<service::Create>),
    /// BGP of the nodes.
    #[command(subcommand)]
    Bgp(bgp::Command),
    /// The gateway to ACI.
    #[command(subcommand)]
    AciGw(settings::Command<aci::Set>),
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

/// The form of what `policy check` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "each is the form that its name says")]
pub enum Verdict {
    Text,
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
    /// The tenant and the name.
    pub fn parts(&self) -> (&str, &str) {
        (&self.of.tenant, &self.name)
    }

    /// `<tenant>:<name>`.
    pub fn key(&self) -> String {
        format!("{}:{}", self.of.tenant, self.name)
    }
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
        let Command::Network(Verb::Create(network)) = cli.command else { panic!("{cli:?}") };
        assert_eq!(network.subnetv6.as_deref(), Some("2001:db8::/64"));
        assert_eq!(network.gatewayv6, Some("2001:db8::1".parse().unwrap()));
        assert_eq!(network.nw_tag.as_deref(), Some("lab1"));
        assert_eq!((network.encap.as_str(), network.named.of.tenant.as_str()), ("vxlan", "default"));
    }
}
