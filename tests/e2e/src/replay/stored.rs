//! Compares the store after a step of a recording with the dump of the original's store.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, bail};
use etcd_client::{Client, GetOptions};
use serde_json::Value;

use super::{
    compare::difference,
    differences::{Differences, Stored},
    instance,
    recording::Recording,
};

/// Values by key, without keys under leases.
type Records = BTreeMap<String, Value>;

/// A dump, and the call after which the original was dumped.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    pub dump: &'static str,
    /// File of the recording, and line of the call.
    pub file: &'static str,
    pub line: usize,
}

/// Prefixes of keys under leases, which depend on the host.
const LEASED: [&str; 2] = ["/contiv.io/lock/", "/contiv.io/service/"];
const GROUPS: &str = "/contiv.io/state/endpointGroups/";
/// Fields with a group id.
const GROUP_ID_FIELDS: [&str; 4] =
    ["endpointGroupId", "EndpointGroupID", "SrcEndpointGroup", "DstEndpointGroup"];

/// Reads a dump: each key on a line, its value indented on the next.
fn read(path: &Path) -> Result<Records> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let mut records = Records::new();
    let mut lines = text.lines();
    while let Some(key) = lines.next() {
        let value = lines.next().unwrap_or_default().trim();
        if LEASED.iter().any(|leased| key.starts_with(leased)) {
            continue;
        }
        let value = serde_json::from_str(value).with_context(|| format!("{}: {key}", path.display()))?;
        records.insert(key.to_owned(), value);
    }
    if records.is_empty() {
        bail!("read {}: no keys", path.display());
    }
    Ok(records)
}

async fn fetch(endpoint: &str) -> Result<Records> {
    let mut client = Client::connect([endpoint], None).await.context("connect to the store")?;
    let response = client.get("/contiv.io/", Some(GetOptions::new().with_prefix())).await?;
    let mut records = Records::new();
    for kv in response.kvs() {
        let key = kv.key_str()?;
        if !LEASED.iter().any(|leased| key.starts_with(leased)) {
            let value = serde_json::from_slice(kv.value()).with_context(|| format!("the value of {key}"))?;
            records.insert(key.to_owned(), value);
        }
    }
    Ok(records)
}

/// Replaces group ids by group keys. Ids differ between the stores, because failed requests of the original use up ids.
fn name_groups(records: Records) -> Records {
    let number = |value: &Value| value["endpointGroupId"].as_i64();
    let groups: BTreeMap<i64, String> = records
        .iter()
        .filter_map(|(key, value)| Some((number(value)?, key.strip_prefix(GROUPS)?.to_owned())))
        .collect();
    records.into_iter().map(|(key, value)| (key, named(value, &groups))).collect()
}

fn named(value: Value, groups: &BTreeMap<i64, String>) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| {
                let group = value.as_i64().and_then(|number| groups.get(&number));
                let value = match group.filter(|_| GROUP_ID_FIELDS.contains(&name.as_str())) {
                    Some(group) => Value::from(group.as_str()),
                    None => named(value, groups),
                };
                (name, value)
            })
            .collect(),
        Value::Array(items) => items.into_iter().map(|item| named(item, groups)).collect(),
        value => value,
    }
}

/// One line per undeclared difference, and per declared difference that does not exist.
fn compare(dump: &str, want: &Records, have: &Records, declared: &[Stored]) -> Vec<String> {
    let keys: BTreeSet<&String> = want.keys().chain(have.keys()).collect();
    let mut lines = vec![];
    for key in keys {
        let (want, have) = (want.get(key), have.get(key));
        let line = match declared.iter().find(|stored| stored.is_about(dump, key)) {
            Some(stored) if want == have => Some(format!("no difference, but declared: {}", stored.reason)),
            Some(stored) if stored.agrees(want, have) => None,
            Some(_) => Some(format!("not as declared: {}", how(want, have))),
            None if want == have => None,
            None => Some(how(want, have)),
        };
        lines.extend(line.map(|line| format!("{dump}: {key}: {line}")));
    }
    lines
}

fn how(want: Option<&Value>, have: Option<&Value>) -> String {
    let mut lines = vec![];
    let or_null = |value: Option<&Value>| value.cloned().unwrap_or_default();
    difference("", &or_null(want), &or_null(have), &mut lines);
    lines.join("")
}

/// Replays the recordings of `folder` and compares the store with the `dumps` at `steps`.
pub fn differing(folder: &Path, dumps: &Path, steps: &[Step], differences: &Path) -> Result<Vec<String>> {
    let declared = Differences::read(differences)?.stored;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (_folder, master) = instance::start_master()?;
    let (client, endpoint) = (master.client(), master.store().endpoint());
    let mut seen = 0;
    let mut lines = vec![];
    for recording in Recording::read_folder(folder)? {
        for call in &recording.calls {
            // Only the store is compared here.
            let _response =
                client.send(&call.method, &call.path, call.content_type.as_deref(), call.body.as_deref())?;
            let now = |step: &&Step| recording.name.ends_with(step.file) && call.line == step.line;
            for step in steps.iter().filter(now) {
                let want = name_groups(read(&dumps.join(step.dump))?);
                let have = name_groups(runtime.block_on(fetch(&endpoint))?);
                lines.extend(compare(step.dump, &want, &have, &declared));
                seen += 1;
            }
        }
    }
    if seen != steps.len() {
        bail!("found {seen} of {} steps in {}", steps.len(), folder.display());
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn records(values: &[(&str, Value)]) -> Records {
        values.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
    }

    fn stored(dump: &str, key: &str, value: &str) -> Stored {
        let entry = json!({"dump": dump, "key": key, "value": value, "reason": "so"});
        serde_json::from_value(entry).unwrap()
    }

    #[test]
    fn group_ids_are_compared_by_group_key() {
        let store = |web: i64, db: i64| {
            name_groups(records(&[
                ("/contiv.io/state/endpointGroups/web:t", json!({"endpointGroupId": web, "pktTag": 5})),
                ("/contiv.io/state/endpointGroups/db:t", json!({"endpointGroupId": db})),
                (
                    "/rule",
                    json!({"rules": [{"SrcEndpointGroup": web, "DstEndpointGroup": 0, "Priority": db}]}),
                ),
            ]))
        };
        assert_ne!(store(1, 2), store(5, 6), "a priority is not a group id");
        let rule = |store: Records| store["/rule"]["rules"][0]["SrcEndpointGroup"].clone();
        assert_eq!(rule(store(1, 2)), "web:t");
        assert_eq!(store(1, 2), store(5, 2));
        assert_ne!(
            store(2, 1)["/rule"]["rules"][0]["Priority"],
            store(1, 2)["/rule"]["rules"][0]["Priority"]
        );
    }

    #[test]
    fn declared_difference_must_exist() {
        let declared =
            [stored("d", "/ours", r#"{"a":1}"#), stored("d", "/gone", ""), stored("other", "/x", "1")];
        let want = records(&[("/gone", json!(1)), ("/x", json!(1))]);
        let have = records(&[("/ours", json!({"a": 1})), ("/x", json!(1))]);
        assert_eq!(compare("d", &want, &have, &declared), [""; 0]);
        assert_eq!(compare("d", &want, &want, &declared).len(), 1);
        assert_eq!(compare("other", &want, &have, &declared).len(), 3);
    }
}
