//! Roles of client certificates, by their subjects.

use std::path::{Path, PathBuf};

use contiv_daemon::{secret, subject::Subject};

use crate::access::{Nodes, Role, RoleError};

/// Lines of the role file. The first line that fits decides.
#[derive(Debug)]
pub struct SubjectRoles(Vec<Line>);

#[derive(Debug)]
struct Line {
    attribute: Attribute,
    role: LineRole,
}

#[derive(Debug, PartialEq, Eq)]
enum Attribute {
    CommonName(String),
    Organization(String),
}

#[derive(Debug)]
enum LineRole {
    Fixed(Role),
    /// Agent of the node that the common name names.
    OwnNode,
}

/// The role file is invalid.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("role file")]
    Read(#[source] secret::Error),
    #[error("{}:{line}: expected ROLE CN=NAME or ROLE O=NAME", path.display())]
    Line { path: PathBuf, line: usize },
    #[error("{}:{line}", path.display())]
    Role {
        path: PathBuf,
        line: usize,
        #[source]
        source: RoleError,
    },
    #[error("{}:{line}: the subject has a role already", path.display())]
    Duplicate { path: PathBuf, line: usize },
    #[error("{}: no role; expected lines of ROLE CN=NAME or ROLE O=NAME", path.display())]
    None { path: PathBuf },
}

impl SubjectRoles {
    /// Parses lines of `ROLE CN=NAME` or `ROLE O=NAME`. Empty lines and lines that start with `#`
    /// are ignored. Only its owner may change the file, and it contains no secrets; it is read like
    /// the token file, so that both have the same mode.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, if others can access it, or if a line is malformed.
    pub fn read(path: &Path) -> Result<SubjectRoles, Error> {
        SubjectRoles::parse(&secret::read(path).map_err(Error::Read)?, path)
    }

    fn parse(text: &str, path: &Path) -> Result<SubjectRoles, Error> {
        let mut lines: Vec<Line> = Vec::new();
        for (line, content) in text.lines().enumerate().map(|(n, line)| (n + 1, line.trim())) {
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let malformed = || Error::Line { path: path.to_owned(), line };
            let (role, attribute) = content.split_once(char::is_whitespace).ok_or_else(malformed)?;
            let attribute = match attribute.trim_start().split_once('=') {
                Some(("CN", name)) if !name.is_empty() => Attribute::CommonName(name.to_owned()),
                Some(("O", name)) if !name.is_empty() => Attribute::Organization(name.to_owned()),
                _ => return Err(malformed()),
            };
            let role = match role {
                "agent" => LineRole::OwnNode,
                "netmaster" => LineRole::Fixed(Role::Netmaster),
                role => LineRole::Fixed(Role::parse(role).map_err(|source| Error::Role {
                    path: path.to_owned(),
                    line,
                    source,
                })?),
            };
            if lines.iter().any(|known| known.attribute == attribute) {
                return Err(Error::Duplicate { path: path.to_owned(), line });
            }
            lines.push(Line { attribute, role });
        }
        if lines.is_empty() { Err(Error::None { path: path.to_owned() }) } else { Ok(SubjectRoles(lines)) }
    }

    /// Role of the first line that fits; none if no line does.
    pub(super) fn role(&self, subject: &Subject) -> Option<Role> {
        let fits = |line: &&Line| match &line.attribute {
            Attribute::CommonName(name) => subject.common_name.as_ref() == Some(name),
            Attribute::Organization(name) => subject.organizations.contains(name),
        };
        match &self.0.iter().find(fits)?.role {
            LineRole::Fixed(role) => Some(role.clone()),
            LineRole::OwnNode => {
                let host = subject.common_name.clone().filter(|name| !name.is_empty());
                host.map(|host| Role::Agent(Nodes::One(host)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<SubjectRoles, Error> {
        SubjectRoles::parse(text, Path::new("roles"))
    }

    fn subject(common_name: &str, organizations: &[&str]) -> Subject {
        Subject {
            common_name: Some(common_name.to_owned()).filter(|name| !name.is_empty()),
            organizations: organizations.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    #[test]
    fn the_first_fitting_line_decides() {
        let roles = parse(
            "# role subject\nread-only CN=Night Watch\nadmin  O=ops\n\nagent O=nodes\nagent:h9 CN=h8\n\
             netmaster CN=m1\ntenant-operator:blue,green O=ci\n",
        )
        .unwrap();
        let tenants = Role::TenantOperator(["blue".to_owned(), "green".to_owned()].into());
        for (subject, role) in [
            (subject("Night Watch", &["ops"]), Some(Role::ReadOnly)),
            (subject("anna", &["dev", "ops"]), Some(Role::Admin)),
            (subject("h1", &["nodes"]), Some(Role::Agent(Nodes::One("h1".into())))),
            (subject("", &["nodes"]), None),
            (subject("h8", &[]), Some(Role::Agent(Nodes::One("h9".into())))),
            (subject("m1", &["ci"]), Some(Role::Netmaster)),
            (subject("job", &["ci"]), Some(tenants)),
            (subject("ops", &["night watch"]), None),
            (subject("", &[]), None),
        ] {
            assert_eq!(roles.role(&subject), role, "{subject:?}");
        }
        let nameless = Subject { common_name: Some(String::new()), organizations: vec!["nodes".to_owned()] };
        assert_eq!(roles.role(&nameless), None);
    }

    #[test]
    fn invalid_lines_are_reported() {
        for (text, why) in [
            ("admin", "roles:1: expected ROLE CN=NAME"),
            ("\nadmin OU=x", "roles:2: expected ROLE CN=NAME"),
            ("admin CN=", "roles:1: expected"),
            ("boss CN=x", "roles:1"),
            ("tenant-operator CN=x", "roles:1"),
            ("admin CN=x\nread-only CN=x", "roles:2: the subject has a role already"),
            ("# none", "roles: no role"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
