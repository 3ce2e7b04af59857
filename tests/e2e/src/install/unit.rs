//! The part of a systemd service unit that says what to start.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

const FOLDERS: &[&str] = &["/etc/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system"];

#[derive(Debug, Default)]
pub(super) struct Unit {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// From `Environment=` and `EnvironmentFile=`; later lines win.
    pub(super) environment: BTreeMap<String, String>,
    pub(super) exec_start_pre: Vec<String>,
    pub(super) exec_start: String,
    pub(super) user: Option<String>,
    pub(super) notifies: bool,
    pub(super) no_new_privileges: bool,
    /// Capabilities that the unit keeps, lower case and without `cap_`; all if there is no such line.
    pub(super) bounding_set: Option<Vec<String>>,
    /// Folders below /run, /var/lib and the like, which the user owns.
    pub(super) folders: Vec<String>,
}

impl Unit {
    /// Reads the unit `name`, with or without `.service`.
    pub(super) fn load(name: &str) -> Result<Unit> {
        let name = name.trim_end_matches(".service");
        let file = format!("{name}.service");
        let found = FOLDERS.iter().map(|folder| Path::new(folder).join(&file)).find(|path| path.is_file());
        let path = found.with_context(|| format!("Unit {file} not found."))?;
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let unit = Unit::parse(name, &text).with_context(|| format!("parse {}", path.display()))?;
        Ok(Unit { path, ..unit })
    }

    fn parse(name: &str, text: &str) -> Result<Unit> {
        let mut unit = Unit { name: name.to_owned(), ..Unit::default() };
        let text = text.replace("\\\n", " ");
        let mut section = "";
        for line in text.lines().map(str::trim) {
            if line.starts_with('[') {
                section = line;
            }
            if section != "[Service]" || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some((key, value)) = line.split_once('=') {
                unit.set(key.trim(), &expand(name, value.trim())?)?;
            }
        }
        if unit.exec_start.is_empty() {
            bail!("no ExecStart=");
        }
        Ok(unit)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let is_true = matches!(value, "yes" | "true" | "1" | "on");
        match key {
            "ExecStart" => value.clone_into(&mut self.exec_start),
            "ExecStartPre" => self.exec_start_pre.push(value.to_owned()),
            "User" => self.user = Some(value.to_owned()),
            "DynamicUser" if is_true => bail!("DynamicUser= has no stand-in"),
            "Type" => self.notifies = matches!(value, "notify" | "notify-reload"),
            "Environment" => self.assign(value),
            "EnvironmentFile" => self.read_environment(value)?,
            "NoNewPrivileges" => self.no_new_privileges = is_true,
            "CapabilityBoundingSet" => {
                let names =
                    value.split_whitespace().map(|name| name.trim_start_matches("CAP_").to_lowercase());
                self.bounding_set = Some(names.collect());
            }
            "RuntimeDirectory" => self.make_below("/run", value),
            "StateDirectory" => self.make_below("/var/lib", value),
            "LogsDirectory" => self.make_below("/var/log", value),
            "CacheDirectory" => self.make_below("/var/cache", value),
            _ => {}
        }
        Ok(())
    }

    fn make_below(&mut self, folder: &str, names: &str) {
        self.folders.extend(names.split_whitespace().map(|name| format!("{folder}/{name}")));
    }

    fn read_environment(&mut self, value: &str) -> Result<()> {
        let (path, may_miss) = match value.strip_prefix('-') {
            Some(path) => (path, true),
            None => (value, false),
        };
        if may_miss && !Path::new(path).exists() {
            return Ok(());
        }
        let text = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            self.assign(line);
        }
        Ok(())
    }

    fn assign(&mut self, line: &str) {
        if let Some((key, value)) = line.trim_matches('"').split_once('=') {
            self.environment.insert(key.to_owned(), value.trim_matches(['"', '\'']).to_owned());
        }
    }

    /// The words of a command line, with `$NAME` and `${NAME}` replaced; without systemd's prefixes.
    pub(super) fn words(&self, line: &str) -> Vec<String> {
        let line = line.trim_start_matches(['-', '+', '!', '@', ':']);
        let mut words = vec![];
        for word in line.split_whitespace() {
            match word.strip_prefix('$') {
                Some(name) => {
                    let name = name.trim_matches(['{', '}']);
                    let value = self.environment.get(name).map(String::as_str).unwrap_or_default();
                    words.extend(value.split_whitespace().map(str::to_owned));
                }
                None => words.push(word.to_owned()),
            }
        }
        words
    }
}

/// Replaces the specifiers that units of the page use.
fn expand(name: &str, value: &str) -> Result<String> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").context("read the host name")?;
    Ok(value.replace("%H", host.trim()).replace("%n", &format!("{name}.service")).replace("%p", name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_section_is_read() {
        let text = "[Unit]\nType=no\n[Service]\nType=notify\nUser=etcd\nEnvironment=ARGS=\"--a --b\"\n\
                    ExecStart=-/usr/bin/etcd \\\n  $ARGS ${NONE}\nRuntimeDirectory=x\n";
        let unit = Unit::parse("etcd", text).unwrap();
        assert!(unit.notifies);
        assert_eq!(unit.user.as_deref(), Some("etcd"));
        assert_eq!(unit.words(&unit.exec_start), ["/usr/bin/etcd", "--a", "--b"]);
        assert_eq!(unit.folders, ["/run/x"]);
    }

    #[test]
    fn a_unit_that_starts_nothing_is_refused() {
        assert!(Unit::parse("x", "[Service]\nType=simple\n").is_err());
    }
}
