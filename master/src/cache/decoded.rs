//! Updates that are decoded before they are applied: decoding takes more time than applying and needs nothing of
//! the cache, so one part of a large snapshot is decoded while the part before it is applied.

use std::any::Any;
use std::sync::Arc;

use contiv_model::event::Event;
use contiv_model::key::Key;
use contiv_store::{KeyValue, Update};

use super::derived::Derived;
use super::record::{ByType, Entry, by_type};
use super::unknown_fields::UnknownFields;

/// An update of the store's watch, with the value of a snapshot decoded.
pub struct DecodedUpdate {
    pub update: Update,
    pub(super) value: DecodedValue,
}

/// The decoded value of an [`Entry`]; nothing if it was not decoded before.
#[derive(Default)]
pub(super) struct DecodedValue(Option<Box<dyn Any + Send>>);

/// A value of the store and its unknown fields.
pub(super) type Decoded<T> = (Arc<T>, UnknownFields);

impl DecodedUpdate {
    /// Decodes a value of a snapshot. One that cannot be decoded is reported when the update is applied. Later
    /// changes are decoded then, too: most are the leader's own, which it has applied when it committed them.
    pub fn decode(update: Update) -> DecodedUpdate {
        let value = match &update.event {
            Event::InitApply(path, kv) => path.parse().map(|key: Key| by_type(&key, Decode(kv))),
            _ => Ok(None),
        };
        DecodedUpdate { update, value: value.ok().flatten().unwrap_or_default() }
    }
}

impl DecodedValue {
    /// The value of type `T` that the store has as `kv`, decoded now if it was not before.
    pub(super) fn take<T: Entry>(self, kv: &KeyValue) -> serde_json::Result<Decoded<T>> {
        match self.0.map(Box::<dyn Any + Send>::downcast::<Decoded<T>>) {
            Some(Ok(decoded)) => Ok(*decoded),
            Some(Err(_)) | None => read(kv),
        }
    }
}

fn read<T: Entry>(kv: &KeyValue) -> serde_json::Result<Decoded<T>> {
    let (mut value, unknown) = UnknownFields::read::<T>(&kv.value)?;
    value.compact();
    Ok((value.into(), unknown))
}

struct Decode<'a>(&'a KeyValue);

impl ByType for Decode<'_> {
    type Output = DecodedValue;

    fn entry<T: Entry>(self, _id: &str) -> DecodedValue {
        DecodedValue(read::<T>(self.0).ok().map(|decoded| Box::new(decoded) as Box<dyn Any + Send>))
    }

    /// A snapshot has none of their values.
    fn derived<T: Derived>(self, _id: &str) -> DecodedValue {
        DecodedValue::default()
    }
}
