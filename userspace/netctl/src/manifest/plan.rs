//! Plans `apply` and `delete` from the objects of the files and the stored objects; no I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use contiv_model::key::ObjectType;
use serde_json::{Map, Value};

use crate::{
    manifest::document::{Manifest, Origin},
    objects::{self, KINDS},
    output::{printable, text},
    schema::{Field, Kind, Mutability, format::is_empty},
};

/// Objects stored by netmaster, by type and key.
pub type Stored = BTreeMap<ObjectType, BTreeMap<String, Value>>;

/// Planned change of one object.
#[derive(Debug)]
pub struct Step<'a> {
    /// Desired object.
    pub manifest: &'a Manifest,
    /// Stored spec, if the object exists.
    pub before: Option<Map<String, Value>>,
    /// Desired spec.
    pub after: Map<String, Value>,
    /// Operation.
    pub action: Action,
}

/// Operation on one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The object does not exist.
    Create,
    /// Some fields differ.
    Update,
    /// The stored object equals the desired one.
    Nothing,
    /// These immutable fields differ.
    Recreate(Vec<String>),
}

/// What becomes of fields of a stored object that the desired one leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Omitted {
    /// They keep their values; empty values (`[]`, `""`, `0`, `null`) clear fields.
    Keep,
    /// They are cleared.
    Clear,
}

/// Types whose stored objects [`steps`] and, if objects of tenants are to be deleted, [`surplus`] need.
pub fn needed(manifests: &[Manifest], pruned: &[String]) -> BTreeSet<ObjectType> {
    let own = manifests.iter().map(|manifest| manifest.kind.object_type);
    let named =
        manifests.iter().flat_map(|manifest| references(manifest).into_iter().map(|(_, kind, _)| kind));
    let of_tenants = KINDS.into_iter().filter(|kind| kind.is_of_tenant() && !pruned.is_empty());
    own.chain(named).chain(of_tenants.map(|kind| kind.object_type)).collect()
}

/// Plans the steps, ordered so that referenced objects come first.
///
/// # Errors
///
/// Returns one line per reference to an object that neither exists nor is in the files, per new object that would not have the
/// effect that its fields show, and per field that would be cleared without an effect.
pub fn steps<'a>(
    manifests: &'a [Manifest],
    stored: &Stored,
    omitted: Omitted,
) -> Result<Vec<Step<'a>>, Vec<String>> {
    let mut errors = missing(manifests, stored);
    errors.extend(ineffective(manifests, stored));
    if !errors.is_empty() {
        return Err(errors);
    }
    let new = |manifest: &Manifest| find_stored(stored, manifest.kind.object_type, &manifest.key).is_none();
    let ordered = ordered(manifests, |manifest| new(manifest));
    let planned = |manifest: &'a Manifest| {
        step(manifest, find_stored(stored, manifest.kind.object_type, &manifest.key), omitted)
    };
    let steps: Vec<Step<'a>> = ordered.into_iter().map(planned).collect();
    let errors = not_cleared(&steps);
    if errors.is_empty() { Ok(steps) } else { Err(errors) }
}

/// Deletion of one object.
#[derive(Debug)]
pub struct Removal<'a> {
    /// The object.
    pub manifest: &'a Manifest,
    /// The rules of this policy, which netmaster deletes with it.
    pub rules: Vec<&'a Manifest>,
}

/// Order of `delete`: objects come before the objects that they reference. Rules of a stored policy that is deleted, too, are
/// left to the deletion of the policy: netmaster refuses it while a group has the policy, and the rules are in force then.
pub fn removals(manifests: &[Manifest], is_stored: impl Fn(&Manifest) -> bool) -> Vec<Removal<'_>> {
    let mut ordered = ordered(manifests, |_| true);
    ordered.reverse();
    let policies = manifests.iter().filter(|it| it.kind.object_type == ObjectType::Policy && is_stored(it));
    let mut rules: BTreeMap<&str, Vec<&Manifest>> =
        policies.map(|policy| (policy.key.as_str(), vec![])).collect();
    let mut removals = vec![];
    for manifest in ordered {
        // A rule comes before its policy.
        if let Some(of_policy) = policy_of(manifest).and_then(|policy| rules.get_mut(policy.as_str())) {
            of_policy.push(manifest);
            continue;
        }
        let own = match manifest.kind.object_type {
            ObjectType::Policy => rules.remove(manifest.key.as_str()),
            _ => None,
        };
        removals.push(Removal { manifest, rules: own.unwrap_or_default() });
    }
    removals
}

/// Key of a rule's policy.
fn policy_of(manifest: &Manifest) -> Option<String> {
    if manifest.kind.object_type != ObjectType::Rule {
        return None;
    }
    references(manifest).into_iter().find_map(|(_, kind, key)| (kind == ObjectType::Policy).then_some(key))
}

/// The stored objects of tenants that the files neither have nor need, in no order. The tenants themselves stay, and so do the
/// networks of nodes, which netmaster deletes even if they are in use.
pub fn surplus(steps: &[Step<'_>], stored: &Stored, tenants: &[String]) -> Vec<Manifest> {
    let kept = kept(steps, stored);
    let mut surplus = vec![];
    for kind in KINDS.into_iter().filter(|kind| kind.is_of_tenant()) {
        for (key, object) in stored.get(&kind.object_type).into_iter().flatten() {
            let is_pruned = tenants.contains(&text(object, "tenantName"));
            let is_of_nodes = kind.object_type == ObjectType::Network && text(object, "nwType") == "infra";
            let identity = (kind.object_type, key.clone());
            if is_pruned && !is_of_nodes && !kept.contains(&identity) {
                let (key, object) = (identity.1, object.clone());
                surplus.push(Manifest { kind, key, object, origin: Origin::Netmaster });
            }
        }
    }
    surplus
}

/// The objects of the files, and what they reference: themselves, or by stored objects that are kept for them.
fn kept(steps: &[Step<'_>], stored: &Stored) -> BTreeSet<(ObjectType, String)> {
    let mut kept: BTreeSet<_> =
        steps.iter().map(|step| (step.manifest.kind.object_type, step.manifest.key.clone())).collect();
    // Policies whose rules the files decide.
    let decided: BTreeSet<String> = steps
        .iter()
        .filter_map(|step| match step.manifest.kind.object_type {
            ObjectType::Policy => Some(step.manifest.key.clone()),
            _ => policy_of(step.manifest),
        })
        .collect();
    let referenced = steps.iter().flat_map(|step| references_of(step.manifest.kind, &step.after));
    let mut pending: Vec<(ObjectType, String)> = referenced.map(|(_, kind, key)| (kind, key)).collect();
    while let Some((of, key)) = pending.pop() {
        if !kept.insert((of, key.clone())) {
            continue;
        }
        let (Some(kind), Some(Value::Object(fields))) = (objects::by_type(of), find_stored(stored, of, &key))
        else {
            continue;
        };
        pending.extend(references_of(kind, fields).into_iter().map(|(_, kind, key)| (kind, key)));
        // Without its rules, a policy that a group has lets everything pass.
        if of == ObjectType::Policy && !decided.contains(&key) {
            let start = format!("{key}:");
            let rules = stored.get(&ObjectType::Rule).into_iter().flatten().map(|(rule, _)| rule);
            let of_policy = rules.filter(|rule| rule.starts_with(&start));
            pending.extend(of_policy.map(|rule| (ObjectType::Rule, rule.clone())));
        }
    }
    kept
}

/// Finds an object by type and key.
pub fn find_stored<'a>(stored: &'a Stored, kind: ObjectType, key: &str) -> Option<&'a Value> {
    stored.get(&kind)?.get(key)
}

/// Field, type and key of each object that a manifest references.
pub fn references(manifest: &Manifest) -> Vec<(&'static str, ObjectType, String)> {
    manifest.object.as_object().map(|object| references_of(manifest.kind, object)).unwrap_or_default()
}

/// As [`references`], from the fields of an object.
pub fn references_of(kind: &Kind, object: &Map<String, Value>) -> Vec<(&'static str, ObjectType, String)> {
    let mut found = vec![];
    for field in kind.fields {
        let Some(kind) = field.references else { continue };
        let names: Vec<&str> = match object.get(field.name) {
            Some(Value::String(name)) if !name.is_empty() => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => continue,
        };
        let tenant = object.get("tenantName").and_then(Value::as_str).unwrap_or_default();
        let of_tenant = objects::by_type(kind).is_some_and(Kind::is_of_tenant);
        let key = |name: &str| if of_tenant { format!("{tenant}:{name}") } else { name.to_owned() };
        found.extend(names.into_iter().map(|name| (field.name, kind, key(name))));
    }
    found
}

fn missing(manifests: &[Manifest], stored: &Stored) -> Vec<String> {
    let here: BTreeSet<_> =
        manifests.iter().map(|manifest| (manifest.kind.object_type, manifest.key.as_str())).collect();
    let mut missing = vec![];
    for manifest in manifests {
        for (field, kind, key) in references(manifest) {
            if !here.contains(&(kind, key.as_str())) && find_stored(stored, kind, &key).is_none() {
                missing.push(format!(
                    "{}: {manifest}: {field}: no {} {key} in the files or at netmaster",
                    manifest.origin,
                    kind.as_str()
                ));
            }
        }
    }
    missing
}

/// Errors of new objects that would not have the effect that their fields show. Existing ones can be applied unchanged: files
/// may have what netmaster has stored.
fn ineffective(manifests: &[Manifest], stored: &Stored) -> Vec<String> {
    let new = manifests.iter().filter(|it| find_stored(stored, it.kind.object_type, &it.key).is_none());
    new.filter_map(|manifest| {
        let why = (manifest.kind.check?)(&manifest.object)?;
        Some(format!("{}: {manifest}: {why}", manifest.origin))
    })
    .collect()
}

/// Errors of fields that would be cleared, although agents keep their values then.
fn not_cleared(steps: &[Step<'_>]) -> Vec<String> {
    let mut errors = vec![];
    for Step { manifest, before, after, .. } in steps {
        let has = |spec: &Map<String, Value>, field: &Field| spec.contains_key(field.name);
        let kept = manifest.kind.fields.iter().filter(|field| field.is_kept);
        let cleared =
            kept.filter(|field| before.as_ref().is_some_and(|it| has(it, field)) && !has(after, field));
        errors.extend(cleared.map(|Field { name, format, .. }| {
            format!(
                "{}: {manifest}: {name}: this setting cannot be cleared: expected {format}",
                manifest.origin
            )
        }));
    }
    errors
}

/// Orders by kind, then by position in the files. Referenced objects for which `first` is true come first.
fn ordered(manifests: &[Manifest], first: impl Fn(&Manifest) -> bool) -> Vec<&Manifest> {
    let mut positions: Vec<usize> = (0..manifests.len()).collect();
    positions.sort_by_key(|&at| objects::rank(manifests[at].kind));
    let index: BTreeMap<_, _> = manifests
        .iter()
        .enumerate()
        .map(|(at, manifest)| ((manifest.kind.object_type, manifest.key.clone()), at))
        .collect();
    let mut seen = BTreeSet::new();
    let mut order = vec![];
    for at in positions {
        visit(at, manifests, &index, &first, &mut seen, &mut order);
    }
    order
}

fn visit<'a>(
    at: usize,
    manifests: &'a [Manifest],
    index: &BTreeMap<(ObjectType, String), usize>,
    first: &impl Fn(&Manifest) -> bool,
    seen: &mut BTreeSet<usize>,
    order: &mut Vec<&'a Manifest>,
) {
    if !seen.insert(at) {
        return;
    }
    for (_, kind, key) in references(&manifests[at]) {
        if let Some(&other) = index.get(&(kind, key))
            && first(&manifests[other])
        {
            visit(other, manifests, index, first, seen, order);
        }
    }
    order.push(&manifests[at]);
}

fn step<'a>(manifest: &'a Manifest, stored: Option<&Value>, omitted: Omitted) -> Step<'a> {
    let kind = manifest.kind;
    let before = stored.map(|stored| kind.spec(stored));
    let Some(now) = &before else {
        let after = kind.spec(&manifest.object);
        return Step { manifest, before, after, action: Action::Create };
    };
    let after = match omitted {
        Omitted::Keep => kind.spec(&merged(now, manifest)),
        Omitted::Clear => kind.spec(&manifest.object),
    };
    let differs = |name: &&str| now.get(*name) != after.get(*name);
    let different: Vec<&str> = kind.fields.iter().map(|field| field.name).filter(differs).collect();
    let fixed = |name: &&&str| match kind.mutability {
        Mutability::Immutable => true,
        Mutability::Except(fixed) => fixed.contains(*name),
        Mutability::Settings => false,
    };
    let fixed: Vec<String> = different.iter().filter(fixed).map(|name| (*name).to_owned()).collect();
    let action = match (different.is_empty(), fixed.is_empty()) {
        (true, _) => Action::Nothing,
        (false, true) => Action::Update,
        (false, false) => Action::Recreate(fixed),
    };
    Step { manifest, before, after, action }
}

/// The stored fields, replaced by those that the manifest names.
fn merged(now: &Map<String, Value>, manifest: &Manifest) -> Value {
    let mut both = now.clone();
    let named = |field: &str| manifest.object.get(field);
    for field in manifest.kind.fields {
        // The manifest names the value that netmaster derived from the other field.
        if let Some(other) = field.derived_from
            && named(other).is_none()
            && named(field.name).is_some_and(|value| !is_empty(value))
        {
            both.shift_remove(other);
        }
    }
    both.extend(manifest.object.as_object().cloned().unwrap_or_default());
    Value::Object(both)
}

impl Step<'_> {
    /// Unified diff of the stored spec and the one that netmaster has afterwards, one line per field.
    pub fn diff(&self, after: &Map<String, Value>) -> String {
        let (empty, origin) = (Map::new(), self.manifest.origin.to_string());
        diff(self.manifest.kind, self.before.as_ref().unwrap_or(&empty), after, &origin)
    }
}

/// Unified diff of an object that is deleted.
pub fn removal(manifest: &Manifest) -> String {
    diff(manifest.kind, &manifest.kind.spec(&manifest.object), &Map::new(), "/dev/null")
}

fn diff(kind: &Kind, before: &Map<String, Value>, after: &Map<String, Value>, origin: &str) -> String {
    let line = |name: &str, value: &Value| match value {
        Value::String(text) => format!("{name}: {}", printable(text)),
        value => format!("{name}: {}", printable(&value.to_string())),
    };
    let (mut lines, mut old, mut new) = (String::new(), 0, 0);
    for field in kind.fields {
        let name = field.name;
        let (was, is) = (before.get(name), after.get(name));
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
    let mut diff = format!("--- netmaster\n+++ {origin}\n");
    // Writing to a String cannot fail.
    let _ = writeln!(diff, "@@ -{},{old} +{},{new} @@", start(old), start(new));
    diff + &lines
}
