//! An ACI fabric: its gateway is told of the application profiles (INVENTORY 1.5.9).
//!
//! What the fabric is to be follows from the store. A request for an application profile is first planned without
//! being carried out, and that the fabric may be told is written down ([`Pending`]); then the gateway is told, and only
//! when it agrees the request is committed, in one transaction with the end of the note. Whatever goes wrong between -
//! the gateway refuses, it is away, this netmaster dies - the store has not changed, and the note makes the leader of
//! the time tell the gateway again what the store says, until it has heard it. Other changes that the fabric must know
//! of (a group in a profile, a rule) leave such a note in their transaction.

mod fabric;
mod gateway;
mod spec;

use contiv_model::api::AppProfile;
use contiv_model::global;
use serde::{Deserialize, Serialize};

pub use fabric::{Fabric, Plan};
pub use gateway::{Address, Gateway};
pub use spec::Spec;

use crate::world::{Draft, World};

/// `/contiv.io/state/aci-pending/<tenant>:<profile>`: the gateway may not know what the store has of the profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// `<tenant>:<profile>`.
    pub id: String,
}

/// The infrastructure type of an ACI fabric.
const ACI: &str = "aci";

/// Is the cluster at an ACI fabric?
pub fn is_on(draft: &Draft<'_>) -> bool {
    draft.get::<global::Config>("").is_some_and(|config| config.nw_infra_type == ACI)
}

pub fn is_on_in(world: &World) -> bool {
    world.get::<global::Config>("").is_some_and(|config| config.nw_infra_type == ACI)
}

/// Notes the profiles that the draft makes something else for the fabric.
pub fn note(draft: &mut Draft<'_>) {
    let world = draft.world();
    if !is_on(draft) || world.table::<AppProfile>().is_empty() {
        return;
    }
    let before = Draft::new(world);
    let was_on = is_on(&before);
    for profile in world.all::<AppProfile>() {
        let same = || Spec::of(profile, &before).ok() == Spec::of(profile, draft).ok();
        if !was_on || !same() {
            draft.put(&profile.key, Pending { id: profile.key.clone() });
        }
    }
}
