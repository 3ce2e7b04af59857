use serde::{Deserialize, Serialize};

use super::{Link, LinkSet};

macro_rules! volumes {
    ($($(#[$doc:meta])* $volume:ident($name:ident), used as $users:ident by $user:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        #[expect(missing_docs, reason = "nothing uses them")]
        pub struct $volume {
            pub key: String,
            #[serde(skip_serializing_if = "String::is_empty")]
            pub datastore_type: String,
            #[serde(skip_serializing_if = "String::is_empty")]
            pub mount_point: String,
            #[serde(skip_serializing_if = "String::is_empty")]
            pub pool_name: String,
            #[serde(skip_serializing_if = "String::is_empty")]
            pub size: String,
            #[serde(skip_serializing_if = "String::is_empty")]
            pub tenant_name: String,
            #[serde(skip_serializing_if = "String::is_empty")]
            pub $name: String,
            #[serde(rename = "link-sets")]
            pub link_sets: $users,
            pub links: VolumeLinks,
        }

        /// Objects that use the volume.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "PascalCase", default)]
        #[expect(missing_docs, reason = "nothing uses them")]
        pub struct $users {
            #[serde(skip_serializing_if = "LinkSet::is_empty")]
            pub $user: LinkSet,
        }
    )*};
}

volumes! {
    /// A volume. The original defines the type without handling it; so does contiv-rs.
    Volume(volume_name), used as VolumeLinkSets by service_instances;
    /// A profile of volumes. Not handled, as [`Volume`].
    VolumeProfile(volume_profile_name), used as VolumeProfileLinkSets by services;
}

/// Owner of a volume or of its profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct VolumeLinks {
    /// The tenant.
    pub tenant: Link,
}
