//! What a request may hold: one description per object, from which it is decoded and checked.

mod checks;
pub mod format;

pub use format::Form;
use serde_json::{Map, Value};

/// A struct type of the original, as its JSON decoder and its validator see it.
#[derive(Debug)]
pub struct Shape {
    /// With its package, as error texts spell it: `contivModel.Tenant`.
    pub go_type: &'static str,
    /// In alphabetical order: the order in which they are checked.
    pub members: &'static [Member],
}

/// A member of a struct.
#[derive(Debug)]
pub struct Member {
    /// As it is spelled when written.
    pub name: &'static str,
    pub kind: Type,
    pub rule: Rule,
}

/// The type of a member.
#[derive(Clone, Copy, Debug)]
pub enum Type {
    Text,
    Int,
    Texts,
    /// `map[string]string`.
    TextMap,
    Struct(&'static Shape),
    /// `map[string]` of a struct type.
    StructMap(&'static Shape),
}

/// What a member's value must be like. An absent text is checked as the empty one.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    Any,
    /// Length in bytes at most `max`, then `form`.
    Text {
        max: usize,
        form: Form,
    },
    AtMost(i64),
    Within {
        min: i64,
        max: i64,
    },
}

impl Member {
    pub const fn any(name: &'static str, kind: Type) -> Member {
        Member { name, kind, rule: Rule::Any }
    }

    pub const fn text(name: &'static str, max: usize, form: Form) -> Member {
        Member { name, kind: Type::Text, rule: Rule::Text { max, form } }
    }

    /// One of these, of which the empty one may be left out.
    pub const fn one_of(name: &'static str, words: &'static [&'static str]) -> Member {
        Member { name, kind: Type::Text, rule: Rule::Text { max: usize::MAX, form: Form::Words(words) } }
    }

    pub const fn int(name: &'static str, max: i64) -> Member {
        Member { name, kind: Type::Int, rule: Rule::AtMost(max) }
    }

    pub const fn range(name: &'static str, min: i64, max: i64) -> Member {
        Member { name, kind: Type::Int, rule: Rule::Within { min, max } }
    }

    fn check(&self, object: &Map<String, Value>) -> Result<(), String> {
        let value = object.get(self.name);
        match self.rule {
            Rule::Any => Ok(()),
            Rule::Text { max, form } => match value.and_then(Value::as_str).unwrap_or_default() {
                text if text.len() > max => Err(format!("{} string too long", self.name)),
                text if !form.holds(text) => Err(format!("{} string invalid format", self.name)),
                _ => Ok(()),
            },
            Rule::AtMost(max) => self.within(value, i64::MIN, max),
            Rule::Within { min, max } => self.within(value, min, max),
        }
    }

    fn within(&self, value: Option<&Value>, min: i64, max: i64) -> Result<(), String> {
        match value.and_then(Value::as_i64).unwrap_or_default() {
            n if n < min || n > max => Err(format!("{} Value Out of bound", self.name)),
            _ => Ok(()),
        }
    }
}

impl Shape {
    /// The first rule that `object` breaks, in the original's words.
    pub fn check(&self, object: &Map<String, Value>) -> Result<(), String> {
        self.members.iter().try_for_each(|member| member.check(object))
    }
}

/// `modeldb.Link`.
pub static LINK: Shape = Shape {
    go_type: "modeldb.Link",
    members: &[Member::any("type", Type::Text), Member::any("key", Type::Text)],
};
