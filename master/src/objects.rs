//! Objects of `/api/v1`: a schema for each type, and the plans that create, update and delete its
//! objects.

mod aci;
mod bgp;
mod candidates;
mod global;
mod group;
mod listing;
mod netprofile;
mod network;
mod ownership;
mod policy;
mod rule;
mod service;
mod tenant;
mod volume;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use contiv_model::{api, key::ObjectType};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Map, Value};

use candidates::candidates;
pub use global::{Defaults, put_identity};
use listing::PageBody;
pub use listing::{FieldSelector, Page, Selection};
pub use service::restore as restore_services;

use crate::access::Scope;
use crate::cache::{ClusterCache, ContentVersion, Entry, Links, SharedCache, StagedTxn, Version};
use crate::domain::fabric;
use crate::go_json;
use crate::problem::{Answer, Problem};
use crate::reports::Report;
use crate::schema::Schema;

/// A type of API object.
pub trait Object: Entry + Clone {
    const KIND: ObjectType;
    /// Fields with types and rules, including the links that clients may send.
    const SCHEMA: &'static Schema;
    /// Fields that form the key, joined by colons.
    const KEY: &'static [&'static str];
    /// Defaults for fields that a request leaves empty. The response contains them.
    const DEFAULTS: &'static [(&'static str, Preset)] = &[];
    /// Operational state that `inspect` reports.
    type Oper: Serialize + JsonSchema;
    /// Whether requests are planned in a transaction of their own, because they create or delete
    /// objects that other plans read.
    const EXCLUSIVE: bool = true;

    fn key(&self) -> &str;

    /// Name of the tenant that the object belongs to; none for objects of the whole cluster.
    fn tenant(&self) -> Option<&str>;

    /// Response to an update: the request, not the stored object.
    fn echo(&self) -> Self {
        self.clone()
    }

    /// Stages the creation, and returns the object as it is stored.
    fn create(self, staged: &mut StagedTxn<'_>) -> Result<Self, Problem>;

    /// Stages the update of `old`.
    fn update(self, old: &Self, staged: &mut StagedTxn<'_>) -> Result<(), Problem>;

    fn delete(&self, staged: &mut StagedTxn<'_>) -> Result<(), Problem>;

    /// Checks whether operational state is available.
    fn can_inspect(&self, _cache: &ClusterCache) -> Result<(), Problem> {
        Ok(())
    }

    /// Operational state; none for types without any.
    fn oper(&self, cache: &ClusterCache, cluster: &Cluster) -> Option<Report<Self::Oper>>;
}

/// Default value of a field.
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

/// Settings of this daemon that are not in the store.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// Value of `--mode`.
    pub mode: String,
    /// Whether nodes are the gateways of VLAN networks, too, in forward mode `routing` (`--netmode vlan`).
    pub routes_vlans: bool,
}

/// An object type as the routes use it.
pub struct Type {
    pub kind: ObjectType,
    pub operations: Operations,
}

/// Fields of a request, with the names used in the store.
pub type Fields = Map<String, Value>;

/// Key of an object, and the revision of its record.
pub type RevisedKey = (String, i64);

/// An object as a GET answers it, or why there is none.
pub type Answered = Result<Representation, Problem>;

/// Operations on objects of one type. Response bodies are JSON.
#[derive(Clone, Copy)]
pub struct Operations {
    /// See [`Object::SCHEMA`], [`Object::KEY`], [`Object::DEFAULTS`].
    pub schema: &'static Schema,
    pub key: &'static [&'static str],
    pub defaults: &'static [(&'static str, Preset)],
    /// Schema of [`Object::Oper`].
    pub oper: fn(&mut SchemaGenerator) -> schemars::Schema,
    /// See [`Object::EXCLUSIVE`].
    pub exclusive: bool,
    /// Decodes and validates the body of a POST or PUT to `key`.
    pub check: fn(key: &str, body: &[u8]) -> Result<Fields, Problem>,
    /// Refuses requests for objects, and links to objects, that are not in the scope.
    pub put: fn(request: &Fields, &Scope, &Cluster, staged: &mut StagedTxn<'_>) -> Answer,
    pub delete: fn(key: &str, &Scope, staged: &mut StagedTxn<'_>) -> Answer,
    pub version: fn(key: &str, staged: &StagedTxn<'_>) -> Version,
    /// Reads leave out objects that are not in the scope.
    pub list: fn(&ClusterCache, &Scope, Selection) -> Report<Result<Page, Problem>>,
    pub get: fn(&ClusterCache, key: &str, &Scope, IsKnown) -> Report<Answered>,
    pub inspect: fn(&ClusterCache, key: &str, &Scope, &Cluster) -> Report<Answer>,
    /// Whether the objects have derived links.
    pub linked: bool,
    /// Keys after the given one in their order, at most so many, with the revisions of the records.
    pub keys: fn(&ClusterCache, after: Option<&str>, limit: usize) -> Vec<RevisedKey>,
    /// Encodes the object without the cache. None if the object does not exist.
    pub cached: fn(&ClusterCache, key: &str) -> Option<Unencoded>,
    /// Decodes a record of the store. Derived links are those in the cache.
    pub decode: fn(record: &[u8], &SharedCache) -> Result<Stored, Problem>,
}

/// Whether the client of a GET has this version of the object.
pub type IsKnown = Box<dyn FnOnce(ContentVersion) -> bool + Send>;

/// An object as a GET answers it.
pub struct Representation {
    /// None if the client has it.
    pub body: Option<Vec<u8>>,
    pub version: ContentVersion,
}

/// An object of the store, with its derived links.
pub struct Stored {
    /// Response body of a GET.
    pub body: Vec<u8>,
    pub fields: Value,
    /// None for objects of the whole cluster.
    pub tenant: Option<String>,
}

/// Encodes an object that was taken out of the cache.
pub type Unencoded = Report<Result<Stored, Problem>>;

/// All object types.
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
                schema: T::SCHEMA,
                key: T::KEY,
                defaults: T::DEFAULTS,
                oper: SchemaGenerator::subschema_for::<T::Oper>,
                exclusive: T::EXCLUSIVE,
                check: check::<T>,
                put: put::<T>,
                delete: delete::<T>,
                version: version::<T>,
                list: list::<T>,
                get: get::<T>,
                linked: !T::REFERRERS.is_empty(),
                keys: ClusterCache::keys_after::<T>,
                cached: cached::<T>,
                decode: decode::<T>,
                inspect: inspect::<T>,
            },
        }
    }

    /// Finds a type by the plural in paths: the type name and an `s`.
    pub fn by_plural(plural: &str) -> Option<&'static Type> {
        let name = plural.strip_suffix('s')?;
        TYPES.iter().find(|t| t.kind.as_str() == name)
    }

    /// Whether the objects belong to tenants. Their keys begin with the name of the tenant.
    pub fn has_tenant(&self) -> bool {
        self.operations.key.first() == Some(&"tenantName")
    }

    /// Tenant in the key of an object; none for objects of the cluster. Names of tenants contain no
    /// colon.
    pub fn tenant_of<'k>(&self, key: &'k str) -> Option<&'k str> {
        self.has_tenant().then(|| key.split_once(':').map_or(key, |(tenant, _)| tenant))
    }

    pub fn is_tenant(&self) -> bool {
        self.kind == ObjectType::Tenant
    }
}

fn not_found(kind: ObjectType) -> Problem {
    Problem::not_found(format!("{} not found", kind.as_str()))
}

fn check<T: Object>(key: &str, body: &[u8]) -> Result<Fields, Problem> {
    let mut request = go_json::decode(body, T::SCHEMA).map_err(Problem::invalid)?;
    request.insert("key".into(), key.into());
    for (name, default) in T::DEFAULTS {
        default.fill(&mut request, name);
    }
    let part = |name: &&str| request.get(*name).and_then(Value::as_str).unwrap_or_default().to_owned();
    if T::KEY.iter().map(part).collect::<Vec<_>>().join(":") != key {
        return Err(Problem::invalid("Invalid Key"));
    }
    T::SCHEMA.check(&request).map_err(Problem::invalid)?;
    Ok(request)
}

fn put<T: Object>(request: &Fields, scope: &Scope, cluster: &Cluster, staged: &mut StagedTxn<'_>) -> Answer {
    ownership::check_request::<T>(request, scope, cluster, staged)?;
    if let Some(key) = request.get("key").and_then(Value::as_str) {
        ownership::check_record::<T>(key, scope, staged)?;
    }
    let answer = create_or_update::<T>(&ownership::without_links(request, scope), staged)?;
    mark_fabric_pending::<T>(staged);
    Ok(answer)
}

/// The object as a GET answers it, with its derived links.
fn with_links<'o, T: Object>(object: &'o T, links: &Links) -> Cow<'o, T> {
    match T::REFERRERS.is_empty() {
        true => Cow::Borrowed(object),
        false => Cow::Owned(links.added_to(object)),
    }
}

/// Marks application profiles that the change affects. Requests for application profiles are sent
/// to the gateway directly.
fn mark_fabric_pending<T: Object>(staged: &mut StagedTxn<'_>) {
    if T::KIND != ObjectType::AppProfile {
        fabric::mark_pending(staged);
    }
}

fn create_or_update<T: Object>(request: &Fields, staged: &mut StagedTxn<'_>) -> Answer {
    let new: T = serde_json::from_value(Value::Object(request.clone()))
        .map_err(|e| Problem::invalid(format!("{}: {e}", T::KIND.as_str())))?;
    match staged.get::<T>(new.key()) {
        None => {
            T::SCHEMA.check_links(request).map_err(Problem::invalid)?;
            let new = new.create(staged)?;
            go_json::encode(&with_links(&new, &staged.links_of::<T>(new.key())))
        }
        Some(old) => {
            ensure_same_object(request, &*old)?;
            let echo = go_json::encode(&new.echo())?;
            new.update(&old, staged)?;
            Ok(echo)
        }
    }
}

/// Fails if the key of the known object was formed from other names, which is possible where a name
/// may contain a colon.
fn ensure_same_object<T: Object>(request: &Fields, known: &T) -> Result<(), Problem> {
    if known.key().matches(':').count() < T::KEY.len() {
        return Ok(());
    }
    let fields = fields(known)?;
    let name = |of: &dyn Fn(&str) -> Option<Value>| -> Vec<String> {
        T::KEY
            .iter()
            .map(|field| of(field).and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default())
            .collect()
    };
    let known_as = name(&|field| fields.get(field).cloned());
    if known_as == name(&|field| request.get(field).cloned()) {
        return Ok(());
    }
    let names: Vec<String> =
        T::KEY.iter().zip(known_as).map(|(field, name)| format!("{field} {name:?}")).collect();
    let (kind, key) = (T::KIND.as_str(), known.key());
    Err(Problem::conflict(format!("{kind} {key} conflicts with the one with {}", names.join(" and "))))
}

fn delete<T: Object>(key: &str, scope: &Scope, staged: &mut StagedTxn<'_>) -> Answer {
    ownership::check_record::<T>(key, scope, staged)?;
    let object = staged.get::<T>(key).ok_or_else(|| not_found(T::KIND))?;
    object.delete(staged)?;
    staged.delete::<T>(key);
    mark_fabric_pending::<T>(staged);
    go_json::encode(&key)
}

fn version<T: Object>(key: &str, staged: &StagedTxn<'_>) -> Version {
    staged.version::<T>(key)
}

fn list<T: Object>(
    cache: &ClusterCache,
    scope: &Scope,
    selection: Selection,
) -> Report<Result<Page, Problem>> {
    let (limit, bytes) = selection.bounds();
    let objects = candidates::<T>(cache, scope, &selection);
    let objects: Vec<(Arc<T>, Links)> =
        objects.into_iter().map(|object| (object.clone(), cache.links_of::<T>(object.key()))).collect();
    let revision = cache.complete_revision();
    Box::new(move || {
        let mut page = PageBody::new(limit, bytes);
        for (object, links) in &objects {
            if !selection.selector.is_empty() && !selection.selector.matches(&fields(&**object)?) {
                continue;
            }
            if page.push(object.key(), &with_links(&**object, links))?.is_break() {
                break;
            }
        }
        Ok(page.finish(revision))
    })
}

fn fields<T: Object>(object: &T) -> Result<Value, Problem> {
    serde_json::to_value(object).map_err(|e| Problem::unavailable(format!("encode a record: {e}")))
}

fn get<T: Object>(cache: &ClusterCache, key: &str, scope: &Scope, is_known: IsKnown) -> Report<Answered> {
    let known = cache.table::<T>().get(key).filter(|known| scope.has_tenant(known.value.tenant()));
    let Some(known) = known else { return Box::new(|| Err(not_found(T::KIND))) };
    let (object, revision, links) = (known.value.clone(), known.revision, cache.links_of::<T>(key));
    Box::new(move || {
        let version = ContentVersion::new(revision, &links);
        let body = match is_known(version) {
            true => None,
            false => Some(go_json::encode(&with_links(&*object, &links))?),
        };
        Ok(Representation { body, version })
    })
}

fn decode<T: Object>(record: &[u8], cache: &SharedCache) -> Result<Stored, Problem> {
    let object: T = serde_json::from_slice(record)
        .map_err(|e| Problem::unavailable(format!("decode a record of {}: {e}", T::KIND.as_str())))?;
    // Commits do not wait until the object is encoded.
    let links = cache.read().links_of::<T>(object.key());
    stored(&object, &links)
}

fn cached<T: Object>(cache: &ClusterCache, key: &str) -> Option<Unencoded> {
    let (object, links) = (cache.shared::<T>(key)?, cache.links_of::<T>(key));
    Some(Box::new(move || stored(&*object, &links)))
}

fn stored<T: Object>(object: &T, links: &Links) -> Result<Stored, Problem> {
    let tenant = object.tenant().map(str::to_owned);
    let body = go_json::encode(&with_links(object, links))?;
    Ok(Stored { body, fields: fields(object)?, tenant })
}

fn inspect<T: Object>(cache: &ClusterCache, key: &str, scope: &Scope, cluster: &Cluster) -> Report<Answer> {
    let found = cache.shared::<T>(key).filter(|object| scope.has_tenant(object.tenant()));
    let Some(object) = found else { return Box::new(|| Err(not_found(T::KIND))) };
    if let Err(problem) = object.can_inspect(cache) {
        return Box::new(|| Err(problem));
    }
    let (oper, links) = (object.oper(cache, cluster), cache.links_of::<T>(key));
    Box::new(move || {
        let config = &with_links(&*object, &links);
        match oper {
            Some(oper) => go_json::encode(&api::Inspect { config, oper: oper() }),
            None => go_json::encode(&BTreeMap::from([("Config", config)])),
        }
    })
}
