//! What netmaster would make of planned changes.

use std::collections::BTreeSet;

use contiv_model::key::ObjectType;
use serde_json::{Map, Value};

use crate::{
    client::Client,
    error::Error,
    manifest::{
        document::Manifest,
        plan::{self, Action, Step},
    },
};

/// netmaster's answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It would make this spec of the object.
    Accepted(Map<String, Value>),
    /// It would refuse the change.
    Refused(String),
    /// The role of the client does not allow the change.
    Forbidden(String),
    /// It was not asked, because of the change that has to be made before.
    Unasked(String),
}

/// Asks netmaster to try changes, each by itself. Changes that others must precede are not asked about: the answer would be
/// about another state.
pub struct Trials<'a> {
    client: &'a Client,
    /// Objects that do not exist yet.
    created: BTreeSet<(ObjectType, String)>,
    /// What the objects reference that are updated or deleted, with the name of each.
    references: Vec<(ObjectType, String, String)>,
}

impl<'a> Trials<'a> {
    /// Trials of these changes, and of the deletion of objects, each with its stored fields.
    pub fn new<'o>(
        client: &'a Client,
        steps: &[Step<'_>],
        removed: impl Iterator<Item = (&'o Manifest, &'o Value)>,
    ) -> Trials<'a> {
        let is_created = |step: &&Step<'_>| step.action == Action::Create;
        let created = steps.iter().filter(is_created).map(|step| identity(step.manifest)).collect();
        let mut references = vec![];
        for step in steps.iter().filter(|step| step.action == Action::Update) {
            if let Some(before) = &step.before {
                let named = plan::references_of(step.manifest.kind, before).into_iter();
                references.extend(named.map(|(_, kind, key)| (kind, key, step.manifest.to_string())));
            }
        }
        for (manifest, stored) in removed {
            let Some(fields) = stored.as_object() else { continue };
            // A policy is deleted with its rules: they do not have to be deleted before.
            let is_own_policy = |kind: ObjectType| {
                manifest.kind.object_type == ObjectType::Rule && kind == ObjectType::Policy
            };
            let named = plan::references_of(manifest.kind, fields).into_iter();
            let named = named.filter(|(_, kind, _)| !is_own_policy(*kind));
            references.extend(named.map(|(_, kind, key)| (kind, key, manifest.to_string())));
        }
        Trials { client, created, references }
    }

    /// Tries to create or update an object.
    pub fn put(&self, step: &Step<'_>) -> Result<Verdict, Error> {
        let (kind, key) = (step.manifest.kind, &step.manifest.key);
        let named = plan::references(step.manifest).into_iter();
        let missing = named.map(|(_, kind, key)| (kind, key)).find(|object| self.created.contains(object));
        if let Some((kind, key)) = missing {
            return Ok(Verdict::Unasked(format!("{} {key} does not exist yet", kind.as_str())));
        }
        let answer = self.client.try_put(kind.object_type, key, &Value::Object(step.after.clone()));
        verdict(answer.map(|object| match kind.key_of(&object) == *key {
            true => kind.spec(&object),
            false => step.after.clone(),
        }))
    }

    /// Tries to delete an object.
    pub fn delete(&self, manifest: &Manifest) -> Result<Verdict, Error> {
        let (kind, key) = identity(manifest);
        match self.references.iter().find(|(of, named, _)| *of == kind && *named == key) {
            Some((_, _, by)) => Ok(Verdict::Unasked(format!("{by} names it now"))),
            None => verdict(self.client.try_delete(kind, &key).map(|()| Map::new())),
        }
    }
}

fn identity(manifest: &Manifest) -> (ObjectType, String) {
    (manifest.kind.object_type, manifest.key.clone())
}

fn verdict(answer: Result<Map<String, Value>, Error>) -> Result<Verdict, Error> {
    match answer {
        Ok(spec) => Ok(Verdict::Accepted(spec)),
        Err(Error::Refused(why)) => Ok(Verdict::Refused(why)),
        Err(Error::Forbidden(why)) => Ok(Verdict::Forbidden(why)),
        Err(error) => Err(error),
    }
}
