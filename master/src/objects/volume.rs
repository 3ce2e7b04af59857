//! Volumes and volume profiles. Like the original, netmaster decodes requests for them, checks the
//! key, and rejects them.

use contiv_model::api::{Volume, VolumeProfile};
use contiv_model::key::ObjectType;

use super::{Cluster, Object};
use crate::cache::{ClusterCache, StagedTxn};
use crate::problem::Problem;
use crate::reports::Report;
use crate::schema::{Field, LINK, Schema, Type};

macro_rules! unsupported_types {
    ($($object:ident: $name:literal, used by $users:literal;)*) => {
        $(impl Object for $object {
            const KIND: ObjectType = ObjectType::$object;
            const SCHEMA: &'static Schema = {
                static LINK_SETS: Schema = Schema {
                    go_type: concat!("contivModel.", stringify!($object), "LinkSets"),
                    fields: &[Field::any($users, Type::StructMap(&LINK))],
                };
                static LINKS: Schema = Schema {
                    go_type: concat!("contivModel.", stringify!($object), "Links"),
                    fields: &[Field::any("Tenant", Type::Struct(&LINK))],
                };
                static SCHEMA: Schema = Schema {
                    go_type: concat!("contivModel.", stringify!($object)),
                    fields: &[
                        Field::any("key", Type::Text),
                        Field::any("datastoreType", Type::Text),
                        Field::any("mountPoint", Type::Text),
                        Field::any("poolName", Type::Text),
                        Field::any("size", Type::Text),
                        Field::any("tenantName", Type::Text),
                        Field::any($name, Type::Text),
                        Field::any("link-sets", Type::Struct(&LINK_SETS)),
                        Field::any("links", Type::Struct(&LINKS)),
                    ],
                };
                &SCHEMA
            };
            const KEY: &'static [&'static str] = &["tenantName", $name];
            type Oper = ();

            fn key(&self) -> &str {
                &self.key
            }

            fn tenant(&self) -> Option<&str> {
                Some(&self.tenant_name)
            }

            fn create(self, _draft: &mut StagedTxn<'_>) -> Result<Self, Problem> {
                Err(unsupported())
            }

            fn update(self, _old: &Self, _draft: &mut StagedTxn<'_>) -> Result<(), Problem> {
                Err(unsupported())
            }

            fn delete(&self, _draft: &mut StagedTxn<'_>) -> Result<(), Problem> {
                Err(unsupported())
            }

            fn oper(&self, _cache: &ClusterCache, _cluster: &Cluster) -> Option<Report<()>> {
                None
            }
        })*
    };
}

unsupported_types! {
    Volume: "volumeName", used by "ServiceInstances";
    VolumeProfile: "volumeProfileName", used by "Services";
}

fn unsupported() -> Problem {
    Problem::invalid("Invalid object type")
}
