//! The kinds of object that netmaster stores.

pub mod aci_gw;
pub mod app_profile;
pub mod bgp;
pub mod external_contracts;
pub mod global;
pub mod group;
pub mod netprofile;
pub mod network;
pub mod policy;
pub mod rule;
pub mod service;
pub mod tenant;

use contiv_model::key::ObjectType;

use crate::schema::Kind;

/// All kinds; a kind comes after the kinds that it references.
pub static KINDS: [&Kind; 12] = [
    &global::KIND,
    &aci_gw::KIND,
    &tenant::KIND,
    &network::KIND,
    &netprofile::KIND,
    &external_contracts::KIND,
    &policy::KIND,
    &rule::KIND,
    &group::KIND,
    &service::KIND,
    &app_profile::KIND,
    &bgp::KIND,
];

/// Finds a kind by its type name, such as `endpointGroup`, or an alias, such as `group`; with or without a plural `s`.
pub fn by_word(word: &str) -> Option<&'static Kind> {
    let same = |name: &str| word == name || word.strip_suffix('s') == Some(name);
    KINDS.into_iter().find(|kind| same(kind.name()) || kind.aliases.iter().any(|name| same(name)))
}

/// Finds the kind of a type.
pub fn by_type(object_type: ObjectType) -> Option<&'static Kind> {
    KINDS.into_iter().find(|kind| kind.object_type == object_type)
}

/// Position of the kind in [`KINDS`].
pub fn rank(kind: &Kind) -> usize {
    KINDS.iter().position(|other| other.object_type == kind.object_type).unwrap_or(KINDS.len())
}

#[cfg(test)]
mod tests {
    use contiv_model::api;
    use serde::{
        Deserialize, Deserializer,
        de::{Error as _, Visitor, value},
        forward_to_deserialize_any,
    };
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn kind_is_found_by_its_names_only() {
        for kind in KINDS {
            for word in kind.aliases.iter().copied().chain([kind.name()]) {
                assert_eq!(by_word(word).map(Kind::name), Some(kind.name()), "{word}");
                assert_eq!(by_word(&format!("{word}s")).map(Kind::name), Some(kind.name()), "{word}s");
            }
            let fields = kind.fields.iter().map(|field| field.name);
            assert!(fields.take(kind.key_fields.len()).eq(kind.key_fields.iter().copied()));
        }
        assert!(by_word("endpoints").is_none());
    }

    /// Deserializer that collects the field names of a struct and then fails.
    struct FieldNames<'a>(&'a mut Vec<&'static str>);

    impl<'de> Deserializer<'de> for FieldNames<'_> {
        type Error = value::Error;

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, value::Error> {
            self.0.extend(fields);
            Err(value::Error::custom("field names collected"))
        }

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, value::Error> {
            Err(value::Error::custom("not a struct"))
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    fn field_names<'de, T: Deserialize<'de>>() -> Vec<&'static str> {
        let mut names = vec![];
        assert!(T::deserialize(FieldNames(&mut names)).is_err());
        names.retain(|name| !["key", "links", "link-sets"].contains(name));
        names.sort_unstable();
        names
    }

    #[test]
    fn kinds_have_the_fields_of_the_model() {
        for (kind, expected) in [
            (&global::KIND, field_names::<api::Global>()),
            (&aci_gw::KIND, field_names::<api::AciGw>()),
            (&tenant::KIND, field_names::<api::Tenant>()),
            (&network::KIND, field_names::<api::Network>()),
            (&netprofile::KIND, field_names::<api::Netprofile>()),
            (&external_contracts::KIND, field_names::<api::ExtContractsGroup>()),
            (&policy::KIND, field_names::<api::Policy>()),
            (&rule::KIND, field_names::<api::Rule>()),
            (&group::KIND, field_names::<api::EndpointGroup>()),
            (&service::KIND, field_names::<api::ServiceLb>()),
            (&app_profile::KIND, field_names::<api::AppProfile>()),
            (&bgp::KIND, field_names::<api::Bgp>()),
        ] {
            let mut fields: Vec<_> = kind.fields.iter().map(|field| field.name).collect();
            fields.sort_unstable();
            assert_eq!(fields, expected, "{}", kind.name());
        }
    }

    #[test]
    fn spec_omits_what_netmaster_adds() {
        let stored = json!({"key": "t:p:1", "ruleId": "1", "policyName": "p", "tenantName": "t", "direction": "in",
            "fromNetwork": "n", "fromIpAddress": "10.1.1.0/24", "port": 0, "links": {}});
        let expected = json!({"tenantName": "t", "policyName": "p", "ruleId": "1", "priority": 1, "direction": "in",
            "fromNetwork": "n"});
        assert_eq!(Value::Object(rule::KIND.spec(&stored)), expected);
    }

    #[test]
    fn kind_comes_after_the_kinds_it_references() {
        for kind in KINDS {
            for reference in kind.fields.iter().filter_map(|field| field.references) {
                let before = by_type(reference).is_some_and(|other| rank(other) < rank(kind));
                // A rule may reference groups, which come after it: groups reference its policy.
                assert!(
                    before || kind.object_type == ObjectType::Rule,
                    "{} references {}",
                    kind.name(),
                    reference.as_str()
                );
            }
        }
    }
}
