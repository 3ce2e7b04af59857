//! Command line flags and environment variables (INVENTORY 7.2).

mod backup;
mod gateway_url;
mod rest;

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};
use contiv_daemon::flags::{Exit, parse};
use contiv_daemon::modes::{FwdMode, Mode, NetMode, name};

pub use backup::{Backup, Restore, StoreAccess};
pub use gateway_url::GatewayUrl;
pub use rest::RestFlags;

/// etcd on this machine.
pub const DEFAULT_STORE: &str = "http://127.0.0.1:2379";

/// Parsed command line.
#[derive(Clone, Debug)]
pub enum Command {
    /// Run netmaster.
    Run(Box<Flags>),
    Backup(Box<Backup>),
    Restore(Box<Restore>),
}

impl Command {
    /// Parses the command line and the environment.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, Exit> {
        let mut arguments: Vec<OsString> = arguments.into_iter().collect();
        let word = arguments.get(1).and_then(|word| word.to_str()).unwrap_or_default().to_owned();
        match word.as_str() {
            "backup" => {
                arguments.remove(1);
                Ok(Command::Backup(Box::new(parse(arguments)?)))
            }
            "restore" => {
                arguments.remove(1);
                Ok(Command::Restore(Box::new(parse(arguments)?)))
            }
            _ => Ok(Command::Run(Box::new(Flags::read(arguments)?))),
        }
    }
}

/// The control plane of contiv-rs: REST API, address and tag allocation.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "netmaster",
    version,
    max_term_width = 100,
    after_help = "netmaster backup --help: write the state of the cluster to a file\n\
                  netmaster restore --help: write a backup to a store"
)]
pub struct Flags {
    /// Orchestrator that creates endpoints: test, cni (docker, kubernetes and swarm-mode are not
    /// built yet)
    #[arg(long, aliases = ["plugin-mode", "cluster-mode"], env = "CONTIV_NETMASTER_MODE", value_enum)]
    pub mode: Mode,

    /// Encapsulation of the cluster's networks
    #[arg(long, env = "CONTIV_NETMASTER_NET_MODE", value_enum)]
    pub netmode: NetMode,

    /// Forwarding mode of the nodes
    #[arg(long, env = "CONTIV_NETMASTER_FORWARD_MODE", value_enum)]
    pub fwdmode: FwdMode,

    /// Fabric type written to a store without settings: default, aci
    #[arg(long, env = "CONTIV_NETMASTER_INFRA", value_enum, default_value = "default")]
    pub infra: Infra,

    /// URL of the gateway to an ACI fabric
    #[arg(
        long,
        env = "CONTIV_NETMASTER_ACI_GATEWAY",
        default_value = "http://localhost:5000",
        value_name = "URL"
    )]
    pub aci_gateway: GatewayUrl,

    /// CA bundle (PEM) used to verify the certificate of the gateway to an ACI fabric; reloaded on change
    #[arg(long, env = "CONTIV_NETMASTER_ACI_GATEWAY_CA", value_name = "FILE")]
    pub aci_gateway_ca: Option<PathBuf>,

    /// Plugin name; accepted for compatibility
    #[arg(long, env = "CONTIV_NETMASTER_PLUGIN_NAME", default_value = "netplugin")]
    pub name: String,

    /// Address and port of the API for users and agents
    #[arg(
        long,
        alias = "listen-url",
        env = "CONTIV_NETMASTER_EXTERNAL_ADDRESS",
        default_value = "0.0.0.0:9999"
    )]
    pub external_address: SocketAddr,

    /// Address and port of this netmaster for other netmasters [default: this host's address, with
    /// the external port]
    #[arg(long, alias = "control-url", env = "CONTIV_NETMASTER_INTERNAL_ADDRESS")]
    pub internal_address: Option<SocketAddr>,

    /// Time after which the endpoints of a node without registration are released, or never
    #[arg(long, env = "CONTIV_NETMASTER_NODE_GONE_AFTER", default_value = "24h", value_parser = gone_after)]
    pub node_gone_after: WaitLimit,

    /// When this netmaster becomes leader, release allocated addresses without an endpoint, service or
    /// gateway, and correct the numbers of endpoints of networks and groups
    #[arg(long, env = "CONTIV_NETMASTER_REPAIR")]
    pub repair: bool,

    #[command(flatten)]
    pub rest: RestFlags,

    #[command(flatten)]
    pub store: StoreFlags,

    #[command(flatten)]
    pub log: LogFlags,
}

#[derive(Clone, Debug, Args)]
pub struct StoreFlags {
    /// etcd endpoints, separated by commas [default: http://127.0.0.1:2379]
    #[arg(long, alias = "etcd-endpoints", env = "CONTIV_NETMASTER_ETCD_ENDPOINTS", value_name = "URL[,URL]")]
    pub etcd: Option<String>,

    #[command(flatten)]
    pub access: EtcdFlags,

    /// Time to wait at start for a store that does not respond, or forever
    #[arg(long, env = "CONTIV_NETMASTER_STORE_WAIT", default_value = "forever", value_parser = store_wait)]
    pub store_wait: WaitLimit,

    /// History of etcd that is kept, such as 1h; the leader compacts what is older. With never, etcd
    /// must compact (--auto-compaction-retention). The embedded store bounds its history itself
    #[arg(long, env = "CONTIV_NETMASTER_ETCD_COMPACT", default_value = "1h", value_name = "TIME", value_parser = etcd_compact)]
    pub etcd_compact: WaitLimit,

    /// Consul endpoints (not built yet)
    #[arg(
        long,
        alias = "consul-endpoints",
        env = "CONTIV_NETMASTER_CONSUL_ENDPOINTS",
        value_name = "URL[,URL]"
    )]
    pub consul: Option<String>,

    /// Embedded store of a single machine, used instead of etcd: embedded:DIR
    #[arg(long, env = "CONTIV_NETMASTER_STORE", value_name = "embedded:DIR")]
    pub store: Option<EmbeddedDir>,

    /// Where the embedded store serves the etcd protocol to the agent of this machine, without
    /// authentication: unix:PATH, a socket that only root and netmaster's user may open, or an address
    /// and port [default: unix:DIR/store.sock]
    #[arg(long, env = "CONTIV_NETMASTER_STORE_LISTEN", value_name = "unix:PATH|IP:PORT")]
    pub store_listen: Option<StoreListen>,

    /// Seconds without a lease keep-alive after which another netmaster takes over
    #[arg(long, env = "CONTIV_NETMASTER_FAILOVER_AFTER", default_value = "1", value_parser = seconds)]
    pub failover_after: Duration,

    /// TTL of the leader's lease in seconds: the leader lock expires after it if no other netmaster
    /// takes over
    #[arg(long, env = "CONTIV_NETMASTER_LEASE_TTL", default_value = "10", value_parser = seconds)]
    pub lease_ttl: Duration,
}

contiv_daemon::log_flags!("CONTIV_NETMASTER_");
contiv_daemon::etcd_flags!("CONTIV_NETMASTER_");

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Infra {
    Default,
    Aci,
}

/// Directory of the embedded store: `embedded:DIR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedDir(pub PathBuf);

impl std::str::FromStr for EmbeddedDir {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("embedded:") {
            Some(dir) if !dir.is_empty() => Ok(EmbeddedDir(dir.into())),
            _ => Err("expected embedded:DIR; for etcd, use --etcd"),
        }
    }
}

/// Where the embedded store listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreListen {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl std::str::FromStr for StoreListen {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("unix:").map(|path| Path::new(path.strip_prefix("//").unwrap_or(path))) {
            Some(path) if path.is_absolute() => Ok(StoreListen::Unix(path.to_owned())),
            Some(_) => Err("expected unix: and an absolute path, such as unix:/run/store.sock"),
            None => text.parse().map(StoreListen::Tcp).map_err(|_| "expected unix:PATH or IP:PORT"),
        }
    }
}

/// Time limit; none for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitLimit(pub Option<Duration>);

fn gone_after(text: &str) -> Result<WaitLimit, String> {
    WaitLimit::read(text, "never")
}

fn etcd_compact(text: &str) -> Result<WaitLimit, String> {
    WaitLimit::read(text, "never")
}

fn store_wait(text: &str) -> Result<WaitLimit, String> {
    WaitLimit::read(text, "forever")
}

impl WaitLimit {
    /// Parses `without_end` or a duration.
    fn read(text: &str, without_end: &str) -> Result<WaitLimit, String> {
        if text == without_end {
            return Ok(WaitLimit(None));
        }
        match humantime::parse_duration(text) {
            Ok(time) if time >= Duration::from_secs(1) => Ok(WaitLimit(Some(time))),
            _ => Err(format!(
                "expected {without_end}, or a duration of at least 1s, such as 90s, 30m, 24h or 7days"
            )),
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(n @ 1..=300) => Ok(Duration::from_secs(n)),
        _ => Err("expected whole seconds, 1 to 300".into()),
    }
}

impl Flags {
    /// Parses the command line and the environment.
    pub fn read(args: impl IntoIterator<Item = OsString>) -> Result<Flags, Exit> {
        let flags: Flags = parse(args)?;
        flags.check().map_err(Exit::Usage)?;
        Ok(flags)
    }

    fn check(&self) -> Result<(), String> {
        let not_built = |flag: &str, now: &str| Err(format!("{flag} is not built yet; {now}"));
        self.mode.check()?;
        if self.aci_gateway.is_https() != self.aci_gateway_ca.is_some() {
            return Err("--aci-gateway https://HOST:PORT and --aci-gateway-ca require each other".into());
        }
        if self.store.lease_ttl <= self.store.failover_after {
            return Err("--lease-ttl must be longer than --failover-after".into());
        }
        if self.rest.role_file.is_some() && self.rest.client_ca.is_none() {
            return Err("--role-file has roles of client certificates and requires --client-ca".into());
        }
        let plain = self.rest.token_file.is_some() && self.rest.tls_cert.is_none();
        if plain && let Some(address) = self.listeners().iter().find(|address| !address.ip().is_loopback()) {
            return Err(format!(
                "--token-file without --tls-cert would send tokens in plain text to {address}; set --tls-cert and \
                 --tls-key, or set --external-address and --internal-address to loopback addresses"
            ));
        }
        match &self.store {
            StoreFlags { consul: Some(_), etcd: Some(_), .. } => {
                Err("--etcd and --consul are mutually exclusive".into())
            }
            StoreFlags { consul: Some(_), .. } => not_built("--consul", "use --etcd or --store embedded:DIR"),
            StoreFlags { etcd: Some(_), store: Some(_), .. } => {
                Err("--etcd and --store embedded:DIR are mutually exclusive".into())
            }
            StoreFlags { access: EtcdFlags { etcd_ca, etcd_user, .. }, store: Some(_), .. }
                if etcd_ca.is_some() || etcd_user.is_some() =>
            {
                Err("--etcd-ca and --etcd-user require etcd and cannot be used with --store embedded:DIR"
                    .into())
            }
            _ => Ok(()),
        }
    }

    /// Value of `--mode`, as `inspect` reports it.
    pub fn mode_name(&self) -> String {
        name(&self.mode)
    }

    pub fn fwdmode_name(&self) -> String {
        name(&self.fwdmode)
    }

    pub fn infra_name(&self) -> String {
        name(&self.infra)
    }

    /// Address that other netmasters reach this one at.
    pub fn internal(&self) -> SocketAddr {
        self.internal_address.unwrap_or_else(|| {
            let ip = self.external_address.ip();
            let ip = if ip.is_unspecified() { own_ip() } else { ip };
            SocketAddr::new(ip, self.external_address.port())
        })
    }

    /// Addresses to listen on. The internal address is left out if the external one includes it.
    pub fn listeners(&self) -> Vec<SocketAddr> {
        let (external, internal) = (self.external_address, self.internal());
        let covered =
            external == internal || external.ip().is_unspecified() && external.port() == internal.port();
        if covered { vec![external] } else { vec![external, internal] }
    }
}

/// Source address of this host's default route, otherwise its first non-loopback address.
fn own_ip() -> IpAddr {
    routed_ip().or_else(first_ip).unwrap_or(Ipv4Addr::LOCALHOST.into())
}

fn routed_ip() -> Option<IpAddr> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // Connecting a UDP socket sends nothing; it only selects the route. The address is in a
    // documentation range.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_unspecified())
}

fn first_ip() -> Option<IpAddr> {
    let addresses = nix::ifaddrs::getifaddrs().ok()?;
    let v4 = |i: nix::ifaddrs::InterfaceAddress| Some(i.address?.as_sockaddr_in()?.ip());
    addresses.filter_map(v4).find(|ip| !ip.is_loopback()).map(IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use contiv_daemon::logging::LogLevel;

    use super::*;

    fn read(args: &str) -> Result<Flags, Exit> {
        Flags::read(std::iter::once("netmaster").chain(args.split_whitespace()).map(Into::into))
    }

    fn bad(args: &str) -> String {
        match read(args) {
            Err(Exit::Usage(line)) => line,
            other => panic!("{args}: {other:?}"),
        }
    }

    const GOOD: &str = "--mode test --netmode vxlan --fwdmode bridge";

    #[test]
    fn flags_and_their_aliases() {
        let flags = read(&format!("{GOOD} --external-address 127.0.0.1:1")).unwrap();
        assert_eq!((flags.mode_name().as_str(), flags.fwdmode_name().as_str()), ("test", "bridge"));
        assert_eq!(flags.listeners(), ["127.0.0.1:1".parse().unwrap()]);
        for alias in ["plugin-mode", "cluster-mode"] {
            assert!(read(&format!("--{alias} cni --netmode vlan --fwdmode routing")).is_ok());
        }
        let flags =
            read(&format!("{GOOD} --listen-url 0.0.0.0:80 --control-url 10.0.0.1:81 --log-level WARNING"))
                .unwrap();
        assert_eq!(flags.listeners().len(), 2);
        assert_eq!(flags.internal().to_string(), "10.0.0.1:81");
        assert_eq!(flags.log.log_level, LogLevel::Warn);
        for (text, listen) in [
            ("127.0.0.1:1", StoreListen::Tcp("127.0.0.1:1".parse().unwrap())),
            ("unix:/s", StoreListen::Unix("/s".into())),
            ("unix:///s", StoreListen::Unix("/s".into())),
        ] {
            let flags = read(&format!("{GOOD} --store embedded:/x --store-listen {text}")).unwrap();
            assert_eq!(flags.store.store_listen, Some(listen));
        }
    }

    #[test]
    fn invalid_flags_are_reported_on_one_line() {
        for (args, parts) in [
            ("--netmode vlan --fwdmode bridge", &["--mode"][..]),
            ("--mode foo --netmode vlan --fwdmode bridge", &["--mode", "foo", "kubernetes"]),
            ("--mode test --netmode gre --fwdmode bridge", &["--netmode", "gre", "vlan, vxlan"]),
            (
                "--mode kubernetes --netmode vlan --fwdmode bridge",
                &["--mode kubernetes", "not built", "cni, test"],
            ),
            (&format!("{GOOD} --infra opflex"), &["--infra", "opflex", "default, aci"]),
            (&format!("{GOOD} --aci-gateway localhost:5000"), &["--aci-gateway", "http://HOST:PORT"]),
            (&format!("{GOOD} --aci-gateway https://localhost:5000"), &["--aci-gateway-ca"]),
            (&format!("{GOOD} --aci-gateway HTTPS://localhost:5000"), &["--aci-gateway-ca"]),
            (&format!("{GOOD} --aci-gateway-ca ca.pem"), &["--aci-gateway https://"]),
            (&format!("{GOOD} --consul http://x"), &["--consul", "--etcd"]),
            (&format!("{GOOD} --consul http://x --etcd http://x"), &["--consul", "--etcd"]),
            (&format!("{GOOD} --store /tmp/x"), &["--store", "embedded:DIR"]),
            (&format!("{GOOD} --store-listen unix:store.sock"), &["--store-listen", "unix:/run/store.sock"]),
            (&format!("{GOOD} --store-listen localhost"), &["--store-listen", "unix:PATH or IP:PORT"]),
            (&format!("{GOOD} --etcd http://x --store embedded:/x"), &["--etcd", "--store"]),
            (&format!("{GOOD} --node-gone-after 5"), &["--node-gone-after", "24h", "never"]),
            (&format!("{GOOD} --etcd-compact 0"), &["--etcd-compact", "never", "24h"]),
            (&format!("{GOOD} --store-wait 0s"), &["--store-wait", "forever", "90s"]),
            (&format!("{GOOD} --lease-ttl 0"), &["--lease-ttl", "1 to 300"]),
            (&format!("{GOOD} --lease-ttl 1"), &["--lease-ttl", "longer than --failover-after"]),
            (&format!("{GOOD} --failover-after 0.5"), &["--failover-after", "whole seconds"]),
            (&format!("{GOOD} --syslog-url tcp://1.1.1.1:1"), &["--syslog-url", "udp://IP:PORT"]),
            (&format!("{GOOD} --external-address :9999"), &["--external-address"]),
            (&format!("{GOOD} --frobnicate"), &["--frobnicate"]),
            (&format!("{GOOD} --role-file /x"), &["--role-file", "--client-ca"]),
            (
                &format!("{GOOD} --token-file /x --external-address 10.0.0.1:9999"),
                &["--token-file", "--tls-cert", "10.0.0.1:9999"],
            ),
            (
                &format!(
                    "{GOOD} --token-file /x --external-address 127.0.0.1:1 --internal-address 10.0.0.1:1"
                ),
                &["--token-file", "--tls-cert", "10.0.0.1:1"],
            ),
        ] {
            let line = bad(args);
            assert!(!line.contains('\n'), "{line}");
            for part in parts {
                assert!(line.contains(part), "{args}: {line:?} lacks {part:?}");
            }
        }
    }

    #[test]
    fn tokens_need_tls_except_on_loopback() {
        for fine in [
            "--token-file /x --external-address 127.0.0.1:1",
            "--token-file /x --external-address [::1]:1",
            "--token-file /x --tls-cert /c --tls-key /k",
        ] {
            assert!(read(&format!("{GOOD} {fine}")).is_ok(), "{fine}");
        }
        assert!(bad(&format!("{GOOD} --token-file /x")).contains("--tls-cert"));
    }

    #[test]
    fn backup_and_restore_have_flags_of_their_own() {
        let command = |args: &str| Command::read(args.split_whitespace().map(Into::into));
        assert!(
            matches!(command("netmaster backup f"), Ok(Command::Backup(b)) if b.store.etcd == DEFAULT_STORE)
        );
        assert!(matches!(command("netmaster restore f --replace"), Ok(Command::Restore(r)) if r.replace));
        assert!(matches!(command("netmaster restore"), Err(Exit::Usage(line)) if line.contains("FILE")));
        assert!(
            matches!(command("netmaster backup f --mode test"), Err(Exit::Usage(line)) if line.contains("--mode"))
        );
        assert!(matches!(command(&format!("netmaster {GOOD}")), Ok(Command::Run(_))));
    }

    #[test]
    fn help_and_version_are_not_errors() {
        assert!(matches!(read("--help"), Err(Exit::Output(text)) if text.contains("--fwdmode")));
        assert!(
            matches!(read("--version"), Err(Exit::Output(text)) if text.contains(env!("CARGO_PKG_VERSION")))
        );
    }

    /// Also those in comments.
    #[test]
    fn variables_in_the_environment_files_exist() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/config");
        let command = <Flags as clap::CommandFactory>::command();
        let known: Vec<_> = command.get_arguments().filter_map(|arg| arg.get_env()?.to_str()).collect();
        for file in ["netmaster.env", "netplugin.env"] {
            let text = std::fs::read_to_string(folder.join(file)).unwrap();
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for name in words.filter(|word| word.starts_with("CONTIV_NETMASTER_") && !word.ends_with('_')) {
                assert!(known.contains(&name), "{file}: {name}");
            }
        }
    }
}
