//! Volumes and their profiles: types that the original has, and has nobody to handle. It reads their requests, checks
//! the key, and refuses.

use contiv_model::api::{Volume, VolumeProfile};
use contiv_model::key::ObjectType;

use super::{Cluster, Object};
use crate::cache::{Draft, World};
use crate::problem::Problem;
use crate::schema::{LINK, Member, Shape, Type};

macro_rules! unhandled {
    ($($object:ident: $name:literal, used by $users:literal;)*) => {
        $(impl Object for $object {
            const KIND: ObjectType = ObjectType::$object;
            const SHAPE: &'static Shape = {
                static LINK_SETS: Shape = Shape {
                    go_type: concat!("contivModel.", stringify!($object), "LinkSets"),
                    members: &[Member::any($users, Type::StructMap(&LINK))],
                };
                static LINKS: Shape = Shape {
                    go_type: concat!("contivModel.", stringify!($object), "Links"),
                    members: &[Member::any("Tenant", Type::Struct(&LINK))],
                };
                static SHAPE: Shape = Shape {
                    go_type: concat!("contivModel.", stringify!($object)),
                    members: &[
                        Member::any("key", Type::Text),
                        Member::any("datastoreType", Type::Text),
                        Member::any("mountPoint", Type::Text),
                        Member::any("poolName", Type::Text),
                        Member::any("size", Type::Text),
                        Member::any("tenantName", Type::Text),
                        Member::any($name, Type::Text),
                        Member::any("link-sets", Type::Struct(&LINK_SETS)),
                        Member::any("links", Type::Struct(&LINKS)),
                    ],
                };
                &SHAPE
            };
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
    Volume: "volumeName", used by "ServiceInstances";
    VolumeProfile: "volumeProfileName", used by "Services";
}

fn nobody() -> Problem {
    Problem::invalid("Invalid object type")
}
