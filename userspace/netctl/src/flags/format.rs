//! Output formats.

use std::{ffi::OsStr, str::FromStr};

use clap::{
    Arg, Command,
    builder::{PossibleValue, StringValueParser, TypedValueParser},
};

use crate::query::{Columns, Template};

/// Output format of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListFormat {
    /// The columns of the original.
    Table,
    /// More columns.
    Wide,
    /// A JSON array.
    Json,
    /// YAML.
    Yaml,
    /// Names, one on each line.
    Name,
    /// The values of queries about the JSON array.
    JsonPath(Template),
    /// A column for each query about an object.
    Columns(Columns),
}

/// Output format of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectFormat {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// The values of queries.
    JsonPath(Template),
}

const JSON_PATH: &str = "jsonpath=";
const COLUMNS: &str = "custom-columns=";

impl FromStr for ListFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<ListFormat, String> {
        Ok(match text {
            "table" => ListFormat::Table,
            "wide" => ListFormat::Wide,
            "name" => ListFormat::Name,
            _ => match (text.strip_prefix(COLUMNS), text.parse::<ObjectFormat>()) {
                (Some(columns), _) => ListFormat::Columns(columns.parse()?),
                (None, Ok(ObjectFormat::Json)) => ListFormat::Json,
                (None, Ok(ObjectFormat::Yaml)) => ListFormat::Yaml,
                (None, Ok(ObjectFormat::JsonPath(template))) => ListFormat::JsonPath(template),
                (None, Err(error)) if text.starts_with(JSON_PATH) => return Err(error),
                (None, Err(_)) => return Err(expected(&LIST)),
            },
        })
    }
}

impl FromStr for ObjectFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<ObjectFormat, String> {
        match (text, text.strip_prefix(JSON_PATH)) {
            ("json", _) => Ok(ObjectFormat::Json),
            ("yaml", _) => Ok(ObjectFormat::Yaml),
            (_, Some(template)) => template.parse().map(ObjectFormat::JsonPath),
            _ => Err(expected(&OBJECT)),
        }
    }
}

fn expected(names: &[&str]) -> String {
    format!("expected {}", names.join(", "))
}

const LIST: [&str; 7] = ["table", "wide", "json", "yaml", "name", JSON_PATH, COLUMNS];
const OBJECT: [&str; 3] = ["json", "yaml", JSON_PATH];

/// Parser of the format of a list.
pub(super) fn list() -> impl TypedValueParser<Value = ListFormat> {
    Parser { names: &LIST, parse: |text| text.parse() }
}

/// Parser of the format of an object.
pub(super) fn object() -> impl TypedValueParser<Value = ObjectFormat> {
    Parser { names: &OBJECT, parse: |text| text.parse() }
}

/// Parser that offers the names of the formats to the completion of shells.
#[derive(Clone)]
struct Parser<F> {
    names: &'static [&'static str],
    parse: fn(&str) -> Result<F, String>,
}

impl<F: Clone + Send + Sync + 'static> TypedValueParser for Parser<F> {
    type Value = F;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<F, clap::Error> {
        let parse = self.parse;
        StringValueParser::new().try_map(move |text| parse(&text)).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(|name| PossibleValue::new(*name))))
    }
}
