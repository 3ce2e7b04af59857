//! The objects of `/api/v1`: for each type one description of its fields, and what it means to make, change and
//! delete one.

mod aci;
mod bgp;
mod global;
mod group;
mod netprofile;
mod network;
mod policy;
mod rule;
mod service;
mod tenant;
mod volume;

use std::collections::BTreeMap;

use contiv_model::{api, key::ObjectType};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Map, Value};

pub use global::Defaults;
pub use service::restore as restore_services;

use crate::cache::{Draft, Record, World};
use crate::domain::fabric;
use crate::go_json;
use crate::problem::{Answer, Problem};
use crate::schema::Shape;

/// An object of the API.
pub trait Object: Record + Clone {
    const KIND: ObjectType;
    /// The fields, their types and rules; the links that clients may bring.
    const SHAPE: &'static Shape;
    /// The fields that make the key, joined by colons.
    const KEY: &'static [&'static str];
    /// Filled in where a request leaves them empty; the answer shows them.
    const DEFAULTS: &'static [(&'static str, Preset)] = &[];
    /// What `inspect` tells beside the object.
    type Oper: Serialize + JsonSchema;
    /// Requests are not planned together with others: they make or delete what the others look at.
    const ALONE: bool = true;

    fn key(&self) -> &str;

    /// What is answered to an update: the request, not what is stored.
    fn echo(&self) -> Self {
        self.clone()
    }

    /// Makes it; gives what is stored.
    fn create(self, draft: &mut Draft<'_>) -> Result<Self, Problem>;

    /// Changes `old` into this.
    fn update(self, old: &Self, draft: &mut Draft<'_>) -> Result<(), Problem>;

    fn delete(&self, draft: &mut Draft<'_>) -> Result<(), Problem>;

    /// Is what `oper` tells at hand?
    fn can_inspect(&self, _world: &World) -> Result<(), Problem> {
        Ok(())
    }

    /// None for types of which there is nothing to tell.
    fn oper(&self, world: &World, cluster: &Cluster) -> Option<Self::Oper>;
}

/// The value of a field that a request leaves empty.
#[derive(Clone, Copy, Debug)]
pub enum Preset {
    Text(&'static str),
    Int(i64),
}

impl Preset {
    fn fill(self, request: &mut Fields, name: &str) {
        let given = request.get(name);
        let (empty, value) = match self {
            Preset::Text(text) => {
                (given.and_then(Value::as_str).is_none_or(str::is_empty), Value::from(text))
            }
            Preset::Int(n) => (given.and_then(Value::as_i64).is_none_or(|n| n == 0), Value::from(n)),
        };
        if empty {
            request.insert(name.into(), value);
        }
    }
}

/// What the daemon knows that is not in the store.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// `--mode`.
    pub mode: String,
}

/// A type of object as the routes see it.
pub struct Type {
    pub kind: ObjectType,
    pub operations: Operations,
}

/// The fields of a request, as they are spelled in the store.
pub type Fields = Map<String, Value>;

/// The operations on objects of one type. Bodies of answers are JSON.
#[derive(Clone, Copy)]
pub struct Operations {
    /// See [`Object::SHAPE`], [`Object::KEY`], [`Object::DEFAULTS`].
    pub shape: &'static Shape,
    pub key: &'static [&'static str],
    pub defaults: &'static [(&'static str, Preset)],
    /// What `inspect` tells of it.
    pub oper: fn(&mut SchemaGenerator) -> Schema,
    /// See [`Object::ALONE`].
    pub alone: bool,
    /// Decodes and checks the body of a POST or PUT to `key`.
    pub check: fn(key: &str, body: &[u8]) -> Result<Fields, Problem>,
    pub put: fn(request: &Fields, draft: &mut Draft<'_>) -> Answer,
    pub delete: fn(key: &str, draft: &mut Draft<'_>) -> Answer,
    pub list: fn(&World) -> Answer,
    pub get: fn(&World, key: &str) -> Answer,
    pub inspect: fn(&World, key: &str, &Cluster) -> Answer,
}

/// Every type.
pub static TYPES: [Type; 14] = [
    Type::of::<api::AciGw>(),
    Type::of::<api::AppProfile>(),
    Type::of::<api::Bgp>(),
    Type::of::<api::EndpointGroup>(),
    Type::of::<api::ExtContractsGroup>(),
    Type::of::<api::Global>(),
    Type::of::<api::Netprofile>(),
    Type::of::<api::Network>(),
    Type::of::<api::Policy>(),
    Type::of::<api::Rule>(),
    Type::of::<api::ServiceLb>(),
    Type::of::<api::Tenant>(),
    Type::of::<api::Volume>(),
    Type::of::<api::VolumeProfile>(),
];

impl Type {
    const fn of<T: Object>() -> Type {
        Type {
            kind: T::KIND,
            operations: Operations {
                shape: T::SHAPE,
                key: T::KEY,
                defaults: T::DEFAULTS,
                oper: SchemaGenerator::subschema_for::<T::Oper>,
                alone: T::ALONE,
                check: check::<T>,
                put: put::<T>,
                delete: delete::<T>,
                list: list::<T>,
                get: get::<T>,
                inspect: inspect::<T>,
            },
        }
    }

    /// By the plural that paths use: the name and an `s`.
    pub fn by_plural(plural: &str) -> Option<&'static Type> {
        let name = plural.strip_suffix('s')?;
        TYPES.iter().find(|t| t.kind.as_str() == name)
    }
}

fn not_found(kind: ObjectType) -> Problem {
    Problem::not_found(format!("{} not found", kind.as_str()))
}

fn check<T: Object>(key: &str, body: &[u8]) -> Result<Fields, Problem> {
    let mut request = go_json::decode(body, T::SHAPE).map_err(Problem::invalid)?;
    request.insert("key".into(), key.into());
    for (name, default) in T::DEFAULTS {
        default.fill(&mut request, name);
    }
    let part = |name: &&str| request.get(*name).and_then(Value::as_str).unwrap_or_default().to_owned();
    if T::KEY.iter().map(part).collect::<Vec<_>>().join(":") != key {
        return Err(Problem::invalid("Invalid Key"));
    }
    T::SHAPE.check(&request).map_err(Problem::invalid)?;
    Ok(request)
}

fn put<T: Object>(request: &Fields, draft: &mut Draft<'_>) -> Answer {
    let answer = make_or_change::<T>(request, draft)?;
    note_fabric::<T>(draft);
    Ok(answer)
}

/// Application profiles are told to a fabric by whoever changes them; what else it must know is noted.
fn note_fabric<T: Object>(draft: &mut Draft<'_>) {
    if T::KIND != ObjectType::AppProfile {
        fabric::note(draft);
    }
}

fn make_or_change<T: Object>(request: &Fields, draft: &mut Draft<'_>) -> Answer {
    let new: T = serde_json::from_value(Value::Object(request.clone()))
        .map_err(|e| Problem::invalid(format!("{}: {e}", T::KIND.as_str())))?;
    match draft.get::<T>(new.key()) {
        None => go_json::encode(&new.create(draft)?),
        Some(old) => {
            let echo = go_json::encode(&new.echo())?;
            new.update(&old, draft)?;
            Ok(echo)
        }
    }
}

fn delete<T: Object>(key: &str, draft: &mut Draft<'_>) -> Answer {
    let object = draft.get::<T>(key).ok_or_else(|| not_found(T::KIND))?;
    object.delete(draft)?;
    draft.delete::<T>(key);
    note_fabric::<T>(draft);
    go_json::encode(&key)
}

fn list<T: Object>(world: &World) -> Answer {
    go_json::encode(&world.all::<T>().collect::<Vec<_>>())
}

fn get<T: Object>(world: &World, key: &str) -> Answer {
    go_json::encode(world.get::<T>(key).ok_or_else(|| not_found(T::KIND))?)
}

fn inspect<T: Object>(world: &World, key: &str, cluster: &Cluster) -> Answer {
    let config = world.get::<T>(key).ok_or_else(|| not_found(T::KIND))?;
    config.can_inspect(world)?;
    match config.oper(world, cluster) {
        Some(oper) => go_json::encode(&api::Inspect { config, oper }),
        None => go_json::encode(&BTreeMap::from([("Config", config)])),
    }
}
