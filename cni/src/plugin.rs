//! One invocation of the plugin.

use std::{
    ffi::OsString,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    http,
    spec::{
        Args, Attachment, Code, Command, Conf, Error, Interface, Target, Version, append, default_routes,
        difference, listed_interface, object, version_of,
    },
    wire,
};

/// Limit in bytes, larger than a configuration with a previous result.
const LONGEST_CONF: u64 = 1 << 20;
/// Longer than the agent's limits for a request that succeeds, shorter than the runtimes' limits. The agent finishes a request
/// also if the plugin does not wait for it any more.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit of STATUS: an agent that does not answer is not available.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// Environment variable with the agent's socket; the configuration's `socket` takes precedence.
pub const SOCKET_VARIABLE: &str = "CONTIV_CNI_SOCKET";

/// All environment variables that the plugin reads.
const VARIABLES: [&str; 6] =
    ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_ARGS", SOCKET_VARIABLE];

/// Output and exit status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Text for standard output.
    pub stdout: String,
    /// Exit status.
    pub status: u8,
}

/// Serves one invocation; all input comes from `env` and `stdin`.
pub fn run<V: Into<OsString>>(env: impl Fn(&str) -> Option<V>, stdin: impl Read) -> Outcome {
    let mut conf = Vec::new();
    let read = stdin.take(LONGEST_CONF + 1).read_to_end(&mut conf).map_err(|e| {
        Error::new(Code::Io, "read the network configuration from standard input").details(e.to_string())
    });
    let answer = read.and_then(|_| {
        if conf.len() as u64 > LONGEST_CONF {
            let text = format!("the network configuration is longer than {LONGEST_CONF} bytes");
            return Err(Error::new(Code::InvalidConfig, text));
        }
        check_text(&env)?;
        let text = |name: &str| env(name).and_then(|value| value.into().into_string().ok());
        answer(&text, &conf)
    });
    let version = || version_of(&conf).unwrap_or(Version::NEWEST);
    match answer {
        Ok(stdout) => Outcome { stdout, status: 0 },
        Err(error) => Outcome {
            // Serialising three strings and a number does not fail.
            stdout: error.to_json(version()).unwrap_or_else(|e| e.to_string()),
            status: 1,
        },
    }
}

/// A variable that cannot be read must not count as missing: the pod would get another network than it asks for.
fn check_text<V: Into<OsString>>(env: impl Fn(&str) -> Option<V>) -> Result<(), Error> {
    let is_text = |name: &&str| env(name).is_none_or(|value| value.into().to_str().is_some());
    match VARIABLES.iter().find(|name| !is_text(name)) {
        Some(name) => {
            let text = format!("{name} is not UTF-8");
            Err(Error::new(Code::InvalidEnvironment, text).details("expected text in UTF-8"))
        }
        None => Ok(()),
    }
}

fn answer(env: &impl Fn(&str) -> Option<String>, conf: &[u8]) -> Result<String, Error> {
    let command: Command = env("CNI_COMMAND").unwrap_or_default().parse()?;
    if command == Command::Version {
        return versions(conf);
    }
    let conf = Conf::parse(conf)?;
    if conf.version < command.since() {
        let text = format!("{} needs cniVersion {} or newer", command.as_str(), command.since());
        return Err(Error::new(Code::IncompatibleVersion, text)
            .details(format!("the network configuration has cniVersion {}", conf.version)));
    }
    match command {
        Command::Add => {
            check_prev_result(&conf)?;
            let call = Call::prepare(command, env, &conf)?;
            call.check_netns()?;
            call.add(&conf)
        }
        Command::Del => Call::prepare(command, env, &conf)?.del(),
        Command::Check => {
            let Some(prev) = &conf.prev_result else {
                let text = "CHECK: the network configuration has no prevResult";
                return Err(
                    Error::new(Code::InvalidConfig, text).details("container runtimes add the result of ADD")
                );
            };
            check_prev_result(&conf)?;
            let mut call = Call::prepare(command, env, &conf)?;
            call.check_netns()?;
            call.request.default_routes = Some(default_routes(prev));
            call.request.listed_interface = Some(listed_interface(prev, &call.request.ifname));
            call.check(&conf, prev)
        }
        Command::Status => Call::without_container(env, &conf).status(),
        Command::Gc => {
            let mut call = Call::without_container(env, &conf);
            call.request.valid_attachments = conf.valid_attachments.clone();
            call.send(wire::GC).map(|_| String::new())
        }
        Command::Version => versions(&[]),
    }
}

/// Otherwise the agent would attach the pod before the result fails. A DEL does not read it.
fn check_prev_result(conf: &Conf) -> Result<(), Error> {
    match &conf.prev_result {
        Some(prev) if conf.version >= Version::V0_3_0 => object(prev).map(|_| ()),
        _ => Ok(()),
    }
}

fn versions(conf: &[u8]) -> Result<String, Error> {
    let asked = version_of(conf).unwrap_or(Version::NEWEST);
    let supported: Vec<_> = Version::ALL.iter().map(|version| version.as_str()).collect();
    let body = serde_json::json!({ "cniVersion": asked.as_str(), "supportedVersions": supported });
    Ok(body.to_string())
}

/// A request to the agent.
struct Call {
    socket: PathBuf,
    limit: Duration,
    request: wire::Request,
}

impl Call {
    fn prepare(command: Command, env: &impl Fn(&str) -> Option<String>, conf: &Conf) -> Result<Call, Error> {
        let target = Target::parse(command, env)?;
        let args = Args::parse(&env("CNI_ARGS").unwrap_or_default())?;
        let mut call = Call::without_container(env, conf);
        // Labels of the pod take precedence over those of the network configuration.
        let labels = conf.labels.clone().into_iter().chain(args.labels).collect();
        call.request = wire::Request {
            pod_name: args.pod_name,
            pod_namespace: args.pod_namespace,
            infra_container: args.infra_container,
            netns: target.netns.unwrap_or_default(),
            ifname: target.ifname,
            container: target.container,
            labels,
            ..call.request
        };
        Ok(call)
    }

    fn without_container(env: &impl Fn(&str) -> Option<String>, conf: &Conf) -> Call {
        let from_env = || env(SOCKET_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        Call {
            socket: conf.socket.clone().or_else(from_env).unwrap_or_else(|| wire::SOCKET.into()),
            limit: conf.timeout.unwrap_or(TIMEOUT),
            request: wire::Request {
                cni_version: conf.version.to_string(),
                network_name: conf.name.clone(),
                ..wire::Request::default()
            },
        }
    }

    /// Otherwise the agent would fail after netmaster has created an endpoint.
    fn check_netns(&self) -> Result<(), Error> {
        std::fs::metadata(&self.request.netns).map(drop).map_err(|e| {
            let path = self.request.netns.display();
            Error::new(Code::InvalidEnvironment, format!("CNI_NETNS: no network namespace at {path}"))
                .details(e.to_string())
        })
    }

    fn add(self, conf: &Conf) -> Result<String, Error> {
        let own = self.attachment(wire::ADD, conf)?.to_json(conf.version);
        let own = own.map_err(|e| Error::new(Code::Io, "write the result").details(e.to_string()))?;
        match &conf.prev_result {
            // Earlier versions have no prevResult.
            Some(prev) if conf.version >= Version::V0_3_0 => append(prev, &own),
            _ => Ok(own),
        }
    }

    /// Checks the attachment in the agent, and that the result of ADD tells of it.
    fn check(self, conf: &Conf, prev: &serde_json::Value) -> Result<String, Error> {
        let own = self.attachment(wire::CHECK, conf)?.to_json(conf.version);
        let own = own.map_err(|e| Error::new(Code::Io, "write the result").details(e.to_string()))?;
        match difference(prev, &own)? {
            None => Ok(String::new()),
            Some(what) => {
                let text = format!("CHECK: prevResult does not have {what}");
                Err(Error::new(Code::Agent, text).details("the attachment was changed after ADD"))
            }
        }
    }

    fn status(mut self) -> Result<String, Error> {
        self.limit = self.limit.min(STATUS_TIMEOUT);
        match self.send(wire::STATUS) {
            Ok(_) => Ok(String::new()),
            // The agent does not run, or is starting.
            Err(error) if error.code == Code::TryAgain => Err(Error { code: Code::Unavailable, ..error }),
            Err(error) => Err(error),
        }
    }

    fn attachment(self, route: &'static str, conf: &Conf) -> Result<Attachment, Error> {
        let (sandbox, ifname) = (self.request.netns.display().to_string(), self.request.ifname.clone());
        let reply = self.send(route)?;
        Ok(Attachment {
            host: Interface { name: reply.port, mac: reply.port_mac, mtu: reply.mtu },
            container: Interface { name: ifname, mac: reply.mac, mtu: reply.mtu },
            sandbox,
            ipv4: reply.ip.map(|net| (net, reply.gateway)),
            ipv6: reply.ip6.map(|net| (net, reply.gateway6)),
            other_routes: [reply.other_route, reply.other_route6],
            dns: conf.dns.clone(),
        })
    }

    fn del(self) -> Result<String, Error> {
        self.send(wire::DEL).map(|_| String::new())
    }

    fn send(self, route: &'static str) -> Result<wire::Reply, Error> {
        let body = serde_json::to_vec(&self.request)
            .map_err(|e| Error::new(Code::Io, "write the request").details(e.to_string()))?;
        let response =
            http::post(&self.socket, route, body, self.limit).map_err(|e| unreachable(&e, &self.socket))?;
        let reply: wire::Reply = serde_json::from_slice(&response.body).map_err(|e| {
            let text = String::from_utf8_lossy(&response.body);
            Error::new(Code::Agent, format!("the agent answered {} without JSON", response.status))
                .details(format!("{e}: {}", text.trim()))
        })?;
        if response.status == 200 && reply.result == 0 {
            return Ok(reply);
        }
        let code = if reply.code == 0 { Code::Agent } else { Code::from(reply.code) };
        // The original's text, which operators search for.
        Err(Error::new(code, format!("Contiv:{}", reply.error)).details(reply.reason))
    }
}

/// The agent is not running; the runtime should retry.
fn unreachable(error: &http::Error, socket: &Path) -> Error {
    let why = std::error::Error::source(error).map(|e| format!(": {e}")).unwrap_or_default();
    Error::new(Code::TryAgain, error.to_string())
        .details(format!("check that netplugin runs on this node and listens at {}{why}", socket.display()))
}
