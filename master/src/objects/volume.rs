//! Volumes and their profiles: types that the original has, and has nobody to handle. It reads their requests, checks
//! the key, and refuses.

use contiv_model::api::{Volume, VolumeProfile};
use contiv_model::key::ObjectType;

use super::{Cluster, Object};
use crate::problem::Problem;
use crate::schema::{LINK, Member, Shape, Type};
use crate::world::{Draft, World};

static VOLUME: Shape = Shape {
    go_type: "contivModel.Volume",
    members: &[
        Member::any("key", Type::Text),
        Member::any("datastoreType", Type::Text),
        Member::any("mountPoint", Type::Text),
        Member::any("poolName", Type::Text),
        Member::any("size", Type::Text),
        Member::any("tenantName", Type::Text),
        Member::any("volumeName", Type::Text),
        Member::any("link-sets", Type::Struct(&VOLUME_LINK_SETS)),
        Member::any("links", Type::Struct(&VOLUME_LINKS)),
    ],
};

static VOLUME_LINK_SETS: Shape = Shape {
    go_type: "contivModel.VolumeLinkSets",
    members: &[Member::any("ServiceInstances", Type::StructMap(&LINK))],
};

static VOLUME_LINKS: Shape =
    Shape { go_type: "contivModel.VolumeLinks", members: &[Member::any("Tenant", Type::Struct(&LINK))] };

static PROFILE: Shape = Shape {
    go_type: "contivModel.VolumeProfile",
    members: &[
        Member::any("key", Type::Text),
        Member::any("datastoreType", Type::Text),
        Member::any("mountPoint", Type::Text),
        Member::any("poolName", Type::Text),
        Member::any("size", Type::Text),
        Member::any("tenantName", Type::Text),
        Member::any("volumeProfileName", Type::Text),
        Member::any("link-sets", Type::Struct(&PROFILE_LINK_SETS)),
        Member::any("links", Type::Struct(&PROFILE_LINKS)),
    ],
};

static PROFILE_LINK_SETS: Shape = Shape {
    go_type: "contivModel.VolumeProfileLinkSets",
    members: &[Member::any("Services", Type::StructMap(&LINK))],
};

static PROFILE_LINKS: Shape = Shape {
    go_type: "contivModel.VolumeProfileLinks",
    members: &[Member::any("Tenant", Type::Struct(&LINK))],
};

macro_rules! unhandled {
    ($($object:ident: $shape:ident, $name:literal;)*) => {
        $(impl Object for $object {
            const KIND: ObjectType = ObjectType::$object;
            const SHAPE: &'static Shape = &$shape;
            const KEY: &'static [&'static str] = &["tenantName", $name];
            type Oper = ();

            fn key(&self) -> &str {
                &self.key
            }

            fn create(self, _draft: &mut Draft<'_>) -> Result<Self, Problem> {
                Err(nobody())
            }

            fn update(self, _old: &Self, _draft: &mut Draft<'_>) -> Result<(), Problem> {
                Err(nobody())
            }

            fn delete(&self, _draft: &mut Draft<'_>) -> Result<(), Problem> {
                Err(nobody())
            }

            fn oper(&self, _world: &World, _cluster: &Cluster) -> Option<()> {
                None
            }
        })*
    };
}

unhandled! {
    Volume: VOLUME, "volumeName";
    VolumeProfile: PROFILE, "volumeProfileName";
}

fn nobody() -> Problem {
    Problem::invalid("Invalid object type")
}
