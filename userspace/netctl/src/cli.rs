//! The command line: commands, and their dispatch.

mod arguments;

use std::ffi::OsString;

use clap::{
    ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, error::ErrorKind,
    parser::ValueSource,
};

use crate::{
    cli::arguments::Rewritten,
    client::Client,
    commands::{config, login, object, object::ObjectCommand, settings, settings::SettingsCommand},
    error::{Error, Outcome},
    flags::{InspectFlags, Server},
    manifest::{
        apply,
        apply::{Apply, Diff},
        document::Files,
        edit,
        edit::Edit,
        explain,
        explain::Explain,
        get,
        get::Get,
        removal, wait,
        wait::Wait,
    },
    objects::{
        aci_gw, app_profile, bgp, external_contracts, global, group, netprofile, network, policy, service,
        tenant,
    },
    observe::{endpoint, monitor, node, trace, version},
    output,
};

/// Shows and changes the networks, groups and endpoints of a contiv-rs cluster.
#[derive(Debug, Parser)]
#[command(name = "netctl", version)]
pub struct Cli {
    /// Connection to netmaster.
    #[command(flatten)]
    pub server: Server,
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the versions of netctl and netmaster.
    Version,
    /// Show the netmaster leader and the other netmasters.
    Info(InspectFlags),
    /// Show objects of any kind in the format that `apply` reads.
    Get(Get),
    /// Create missing objects and update changed objects from files.
    Apply(Apply),
    /// Delete the objects that files name.
    Delete(Files),
    /// Show what `apply` would change. Exit code 5 if there are differences.
    Diff(Diff),
    /// Change an object in an editor (VISUAL, EDITOR, vi).
    Edit(Edit),
    /// Show the fields of a kind, from the description of the API that netmaster serves.
    Explain(Explain),
    /// Wait until an object meets a condition. Exit code 5 if it does not in time.
    Wait(Wait),
    /// Show nodes.
    #[command(subcommand)]
    Node(node::Command),
    /// Show packets that an eBPF node drops and flows that start there, until interrupted.
    Monitor(monitor::Monitor),
    /// Follow a packet through the datapaths of the nodes on its way, without sending it. Exit code 5 if it is not delivered.
    Trace(trace::Arguments),
    /// Show and change the settings of the cluster.
    #[command(subcommand)]
    Global(SettingsCommand<global::Set>),
    /// Manage tenants.
    #[command(subcommand)]
    Tenant(tenant::Command),
    /// Manage networks.
    #[command(subcommand, visible_alias = "net")]
    Network(ObjectCommand<network::Create>),
    /// Manage endpoint groups.
    #[command(subcommand)]
    Group(ObjectCommand<group::Create>),
    /// Show endpoints.
    #[command(subcommand, visible_alias = "ep")]
    Endpoint(endpoint::Command),
    /// Manage policies and their rules.
    #[command(subcommand)]
    Policy(policy::Command),
    /// Manage network profiles: bandwidth, DSCP, burst.
    #[command(subcommand)]
    Netprofile(ObjectCommand<netprofile::Create>),
    /// Manage groups of external contracts.
    #[command(subcommand)]
    ExternalContracts(ObjectCommand<external_contracts::Create>),
    /// Manage application profiles.
    #[command(subcommand)]
    AppProfile(app_profile::Command),
    /// Manage services: load balancers with one address in front of several endpoints.
    #[command(subcommand)]
    Service(ObjectCommand<service::Create>),
    /// Manage the BGP settings of nodes.
    #[command(subcommand)]
    Bgp(bgp::Command),
    /// Show and change the settings of the ACI gateway.
    #[command(subcommand)]
    AciGw(SettingsCommand<aci_gw::Set>),
    /// Request a token from an https authentication proxy and store it in ~/.netctl/config.json.
    Login,
    /// Manage contexts: named connections in `netctl/contexts.json` below `$XDG_CONFIG_HOME` or `~/.config`.
    #[command(subcommand)]
    Config(config::Command),
    /// Print the completion script for a shell.
    Completion {
        /// Shell to complete in.
        shell: clap_complete::Shell,
    },
}

/// Runs one command and writes its output to `out`.
pub fn run(cli: &Cli, out: &mut dyn std::io::Write) -> Result<Outcome, Error> {
    if let Command::Completion { shell } = &cli.command {
        // Into a buffer first: `generate` panics when a pipe is closed.
        let mut script = Vec::new();
        clap_complete::generate(*shell, &mut Cli::command(), "netctl", &mut script);
        out.write_all(&script)?;
        return Ok(Outcome::Done);
    }
    if let Command::Config(command) = &cli.command {
        return config::run(&cli.server, command, out).map(|()| Outcome::Done);
    }
    let client = Client::new(&cli.server)?;
    let done = match &cli.command {
        Command::Policy(command) => return policy::run(&client, command, out),
        Command::Trace(args) => return trace::run(&client, args, out),
        Command::Diff(args) => return apply::diff(&client, args, out),
        Command::Edit(edit) => edit::run(&client, edit, out),
        Command::Explain(args) => explain::run(&client, args, out),
        Command::Wait(args) => wait::run(&client, args, out),
        Command::Version => version::show(&client, out),
        Command::Info(flags) => output::object(out, &flags.output, &client.get("/info")?),
        Command::Get(get) => get::run(&client, get, out),
        Command::Apply(args) => apply::apply(&client, args, out),
        Command::Delete(files) => removal::delete(&client, files, out),
        Command::Node(command) => node::run(&client, command, out),
        Command::Monitor(monitor) => monitor::run(&client, monitor, out),
        Command::Global(command) => settings::run(&global::KIND, &client, command, out),
        Command::Tenant(command) => tenant::run(&client, command, out),
        Command::Network(command) => object::run(&network::KIND, &client, command, out),
        Command::Group(command) => object::run(&group::KIND, &client, command, out),
        Command::Endpoint(command) => endpoint::run(&client, command, out),
        Command::Netprofile(command) => object::run(&netprofile::KIND, &client, command, out),
        Command::ExternalContracts(command) => object::run(&external_contracts::KIND, &client, command, out),
        Command::AppProfile(command) => app_profile::run(&client, command, out),
        Command::Service(command) => object::run(&service::KIND, &client, command, out),
        Command::Bgp(command) => bgp::run(&client, command, out),
        Command::AciGw(command) => settings::run(&aci_gw::KIND, &client, command, out),
        Command::Login => login::login(&client, out),
        Command::Config(_) | Command::Completion { .. } => Ok(()),
    };
    done.map(|()| Outcome::Done)
}

/// Parses the whole command line; a command without its subcommand yields its help, as in the original.
pub fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let mut root = Cli::command();
    // Gives each command its global flags.
    root.build();
    let Rewritten { words, off } = arguments::rewrite(&root, arguments.iter().cloned());
    let matches = Cli::command().try_get_matches_from(&words).or_else(|error| match error.kind() {
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Cli::command().try_get_matches_from(words.iter().cloned().chain(["--help".into()]))
        }
        _ => Err(error),
    })?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut Cli::command()))?;
    // clap has read the environment.
    if off.iter().any(|id| id == "insecure") {
        (cli.server.insecure, cli.server.verify) = (false, true);
    }
    let is_typed = |id: &str| source(&matches, id) == Some(ValueSource::CommandLine);
    match cli.command {
        Command::Config(_) => cli.server.keep_typed(is_typed),
        _ => cli.server.prefer_typed_context(is_typed),
    }
    Ok(cli)
}

/// Source of a global argument; of an unknown one, none.
fn source(matches: &ArgMatches, id: &str) -> Option<ValueSource> {
    matches.try_contains_id(id).is_ok().then(|| matches.value_source(id)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Connection;

    #[test]
    fn command_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn certificates_are_verified_if_the_last_flag_says_so() {
        let server = |flags: &str| {
            let typed = format!("netctl --netmaster https://a:1 {flags} tenant ls");
            let typed: Vec<_> = typed.split(' ').map(OsString::from).collect();
            parse(&typed).unwrap().server
        };
        for (flags, expected) in [
            ("--insecure", true),
            ("--insecure=false", false),
            ("--insecure --insecure=false", false),
            ("--insecure=false --insecure", true),
        ] {
            assert_eq!(Connection::resolve(&server(flags)).unwrap().insecure, expected, "{flags}");
        }
        // Whatever the environment and the context say.
        let insecure = Server { insecure: true, ..server("--insecure=false") };
        assert!(!Connection::resolve(&insecure).unwrap().insecure);
    }

    #[test]
    fn multi_letter_short_flags_are_accepted() {
        let typed = "netctl net create -s 10.9.0.0/24 -s6 2001:db8::/64 -g6 2001:db8::1 -tag lab1 n6";
        let typed: Vec<_> = typed.split(' ').map(OsString::from).collect();
        let cli = parse(&typed).unwrap();
        let Command::Network(ObjectCommand::Create(network)) = cli.command else { panic!("{cli:?}") };
        assert_eq!(network.subnetv6.as_deref(), Some("2001:db8::/64"));
        assert_eq!(network.gatewayv6, Some("2001:db8::1".parse().unwrap()));
        assert_eq!(network.nw_tag.as_deref(), Some("lab1"));
        assert_eq!((network.encap.as_str(), network.object.tenant.tenant.as_str()), ("vxlan", "default"));
    }
}
