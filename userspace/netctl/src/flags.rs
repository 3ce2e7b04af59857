//! Flags and arguments that several commands share.

mod format;

use std::path::PathBuf;

use clap::{
    Args,
    builder::{OsStringValueParser, TypedValueParser},
};

pub use format::{ListFormat, ObjectFormat};

/// Connection to netmaster.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connection")]
pub struct Server {
    /// URL of netmaster; several, comma-separated or repeated, are tried in turn [default: the current context's, or
    /// http://netmaster:9999].
    #[arg(long, env = "NETMASTER", global = true, value_name = "URL", value_delimiter = ',')]
    pub netmaster: Vec<String>,
    /// Context to connect with (see `netctl config`); other connection flags take precedence [default: the current context,
    /// unless --netmaster is set].
    #[arg(long, env = "NETCTL_CONTEXT", global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Accept any certificate of an https netmaster. Insecure: for tests only.
    #[arg(long, env = "INSECURE", global = true, value_parser = clap::builder::FalseyValueParser::new())]
    pub insecure: bool,
    /// Whether `--insecure=false` is given, which goes before the environment and the context.
    #[arg(skip)]
    pub verify: bool,
    /// CA bundle (PEM) used to verify netmaster's certificate [default: the system's CA certificates].
    #[arg(long, env = "NETCTL_CACERT", global = true, value_name = "FILE", value_parser = path())]
    pub cacert: Option<PathBuf>,
    /// Client certificate (PEM, with its intermediate certificates) for a netmaster that requires one; needs --key.
    #[arg(long, env = "NETCTL_CERT", global = true, value_name = "FILE", value_parser = path())]
    pub cert: Option<PathBuf>,
    /// Private key (PEM) of --cert.
    #[arg(long, env = "NETCTL_KEY", global = true, value_name = "FILE", value_parser = path())]
    pub key: Option<PathBuf>,
    /// File with a netmaster token in its first line; https only [default: the token stored by `login`].
    #[arg(long, env = "NETCTL_TOKEN_FILE", global = true, value_name = "FILE", value_parser = path())]
    pub token_file: Option<PathBuf>,
}

/// Parser of a path that may be empty: an empty environment variable is an absent one.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

impl Server {
    /// Removes what the environment sets if the command line names a context: URLs and credentials may be another cluster's.
    /// `is_typed` shows whether the argument of this id comes from the command line.
    pub fn prefer_typed_context(&mut self, is_typed: impl Fn(&str) -> bool) {
        if is_typed("context") && self.context.as_ref().is_some_and(|name| !name.is_empty()) {
            self.keep_typed(is_typed);
        }
    }

    /// Removes what does not come from the command line. `is_typed` tells whether the argument of this id does.
    pub fn keep_typed(&mut self, is_typed: impl Fn(&str) -> bool) {
        if !is_typed("netmaster") {
            self.netmaster.clear();
        }
        self.insecure &= is_typed("insecure");
        self.context = self.context.take().filter(|_| is_typed("context"));
        for (id, file) in [
            ("cacert", &mut self.cacert),
            ("cert", &mut self.cert),
            ("key", &mut self.key),
            ("token_file", &mut self.token_file),
        ] {
            *file = file.take().filter(|_| is_typed(id));
        }
    }
}

/// `--tenant`.
#[derive(Args, Clone, Debug)]
pub struct TenantFlag {
    /// Tenant of the object.
    #[arg(long, short, default_value = "default")]
    pub tenant: String,
}

/// Output flags of a list.
#[derive(Args, Clone, Debug)]
pub struct ListFlags {
    /// Print names only.
    #[arg(long, short)]
    pub quiet: bool,
    /// Print the objects as a JSON array.
    #[arg(long, short)]
    pub json: bool,
    /// Output format: `wide` has more columns, `jsonpath=QUERY` prints values, `custom-columns=TITLE:QUERY,...` columns
    /// [default: table].
    #[arg(long, short, value_name = "FORMAT", value_parser = format::list(), conflicts_with_all = ["quiet", "json"])]
    pub output: Option<ListFormat>,
    /// Print the list again whenever it changes, until interrupted.
    #[arg(long, short)]
    pub watch: bool,
}

impl ListFlags {
    /// Output format that the flags select.
    pub fn format(&self) -> ListFormat {
        match (&self.output, self.json, self.quiet) {
            (Some(format), ..) => format.clone(),
            (None, true, _) => ListFormat::Json,
            (None, _, true) => ListFormat::Name,
            (None, false, false) => ListFormat::Table,
        }
    }
}

/// Output flags of `inspect`.
#[derive(Args, Clone, Debug)]
pub struct InspectFlags {
    /// Output format; `jsonpath=QUERY` prints values.
    #[arg(long, short, value_name = "FORMAT", value_parser = format::object(), default_value = "json")]
    pub output: ObjectFormat,
}

/// Arguments of `inspect` for an object of a tenant.
#[derive(Args, Clone, Debug)]
pub struct InspectArgs {
    /// Object to show.
    #[command(flatten)]
    pub object: ObjectName,
    /// Output flags.
    #[command(flatten)]
    pub flags: InspectFlags,
}

/// Arguments of `ls` for objects of a tenant.
#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    /// Tenant of the objects.
    #[command(flatten)]
    pub tenant: TenantFlag,
    /// List the objects of all tenants.
    #[arg(long, short)]
    pub all: bool,
    /// Output flags.
    #[command(flatten)]
    pub flags: ListFlags,
}

/// Name of an object of a tenant.
#[derive(Args, Clone, Debug)]
pub struct ObjectName {
    /// Tenant of the object.
    #[command(flatten)]
    pub tenant: TenantFlag,
    /// Name of the object.
    pub name: String,
}

impl ObjectName {
    /// Tenant and name.
    pub fn parts(&self) -> (&str, &str) {
        (&self.tenant.tenant, &self.name)
    }

    /// `<tenant>:<name>`.
    pub fn key(&self) -> String {
        format!("{}:{}", self.tenant.tenant, self.name)
    }
}

/// Parses an integer as the original does: decimal, hexadecimal (`0x`), octal (`0`) or binary (`0b`), with a sign.
pub fn integer(text: &str) -> Result<i64, std::num::ParseIntError> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match (lower.get(..2), lower.strip_prefix('0')) {
        (Some("0x"), _) => (16, &lower[2..]),
        (Some("0b"), _) => (2, &lower[2..]),
        (Some("0o"), _) => (8, &lower[2..]),
        (_, Some(octal)) if !octal.is_empty() => (8, octal),
        _ => (10, lower.as_str()),
    };
    i64::from_str_radix(&format!("{sign}{digits}"), radix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_the_notations_of_go() {
        for (text, value) in
            [("80", 80), ("0x50", 80), ("0120", 80), ("-1", -1), ("0", 0), ("+7", 7), ("0b11", 3)]
        {
            assert_eq!(integer(text), Ok(value), "{text}");
        }
        assert!(integer("8a").is_err() && integer("").is_err() && integer("0x").is_err());
    }
}
