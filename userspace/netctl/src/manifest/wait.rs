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
    client::{
        Client,
        listing::Selection,
        watch::{Change, Event, Start},
    },
    error::{Error, one_line},
    flags::TenantFlag,
    manifest::get::What,
    output::{printable, text},
    query::{self, Query},
    schema::Kind,
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

/// Time between two requests where netmaster does not send changes.
const INTERVAL: Duration = Duration::from_millis(500);

/// Runs the command. A netmaster that cannot be reached is asked again until the time limit.
pub fn run(client: &Client, wait: &Wait, out: &mut dyn Write) -> Result<(), Error> {
    let what = What::named(&wait.what, "wait")?;
    if wait.condition == Condition::Ready && !matches!(what, What::Nodes) {
        return Err(Error::Usage("--for=ready is for nodes only; use jsonpath=QUERY=VALUE".into()));
    }
    let key = what.key(&wait.tenant.tenant, &wait.name);
    // A limit beyond the end of time is none.
    let end = Instant::now().checked_add(wait.timeout);
    if let Some(end) = end {
        client.end_at(end);
    }
    let is_over = || end.is_some_and(|end| Instant::now() >= end);
    loop {
        let mut seen = see(wait, what.find(client, &key))?;
        if let What::Kind(kind) = what
            && matches!(seen, Seen::Unmet(_))
            && !is_over()
            && let Some(later) = follow(client, kind, &key, wait, &is_over)?
        {
            seen = later;
        }
        match seen {
            Seen::Met => return Ok(writeln!(out, "{} {} condition met", what.word(), printable(&key))?),
            Seen::Unmet(reason) if is_over() => {
                return Err(Error::TimedOut(format!(
                    "wait for {} {key}: condition not met within {}: {reason}",
                    what.word(),
                    humantime::format_duration(wait.timeout),
                )));
            }
            Seen::Unmet(_) => {
                let left = end.map(|end| end.saturating_duration_since(Instant::now()));
                thread::sleep(left.map_or(INTERVAL, |left| left.min(INTERVAL)));
            }
        }
    }
}

/// Result of a look at the object.
enum Seen {
    Met,
    /// The reason.
    Unmet(String),
}

/// Evaluates the condition. Temporary failures are a reason, others an error.
fn see(wait: &Wait, found: Result<Option<Value>, Error>) -> Result<Seen, Error> {
    Ok(match found {
        Ok(object) if wait.condition.is_met(object.as_ref()) => Seen::Met,
        Ok(Some(_)) => Seen::Unmet("it exists".to_owned()),
        Ok(None) => Seen::Unmet("it does not exist".to_owned()),
        Err(error) if error.is_temporary() => Seen::Unmet(one_line(&error)),
        Err(error) => return Err(error),
    })
}

/// Follows the changes of the object until the condition is met, the stream ends, or the time is over. None if nothing is
/// learned, for example because netmaster does not send changes.
fn follow(
    client: &Client,
    kind: &Kind,
    key: &str,
    wait: &Wait,
    is_over: &dyn Fn() -> bool,
) -> Result<Option<Seen>, Error> {
    let selection = Selection::of(kind.object_type).with("key", key);
    let mut watch = match client.watch(&selection, &Start::Snapshot) {
        Ok(Some(watch)) => watch,
        Ok(None) => return Ok(None),
        Err(error) => return see(wait, Err(error)).map(Some),
    };
    let (mut object, mut seen, mut is_synced) = (None, None, false);
    // At the end of the time, reading fails.
    while let Ok(Some(Event { change, .. })) = watch.next_event() {
        match change {
            Change::Put(new) => object = Some(new),
            Change::Delete(deleted) if deleted == key => object = None,
            Change::Delete(_) => {}
            Change::Synced => is_synced = true,
            Change::Gone => break,
        }
        // An object that does not exist is not in the snapshot: only its end tells.
        if is_synced {
            seen = Some(see(wait, Ok(object.clone()))?);
            if matches!(seen, Some(Seen::Met)) || is_over() {
                break;
            }
        }
    }
    Ok(seen)
}
