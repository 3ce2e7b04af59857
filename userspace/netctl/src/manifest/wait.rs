//! `netctl wait`.

use std::{
    io::Write,
    str::FromStr,
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::Value;

use crate::{
    client::Client,
    error::{Error, one_line},
    flags::TenantFlag,
    manifest::get::What,
    output::{printable, text},
    query::{self, Query},
};

/// Arguments of `netctl wait`.
#[derive(Args, Debug)]
pub struct Wait {
    /// Kind of the object, as in `get`.
    what: String,
    /// Name of the object; for a rule, POLICY:RULE.
    name: String,
    #[command(flatten)]
    tenant: TenantFlag,
    /// Condition: `create`, `delete`, `ready` (a node), `jsonpath=QUERY=VALUE`, or `jsonpath=QUERY` for any value; a query
    /// with an equals sign must be in braces.
    #[arg(long = "for", value_name = "CONDITION")]
    condition: Condition,
    /// Time limit, such as 30s or 5m.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

/// What an object must be like.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    /// It exists.
    Created,
    /// It does not exist.
    Deleted,
    /// It is a node that has applied the state.
    Ready,
    /// The query selects this value, or any that is not empty.
    Selects(Query, Option<String>),
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Condition, String> {
        match (text, text.strip_prefix("jsonpath=")) {
            ("create", _) => Ok(Condition::Created),
            ("delete", _) => Ok(Condition::Deleted),
            ("ready", _) => Ok(Condition::Ready),
            (_, Some(expression)) => {
                let (query, value) = query::comparison(expression)?;
                Ok(Condition::Selects(query, value))
            }
            _ => Err("expected create, delete, ready or jsonpath=QUERY=VALUE".into()),
        }
    }
}

impl Condition {
    fn is_met(&self, object: Option<&Value>) -> bool {
        match (self, object) {
            (Condition::Created, object) => object.is_some(),
            (Condition::Deleted, object) => object.is_none(),
            (_, None) => false,
            (Condition::Ready, Some(node)) => text(node, "state") == "ready",
            (Condition::Selects(query, expected), Some(object)) => {
                query.texts(object).iter().any(|text| match expected {
                    Some(expected) => text == expected,
                    None => !text.is_empty(),
                })
            }
        }
    }
}

/// Time between two requests.
const INTERVAL: Duration = Duration::from_millis(500);

/// Runs the command. A netmaster that cannot be reached is asked again until the time limit.
pub fn run(client: &Client, wait: &Wait, out: &mut dyn Write) -> Result<(), Error> {
    let what = What::named(&wait.what, "wait")?;
    if wait.condition == Condition::Ready && !matches!(what, What::Nodes) {
        return Err(Error::Usage("--for=ready is for nodes only; use jsonpath=QUERY=VALUE".into()));
    }
    let key = what.key(&wait.tenant.tenant, &wait.name);
    let start = Instant::now();
    loop {
        let last = start.elapsed() >= wait.timeout;
        let reason = match what.find(client, &key) {
            Ok(object) if wait.condition.is_met(object.as_ref()) => {
                return Ok(writeln!(out, "{} {} condition met", what.word(), printable(&key))?);
            }
            Ok(Some(_)) => "it exists".to_owned(),
            Ok(None) => "it does not exist".to_owned(),
            Err(error @ (Error::Request { .. } | Error::Unreachable(_))) => one_line(&error),
            Err(error) => return Err(error),
        };
        if last {
            return Err(Error::TimedOut(format!(
                "wait for {} {key}: condition not met within {}: {reason}",
                what.word(),
                humantime::format_duration(wait.timeout),
            )));
        }
        thread::sleep(INTERVAL);
    }
}
