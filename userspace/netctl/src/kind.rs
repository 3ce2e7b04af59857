//! The kinds of object: one description each, which lists, `get`, `apply` and `delete` go by.

mod form;

use contiv_model::key::ObjectType;
use serde_json::{Map, Value};

pub use form::{Form, is_empty};

use crate::{
    aci, app_profile, bgp, contracts, global, group, listing::text, network, policy, profile, rule, service,
    table::Column, tenant,
};

/// A kind of object of the API.
#[derive(Debug)]
pub struct Kind {
    /// The type.
    pub of: ObjectType,
    /// What people call it beside the type's name.
    pub words: &'static [&'static str],
    /// The fields that make the key, joined by colons; the last one is the name.
    pub key: &'static [&'static str],
    /// All fields that a user sets, in the order in which they are shown; those of the key first.
    pub fields: &'static [Field],
    /// What may be changed once it is there.
    pub change: Change,
    /// The columns of lists; of settings, the titles of `info`.
    pub columns: &'static [Column],
    /// The cells of one object.
    pub row: fn(&Value) -> Vec<String>,
    /// What is said when one has been made, with `{key}`, `{name}` and `{tenant}`; empty for nothing.
    pub created: &'static str,
    /// The same when one has been removed.
    pub deleted: &'static str,
}

/// What netmaster changes of an object that is there (INVENTORY 1.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    Never,
    /// All but these fields: the others are replaced as a whole.
    AllBut(&'static [&'static str]),
    /// Settings of the cluster: what a file does not name stays, and they are never removed.
    Settings,
}

/// A field that a user sets.
#[derive(Debug)]
pub struct Field {
    /// As JSON spells it.
    pub name: &'static str,
    /// What its value must be like.
    pub form: Form,
    /// Must it be there?
    pub required: bool,
    /// What netmaster takes when it is empty.
    pub preset: Preset,
    /// The type of object whose name it holds.
    pub refers: Option<ObjectType>,
    /// The field that netmaster fills it in from, when that has a value.
    pub follows: Option<&'static str>,
}

/// What an empty field stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Nothing, or 0.
    Empty,
    /// A text.
    Text(&'static str),
    /// A number.
    Number(i64),
}

impl Field {
    /// An optional field.
    pub const fn new(name: &'static str, form: Form) -> Field {
        Field { name, form, required: false, preset: Preset::Empty, refers: None, follows: None }
    }

    /// The name of an object of this type, in the same tenant.
    pub const fn naming(name: &'static str, form: Form, refers: ObjectType) -> Field {
        Field { name, form, required: false, preset: Preset::Empty, refers: Some(refers), follows: None }
    }

    /// The tenant that an object is of.
    pub const fn tenant() -> Field {
        Field::naming("tenantName", Form::Name, ObjectType::Tenant).required()
    }

    /// A field that must be there.
    pub const fn required(mut self) -> Field {
        self.required = true;
        self
    }

    /// A field that netmaster fills in when `other` has a value.
    pub const fn following(mut self, other: &'static str) -> Field {
        self.follows = Some(other);
        self
    }

    /// A field that stands for `preset` when it is empty.
    pub const fn or(mut self, preset: Preset) -> Field {
        self.preset = preset;
        self
    }
}

/// Every kind that netmaster keeps, what others refer to first.
pub static KINDS: [&Kind; 12] = [
    &global::KIND,
    &aci::KIND,
    &tenant::KIND,
    &network::KIND,
    &profile::KIND,
    &contracts::KIND,
    &policy::KIND,
    &rule::KIND,
    &group::KIND,
    &service::KIND,
    &app_profile::KIND,
    &bgp::KIND,
];

impl Kind {
    /// The kind of a type's name, e.g. `endpointGroup`, or of a word that people use, e.g. `groups`.
    pub fn by_word(word: &str) -> Option<&'static Kind> {
        let same = |name: &str| word == name || word.strip_suffix('s') == Some(name);
        KINDS.into_iter().find(|kind| same(kind.name()) || kind.words.iter().any(|name| same(name)))
    }

    /// The kind of a type that netmaster keeps.
    pub fn of(kind: ObjectType) -> Option<&'static Kind> {
        KINDS.into_iter().find(|known| known.of == kind)
    }

    /// The name that the API has for it.
    pub const fn name(&self) -> &'static str {
        self.of.as_str()
    }

    /// The key that an object's fields make.
    pub fn key_of(&self, object: &Value) -> String {
        self.key.iter().map(|field| text(object, field)).collect::<Vec<_>>().join(":")
    }

    /// What an object means: the fields that a user sets, without empty ones and those that netmaster fills in, in order.
    pub fn meaning(&self, object: &Value) -> Map<String, Value> {
        let given = |name: &str| object.get(name).filter(|value| !is_empty(value));
        let own = |field: &&Field| field.follows.is_none_or(|other| given(other).is_none());
        let value = |field: &Field| match (given(field.name), field.preset) {
            (Some(value), _) => Some(value.clone()),
            (None, Preset::Empty) => None,
            (None, Preset::Text(text)) => Some(text.into()),
            (None, Preset::Number(number)) => Some(number.into()),
        };
        let fields = self.fields.iter().filter(own);
        fields.filter_map(|field| Some((field.name.to_owned(), value(field)?))).collect()
    }

    /// The field with the name within the tenant.
    pub fn name_field(&self) -> &'static str {
        self.key.last().copied().unwrap_or_default()
    }

    /// Are there such objects in each tenant?
    pub fn is_of_tenant(&self) -> bool {
        self.key.len() > 1
    }

    /// Place among the kinds: what others refer to is first.
    pub fn rank(&self) -> usize {
        KINDS.iter().position(|kind| kind.of == self.of).unwrap_or(KINDS.len())
    }
}

#[cfg(test)]
mod tests {
    use contiv_model::api;
    use serde::{
        Deserialize, Deserializer,
        de::{Error as _, Visitor, value},
        forward_to_deserialize_any,
    };
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_is_found_by_its_names_alone() {
        for kind in KINDS {
            for word in kind.words.iter().copied().chain([kind.name()]) {
                assert_eq!(Kind::by_word(word).map(Kind::name), Some(kind.name()), "{word}");
                assert_eq!(Kind::by_word(&format!("{word}s")).map(Kind::name), Some(kind.name()), "{word}s");
            }
            assert!(
                kind.fields.iter().map(|field| field.name).take(kind.key.len()).eq(kind.key.iter().copied())
            );
        }
        assert!(Kind::by_word("endpoints").is_none());
    }

    /// Tells the members of a struct, and nothing else.
    struct Members<'a>(&'a mut Vec<&'static str>);

    impl<'de> Deserializer<'de> for Members<'_> {
        type Error = value::Error;

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            members: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, value::Error> {
            self.0.extend(members);
            Err(value::Error::custom("that is all"))
        }

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, value::Error> {
            Err(value::Error::custom("no struct"))
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    fn members<'de, T: Deserialize<'de>>() -> Vec<&'static str> {
        let mut members = vec![];
        assert!(T::deserialize(Members(&mut members)).is_err());
        members.retain(|member| !["key", "links", "link-sets"].contains(member));
        members.sort_unstable();
        members
    }

    #[test]
    fn every_kind_has_the_fields_that_the_model_has() {
        for (kind, members) in [
            (&global::KIND, members::<api::Global>()),
            (&aci::KIND, members::<api::AciGw>()),
            (&tenant::KIND, members::<api::Tenant>()),
            (&network::KIND, members::<api::Network>()),
            (&profile::KIND, members::<api::Netprofile>()),
            (&contracts::KIND, members::<api::ExtContractsGroup>()),
            (&policy::KIND, members::<api::Policy>()),
            (&rule::KIND, members::<api::Rule>()),
            (&group::KIND, members::<api::EndpointGroup>()),
            (&service::KIND, members::<api::ServiceLb>()),
            (&app_profile::KIND, members::<api::AppProfile>()),
            (&bgp::KIND, members::<api::Bgp>()),
        ] {
            let mut fields: Vec<_> = kind.fields.iter().map(|field| field.name).collect();
            fields.sort_unstable();
            assert_eq!(fields, members, "{}", kind.name());
        }
    }

    #[test]
    fn the_meaning_leaves_out_what_netmaster_adds() {
        let stored = json!({"key": "t:p:1", "ruleId": "1", "policyName": "p", "tenantName": "t", "direction": "in",
            "fromNetwork": "n", "fromIpAddress": "10.1.1.0/24", "port": 0, "links": {}});
        let meant = json!({"tenantName": "t", "policyName": "p", "ruleId": "1", "priority": 1, "direction": "in",
            "fromNetwork": "n"});
        assert_eq!(Value::Object(rule::KIND.meaning(&stored)), meant);
    }

    #[test]
    fn what_a_kind_refers_to_is_before_it() {
        for kind in KINDS {
            for refers in kind.fields.iter().filter_map(|field| field.refers) {
                let before = Kind::of(refers).is_some_and(|other| other.rank() < kind.rank());
                // A rule may name groups, which come after it: they have its policy.
                assert!(before || kind.of == ObjectType::Rule, "{} names a {}", kind.name(), refers.as_str());
            }
        }
    }
}
