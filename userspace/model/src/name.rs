//! Names given by users, and the ids that are composed of them.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

/// A text that is not a valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kind} {value:?}: expected 1 to {max} letters, digits and hyphens, in labels joined by dots, \
     each beginning and ending with a letter or digit"
)]
pub struct NameError {
    kind: &'static str,
    value: String,
    max: usize,
}

/// Returns true for a NAME of INVENTORY 1.4: labels of letters, digits and inner hyphens, joined by
/// dots.
pub fn is_name(text: &str) -> bool {
    text.split('.').all(|label| {
        let bytes = label.as_bytes();
        let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        edge(bytes.first())
            && edge(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
    })
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $kind:literal, $max:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                if text.len() <= $max && is_name(text) {
                    Ok($name(text.into()))
                } else {
                    Err(NameError { kind: $kind, value: text.to_owned(), max: $max })
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }

        text!($name);
    )*};
}

macro_rules! text {
    ($name:ident) => {
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

names! {
    /// Name of a tenant.
    TenantName = "tenant name", 64;
    /// Name of a network within its tenant.
    NetworkName = "network name", 64;
    /// Name of an endpoint group within its tenant.
    GroupName = "group name", 64;
    /// Name of a service within its tenant.
    ServiceName = "service name", 256;
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                $name(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                $name(text.into())
            }
        }

        text!($name);
    )*};
}

ids! {
    /// `<network>.<tenant>`. Opaque: both parts may contain dots, so the id is composed but never
    /// split; the body under it has the parts.
    NetworkId;
    /// `<group>:<tenant>`.
    GroupKey;
    /// `<network>.<tenant>-<endpoint id>`, or `<host>-native-intf`. Opaque, as [`NetworkId`].
    EndpointId;
    /// Name of a node as its agent registers it.
    HostName;
    /// `<tenant>:<group>:<tenant>:<policy>`: a policy attached to a group.
    PolicyId;
    /// `<policy on a group>:<tenant>:<policy>:<rule>:<direction>`: a rule of a policy attached to a
    /// group. Opaque, as [`NetworkId`].
    RuleId;
    /// `<service>:<tenant>`.
    ServiceId;
}

impl NetworkId {
    /// The id of `network` in `tenant`.
    pub fn new(network: &NetworkName, tenant: &TenantName) -> Self {
        NetworkId(format!("{network}.{tenant}").into())
    }
}

impl GroupKey {
    /// The key of `group` in `tenant`.
    pub fn new(group: &GroupName, tenant: &TenantName) -> Self {
        GroupKey(format!("{group}:{tenant}").into())
    }
}

impl PolicyId {
    /// The group that the policy is attached to: names contain no colons. `None` if the id does not
    /// have netmaster's form.
    pub fn group(&self) -> Option<GroupKey> {
        let parts: Vec<&str> = self.as_str().split(':').collect();
        match parts[..] {
            [tenant, group, _, _] => Some(GroupKey(format!("{group}:{tenant}").into())),
            _ => None,
        }
    }

    /// Beginning of the ids of the policies that are attached to a group. `None` if its key does not have netmaster's form.
    pub fn prefix_of(group: &GroupKey) -> Option<String> {
        let (name, tenant) = group.as_str().split_once(':')?;
        Some(format!("{tenant}:{name}:"))
    }
}

impl ServiceId {
    /// The id of `service` in `tenant`.
    pub fn new(service: &ServiceName, tenant: &TenantName) -> Self {
        ServiceId(format!("{service}:{tenant}").into())
    }
}

impl EndpointId {
    /// The id of an endpoint on `network`; `endpoint` is its id in the orchestrator.
    pub fn new(network: &NetworkId, endpoint: &str) -> Self {
        EndpointId(format!("{network}-{endpoint}").into())
    }

    /// Ids of the networks that the endpoint may be on: the id does not tell where the network's id ends.
    pub fn possible_networks(&self) -> impl Iterator<Item = NetworkId> {
        let id = self.as_str();
        id.match_indices('-').filter_map(|(dash, _)| id.get(..dash)).map(NetworkId::from)
    }

    /// The id of the endpoint of the node `host` on an infra network.
    pub fn infra(host: &HostName) -> Self {
        EndpointId(format!("{host}-native-intf").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_like() {
        let long = "x".repeat(64);
        for good in ["a", "1", "A", "a.b", "web-1", long.as_str()] {
            assert_eq!(good.parse::<TenantName>().unwrap().as_str(), good);
        }
        let long = "x".repeat(65);
        for bad in ["", "-a", "a-", "a_b", "a..b", ".a", "a.", "a b", "é", long.as_str()] {
            assert!(bad.parse::<TenantName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn ids_are_built_as_the_original_builds_them() {
        let (net, tenant) = ("n1".parse().unwrap(), "a.b".parse().unwrap());
        let id = NetworkId::new(&net, &tenant);
        assert_eq!(id.as_str(), "n1.a.b");
        assert_eq!(EndpointId::new(&id, "c1").as_str(), "n1.a.b-c1");
        assert_eq!(EndpointId::infra(&"h1".into()).as_str(), "h1-native-intf");
        assert_eq!(GroupKey::new(&"web".parse().unwrap(), &tenant).as_str(), "web:a.b");
        assert_eq!(PolicyId::from("a.b:web:a.b:p").group(), Some("web:a.b".into()));
        assert_eq!(PolicyId::from("p").group(), None);
        assert_eq!(PolicyId::prefix_of(&"web:a.b".into()).as_deref(), Some("a.b:web:"));
        assert_eq!(PolicyId::prefix_of(&"web".into()), None);
    }
}
