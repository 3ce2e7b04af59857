//! The stored objects that a plan is made from.

use std::collections::BTreeSet;

use contiv_model::key::ObjectType;

use crate::{
    client::{Client, listing::Selection},
    error::Error,
    manifest::plan::Stored,
    output::text,
};

/// Objects of some types, read one type after the other.
pub struct Snapshot {
    /// The objects.
    pub objects: Stored,
    /// Whether netmaster tries changes without making them.
    pub has_trials: bool,
}

impl Snapshot {
    /// Reads the objects of these types.
    pub fn read(client: &Client, kinds: BTreeSet<ObjectType>) -> Result<Snapshot, Error> {
        let mut snapshot = Snapshot { objects: Stored::new(), has_trials: true };
        for kind in kinds {
            let listed = client.select(&Selection::of(kind))?;
            snapshot.has_trials &= listed.revision.is_some();
            let keyed = listed.objects.into_iter().map(|object| (text(&object, "key"), object));
            snapshot.objects.insert(kind, keyed.collect());
        }
        Ok(snapshot)
    }
}
