use std::{
    path::{Path, PathBuf},
    str::FromStr,
};

use super::{Code, Error, Version};

/// Command of an invocation, `CNI_COMMAND`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Attaches the container to the network.
    Add,
    /// Removes the attachment.
    Del,
    /// Checks that the attachment is as ADD left it.
    Check,
    /// Checks that the plugin can serve an ADD.
    Status,
    /// Frees resources that no listed attachment owns.
    Gc,
    /// Lists the supported versions.
    Version,
}

impl Command {
    /// The first version of the specification with the command.
    pub const fn since(self) -> Version {
        match self {
            Command::Add | Command::Del | Command::Version => Version::V0_1_0,
            Command::Check => Version::V0_4_0,
            Command::Status | Command::Gc => Version::V1_1_0,
        }
    }

    /// Value of the variable.
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

/// Container and interface of an invocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `CNI_CONTAINERID`.
    pub container: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_NETNS`, absolute; `None` if it is empty, as it may be for DEL.
    pub netns: Option<PathBuf>,
}

impl Target {
    /// Checks the three variables; an error names all that are missing.
    pub fn parse(command: Command, env: impl Fn(&str) -> Option<String>) -> Result<Target, Error> {
        let get = |name| env(name).filter(|value| !value.is_empty());
        let (container, ifname, netns) = (get("CNI_CONTAINERID"), get("CNI_IFNAME"), get("CNI_NETNS"));
        let netns_missing = matches!(command, Command::Add | Command::Check) && netns.is_none();
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

/// Linux's rules for an interface name.
fn check_ifname(name: &str) -> Result<(), Error> {
    let good = name.len() <= 15
        && name != "."
        && name != ".."
        && !name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace());
    if good {
        return Ok(());
    }
    Err(Error::new(Code::InvalidEnvironment, format!("CNI_IFNAME {name:?} is not a valid interface name"))
        .details("expected 1 to 15 bytes without '/', ':' and blanks"))
}

/// The agent has another working directory and another `/proc/self`.
fn absolute(path: &Path) -> PathBuf {
    for own in ["/proc/self", "/proc/thread-self"] {
        if let Ok(rest) = path.strip_prefix(own) {
            return Path::new("/proc").join(std::process::id().to_string()).join(rest);
        }
    }
    // Fails only without a current directory; the agent then reports that the file does not exist.
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
    fn all_missing_variables_are_named() {
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
    fn the_namespace_path_is_valid_for_the_agent() {
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
