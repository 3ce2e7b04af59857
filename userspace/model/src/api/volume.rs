use serde::{Deserialize, Serialize};

use super::{Link, LinkSet};

/// A volume. The original has the type and handles none, and so do we.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "nothing uses them")]
pub struct Volume {
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
    pub volume_name: String,
    #[serde(rename = "link-sets")]
    pub link_sets: VolumeLinkSets,
    pub links: VolumeLinks,
}

/// What uses a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "nothing uses them")]
pub struct VolumeLinkSets {
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub service_instances: LinkSet,
}

/// The form of a volume. Handled as little as the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "nothing uses them")]
pub struct VolumeProfile {
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
    pub volume_profile_name: String,
    #[serde(rename = "link-sets")]
    pub link_sets: VolumeProfileLinkSets,
    pub links: VolumeLinks,
}

/// What uses a volume profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "nothing uses them")]
pub struct VolumeProfileLinkSets {
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub services: LinkSet,
}

/// What a volume or its profile belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct VolumeLinks {
    /// The tenant.
    pub tenant: Link,
}
