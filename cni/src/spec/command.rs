use std::{
    path::{Path, PathBuf},
    str::FromStr,
};

use super::{Code, Error, Version};

/// `CNI_COMMAND`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Attach the container to the network.
    Add,
    /// Undo that.
    Del,
    /// Is the attachment as ADD left it?
    Check,
    /// Could the plugin serve an ADD?
    Status,
    /// Free what no listed attachment owns.
    Gc,
    /// Which versions are spoken?
    Version,
}

impl Command {
    /// The oldest version that has the command.
    pub const fn since(self) -> Version {
        match self {
            Command::Add | Command::Del | Command::Version => Version::V0_1_0,
            Command::Check => Version::V0_4_0,
            Command::Status | Command::Gc => Version::V1_1_0,
        }
    }

    /// The text of the variable.
    pub const fn as_str(self) -> &'static str {
        match self {
            Command::Add => "ADD",
            Command::Del => "DEL",
            Command::Check => "CHECK",
            Command::Status => "STATUS",
            Command::Gc => "GC",
            Command::Version => "VERSION",
        }
    }
}

impl FromStr for Command {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        const ALL: [Command; 6] =
            [Command::Add, Command::Del, Command::Check, Command::Status, Command::Gc, Command::Version];
        ALL.into_iter().find(|command| command.as_str() == text).ok_or_else(|| {
            Error::new(Code::InvalidEnvironment, format!("CNI_COMMAND {text:?} is unknown"))
                .details("expected ADD, DEL, CHECK, STATUS, GC or VERSION; container runtimes set it")
        })
    }
}

/// Which interface of which container is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `CNI_CONTAINERID`.
    pub container: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_NETNS`, absolute; none when empty, as it may be for DEL.
    pub netns: Option<PathBuf>,
}

impl Target {
    /// Checks the three variables; says all that are missing at once.
    pub fn parse(command: Command, env: impl Fn(&str) -> Option<String>) -> Result<Target, Error> {
        let get = |name| env(name).filter(|value| !value.is_empty());
        let (container, ifname, netns) = (get("CNI_CONTAINERID"), get("CNI_IFNAME"), get("CNI_NETNS"));
        let netns_missing = command == Command::Add && netns.is_none();
        let missing: Vec<_> = [
            ("CNI_CONTAINERID", container.is_none()),
            ("CNI_IFNAME", ifname.is_none()),
            ("CNI_NETNS", netns_missing),
        ]
        .into_iter()
        .filter_map(|(name, missing)| missing.then_some(name))
        .collect();
        let (Some(container), Some(ifname), false) = (container, ifname, netns_missing) else {
            return Err(Error::new(
                Code::InvalidEnvironment,
                format!("required environment variables are missing: {}", missing.join(", ")),
            ));
        };
        check_container(&container)?;
        check_ifname(&ifname)?;
        Ok(Target { container, ifname, netns: netns.map(|path| absolute(Path::new(&path))) })
    }
}

/// The specification's `^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`.
fn check_container(id: &str) -> Result<(), Error> {
    let good = id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
    if good {
        return Ok(());
    }
    Err(Error::new(Code::InvalidEnvironment, format!("CNI_CONTAINERID {id:?} is invalid"))
        .details("expected letters, digits, '_', '.' and '-', the first of them a letter or digit"))
}

/// What Linux takes as an interface's name.
fn check_ifname(name: &str) -> Result<(), Error> {
    let good = name.len() <= 15
        && name != "."
        && name != ".."
        && !name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace());
    if good {
        return Ok(());
    }
    Err(Error::new(Code::InvalidEnvironment, format!("CNI_IFNAME {name:?} is no interface name"))
        .details("expected 1 to 15 bytes without '/', ':' and blanks"))
}

/// The agent works elsewhere: relative paths and `/proc/self` mean something else to it.
fn absolute(path: &Path) -> PathBuf {
    for own in ["/proc/self", "/proc/thread-self"] {
        if let Ok(rest) = path.strip_prefix(own) {
            return Path::new("/proc").join(std::process::id().to_string()).join(rest);
        }
    }
    // Fails only where there is no current directory; the agent then says that it finds no such file.
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(command: Command, vars: &[(&str, &str)]) -> Result<Target, Error> {
        Target::parse(command, |name| {
            vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn everything_that_is_missing_is_named_at_once() {
        let error = target(Command::Add, &[("CNI_IFNAME", "eth0"), ("CNI_NETNS", "")]).unwrap_err();
        assert_eq!(error.code, Code::InvalidEnvironment);
        assert_eq!(error.msg, "required environment variables are missing: CNI_CONTAINERID, CNI_NETNS");
        let del = [("CNI_IFNAME", "eth0"), ("CNI_CONTAINERID", "c1"), ("CNI_NETNS", "")];
        assert_eq!(target(Command::Del, &del).unwrap().netns, None);
    }

    #[test]
    fn bad_values_are_refused() {
        for (container, ifname, what) in [
            ("../x", "eth0", "CNI_CONTAINERID \"../x\""),
            ("-x", "eth0", "CNI_CONTAINERID"),
            ("c1", "an-interface-name", "CNI_IFNAME"),
            ("c1", "a/b", "CNI_IFNAME"),
            ("c1", "..", "CNI_IFNAME"),
        ] {
            let vars = [("CNI_CONTAINERID", container), ("CNI_IFNAME", ifname), ("CNI_NETNS", "/x")];
            let error = target(Command::Add, &vars).unwrap_err();
            assert!(error.msg.contains(what), "{error}");
        }
    }

    #[test]
    fn the_namespace_means_the_same_to_the_agent() {
        let netns = |path| {
            let vars = [("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "eth0"), ("CNI_NETNS", path)];
            target(Command::Add, &vars).unwrap().netns.unwrap()
        };
        assert_eq!(netns("/run/netns/x"), Path::new("/run/netns/x"));
        assert_eq!(netns("/proc/7/ns/net"), Path::new("/proc/7/ns/net"));
        assert_eq!(netns("x"), std::env::current_dir().unwrap().join("x"));
        let own = format!("/proc/{}/ns/net", std::process::id());
        assert_eq!(netns("/proc/self/ns/net"), Path::new(&own));
    }
}
