//! What has to happen to make netmaster hold what files say: pure, from the files and from what netmaster holds.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use contiv_model::key::ObjectType;
use serde_json::{Map, Value};

use crate::{
    kind::{Change, Kind},
    manifest::Wanted,
};

/// Objects of netmaster by type and key.
pub type Stored = BTreeMap<ObjectType, BTreeMap<String, Value>>;

/// An object and what has to happen to it.
#[derive(Debug)]
pub struct Step<'a> {
    /// The object.
    pub wanted: &'a Wanted,
    /// What it means at netmaster, if it is there.
    pub before: Option<Map<String, Value>>,
    /// What it shall mean.
    pub after: Map<String, Value>,
    /// What to do.
    pub action: Action,
}

/// What has to happen to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is not there.
    Create,
    /// Some fields differ.
    Update,
    /// It is there as it shall be.
    Nothing,
    /// These fields differ, and netmaster does not change them.
    Recreate(Vec<String>),
}

/// The types of which the present objects must be known to plan `wanted`.
pub fn needed(wanted: &[Wanted]) -> BTreeSet<ObjectType> {
    let own = wanted.iter().map(|it| it.kind.of);
    let named = wanted.iter().flat_map(|it| references(it).into_iter().map(|(_, kind, _)| kind));
    own.chain(named).collect()
}

/// The steps in an order in which each finds what it refers to, or what is referred to and nowhere there.
pub fn steps<'a>(wanted: &'a [Wanted], stored: &Stored) -> Result<Vec<Step<'a>>, Vec<String>> {
    let missing = missing(wanted, stored);
    if !missing.is_empty() {
        return Err(missing);
    }
    let new = |it: &Wanted| held(stored, it.kind.of, &it.key).is_none();
    let ordered = ordered(wanted, |it| new(it));
    Ok(ordered.into_iter().map(|it| step(it, held(stored, it.kind.of, &it.key))).collect())
}

/// The order of `delete`: what refers to others goes before them.
pub fn removals(wanted: &[Wanted]) -> Vec<&Wanted> {
    let mut ordered = ordered(wanted, |_| true);
    ordered.reverse();
    ordered
}

fn held<'a>(stored: &'a Stored, kind: ObjectType, key: &str) -> Option<&'a Value> {
    stored.get(&kind)?.get(key)
}

/// The field, type and key of each object that `it` names.
fn references(it: &Wanted) -> Vec<(&'static str, ObjectType, String)> {
    let mut found = vec![];
    for field in it.kind.fields {
        let Some(kind) = field.refers else { continue };
        let names: Vec<&str> = match it.object.get(field.name) {
            Some(Value::String(name)) if !name.is_empty() => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => continue,
        };
        let tenant = it.object.get("tenantName").and_then(Value::as_str).unwrap_or_default();
        let of_tenant = Kind::of(kind).is_some_and(Kind::is_of_tenant);
        let key = |name: &str| if of_tenant { format!("{tenant}:{name}") } else { name.to_owned() };
        found.extend(names.into_iter().map(|name| (field.name, kind, key(name))));
    }
    found
}

fn missing(wanted: &[Wanted], stored: &Stored) -> Vec<String> {
    let here: BTreeSet<_> = wanted.iter().map(|it| (it.kind.of, it.key.as_str())).collect();
    let mut missing = vec![];
    for it in wanted {
        for (field, kind, key) in references(it) {
            if !here.contains(&(kind, key.as_str())) && held(stored, kind, &key).is_none() {
                missing.push(format!(
                    "{}: {it}: {field}: there is no {} {key}, neither in the files nor at netmaster",
                    it.origin,
                    kind.as_str()
                ));
            }
        }
    }
    missing
}

/// By kind, then as the files have them; but what one refers to comes before it, where `first` says so.
fn ordered(wanted: &[Wanted], first: impl Fn(&Wanted) -> bool) -> Vec<&Wanted> {
    let mut places: Vec<usize> = (0..wanted.len()).collect();
    places.sort_by_key(|&at| wanted[at].kind.rank());
    let index: BTreeMap<_, _> =
        wanted.iter().enumerate().map(|(at, it)| ((it.kind.of, it.key.clone()), at)).collect();
    let mut seen = BTreeSet::new();
    let mut order = vec![];
    for at in places {
        visit(at, wanted, &index, &first, &mut seen, &mut order);
    }
    order
}

fn visit<'a>(
    at: usize,
    wanted: &'a [Wanted],
    index: &BTreeMap<(ObjectType, String), usize>,
    first: &impl Fn(&Wanted) -> bool,
    seen: &mut BTreeSet<usize>,
    order: &mut Vec<&'a Wanted>,
) {
    if !seen.insert(at) {
        return;
    }
    for (_, kind, key) in references(&wanted[at]) {
        if let Some(&other) = index.get(&(kind, key))
            && first(&wanted[other])
        {
            visit(other, wanted, index, first, seen, order);
        }
    }
    order.push(&wanted[at]);
}

fn step<'a>(wanted: &'a Wanted, stored: Option<&Value>) -> Step<'a> {
    let kind = wanted.kind;
    let before = stored.map(|stored| kind.meaning(stored));
    let mut after = kind.meaning(&wanted.object);
    let Some(now) = &before else { return Step { wanted, before, after, action: Action::Create } };
    if kind.change == Change::Settings {
        let mut both = now.clone();
        both.extend(after);
        after = kind.meaning(&Value::Object(both));
    }
    let differs = |name: &&str| now.get(*name) != after.get(*name);
    let different: Vec<&str> = kind.fields.iter().map(|field| field.name).filter(differs).collect();
    let fixed = |name: &&&str| match kind.change {
        Change::Never => true,
        Change::AllBut(fixed) => fixed.contains(*name),
        Change::Settings => false,
    };
    let fixed: Vec<String> = different.iter().filter(fixed).map(|name| (*name).to_owned()).collect();
    let action = match (different.is_empty(), fixed.is_empty()) {
        (true, _) => Action::Nothing,
        (false, true) => Action::Update,
        (false, false) => Action::Recreate(fixed),
    };
    Step { wanted, before, after, action }
}

impl Step<'_> {
    /// The change as a unified diff, one line for each field.
    pub fn diff(&self) -> String {
        let line = |name: &str, value: &Value| match value {
            Value::String(text) => format!("{name}: {text}"),
            value => format!("{name}: {value}"),
        };
        let empty = Map::new();
        let before = self.before.as_ref().unwrap_or(&empty);
        let (mut lines, mut old, mut new) = (String::new(), 0, 0);
        for field in self.wanted.kind.fields {
            let name = field.name;
            let (was, is) = (before.get(name), self.after.get(name));
            old += usize::from(was.is_some());
            new += usize::from(is.is_some());
            if let (Some(value), true) = (was, was == is) {
                lines += &format!(" {}\n", line(name, value));
                continue;
            }
            lines.extend(was.map(|value| format!("-{}\n", line(name, value))));
            lines.extend(is.map(|value| format!("+{}\n", line(name, value))));
        }
        let start = |count: usize| usize::from(count > 0);
        let mut diff = format!("--- netmaster\n+++ {}\n", self.wanted.origin);
        // Writing to a String does not fail.
        let _ = writeln!(diff, "@@ -{},{old} +{},{new} @@", start(old), start(new));
        diff + &lines
    }
}
