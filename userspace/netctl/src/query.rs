//! JSONPath queries (RFC 9535) of `-o jsonpath=...` and `-o custom-columns=...`, also in the notation of kubectl.

use std::str::FromStr;

use serde_json::Value;
use serde_json_path::JsonPath;

/// A query. `.a.b`, `[0]` and `a.b` are short for `$.a.b`, `$[0]` and `$.a.b`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query(JsonPath);

impl FromStr for Query {
    type Err = String;

    fn from_str(text: &str) -> Result<Query, String> {
        let path = match text.trim() {
            text if text.starts_with('$') => text.to_owned(),
            "." | "" => "$".to_owned(),
            text if text.starts_with(['.', '[']) => format!("${text}"),
            text => format!("$.{text}"),
        };
        JsonPath::parse(&path).map(Query).map_err(|error| format!("JSONPath {path}: {error}"))
    }
}

impl Query {
    /// The values that the query selects, as text.
    pub fn texts(&self, value: &Value) -> Vec<String> {
        self.0.query(value).into_iter().map(text).collect()
    }
}

/// Strings as they are, null as nothing, other values as JSON.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The text of `-o jsonpath=...`: one query, or text with queries and quoted strings in braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Template {
    /// Each value is a line.
    Query(Query),
    /// The values of a query are separated by blanks, as by kubectl.
    Parts(Vec<Part>),
}

/// Part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text to print.
    Text(String),
    /// Values to print.
    Query(Query),
}

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Template, String> {
        if !text.contains('{') {
            return text.parse().map(Template::Query);
        }
        let (mut parts, mut rest) = (vec![], text);
        while let Some((before, after)) = rest.split_once('{') {
            let end = closing(after).ok_or_else(|| format!("{{{after}: no closing brace"))?;
            let (inside, after) = after.split_at(end);
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(part(inside.trim())?);
            rest = after.strip_prefix('}').unwrap_or(after);
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Template::Parts(parts))
    }
}

/// Position of the brace that closes, outside of quoted strings.
fn closing(text: &str) -> Option<usize> {
    let (mut quote, mut escaped) = (None, false);
    text.char_indices().find_map(|(at, c)| {
        match (quote, c) {
            (None, '}') => return Some(at),
            (None, '"' | '\'') => quote = Some(c),
            (Some(_), '\\') if !escaped => {
                escaped = true;
                return None;
            }
            (Some(open), c) if c == open && !escaped => quote = None,
            _ => {}
        }
        escaped = false;
        None
    })
}

fn part(inside: &str) -> Result<Part, String> {
    if inside.starts_with('"') {
        let text = serde_json::from_str(inside).map_err(|error| format!("{{{inside}}}: {error}"))?;
        return Ok(Part::Text(text));
    }
    match inside.split_whitespace().next() {
        Some(word @ ("range" | "end")) => {
            Err(format!("{{{word}}} is not supported; use a query without braces, or custom-columns"))
        }
        _ => inside.parse().map(Part::Query),
    }
}

impl Template {
    /// The text of a value, which ends with a newline unless it is empty.
    pub fn render(&self, value: &Value) -> String {
        let mut text = match self {
            Template::Query(query) => query.texts(value).join("\n"),
            Template::Parts(parts) => {
                let part = |part: &Part| match part {
                    Part::Text(text) => text.clone(),
                    Part::Query(query) => query.texts(value).join(" "),
                };
                parts.iter().map(part).collect()
            }
        };
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text
    }
}

/// Splits `QUERY=VALUE` or `QUERY`. A query in braces may contain equals signs; otherwise the last one separates.
pub fn comparison(text: &str) -> Result<(Query, Option<String>), String> {
    let (query, value) = match text.strip_prefix('{') {
        Some(inside) => {
            let end = closing(inside).ok_or_else(|| format!("{text}: no closing brace"))?;
            let (query, rest) = inside.split_at(end);
            match rest.strip_prefix("}=") {
                Some(value) => (query, Some(value)),
                None if rest == "}" => (query, None),
                None => return Err(format!("{text}: expected {{QUERY}}=VALUE")),
            }
        }
        None => match text.rsplit_once('=') {
            Some((query, value)) => (query, Some(value)),
            None => (text, None),
        },
    };
    Ok((query.parse()?, value.map(str::to_owned)))
}

/// The columns of `-o custom-columns=TITLE:QUERY,...`: titles and queries about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns(pub Vec<(String, Query)>);

impl FromStr for Columns {
    type Err = String;

    fn from_str(text: &str) -> Result<Columns, String> {
        let column = |text: &str| match text.split_once(':') {
            Some((title, query)) if !title.is_empty() => Ok((title.to_owned(), query.parse()?)),
            _ => Err(format!("column {text:?}: expected TITLE:QUERY such as NAME:.networkName")),
        };
        split(text).into_iter().map(column).collect::<Result<_, String>>().map(Columns)
    }
}

/// Splits at commas outside of brackets and quotes.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut quote) = (0_usize, None);
    text.split(|c: char| {
        match (quote, c) {
            (None, '[' | '(') => depth += 1,
            (None, ']' | ')') => depth = depth.saturating_sub(1),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            _ => {}
        }
        c == ',' && depth == 0 && quote.is_none()
    })
    .collect()
}

impl Columns {
    /// The cells of an object; several values are joined by commas.
    pub fn cells(&self, object: &Value) -> Vec<String> {
        let cell = |(_, query): &(String, Query)| match query.texts(object) {
            texts if texts.is_empty() => "<none>".to_owned(),
            texts => texts.join(","),
        };
        self.0.iter().map(cell).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn networks() -> Value {
        json!([
            {"networkName": "a", "pktTag": 1, "policies": ["x", "y"], "cfgd.tag": "t,{}"},
            {"networkName": "b", "pktTag": 2, "gateway": null},
        ])
    }

    #[test]
    fn templates_are_rendered() {
        for (template, expected) in [
            ("$[*].networkName", "a\nb\n"),
            ("[*].networkName", "a\nb\n"),
            ("{[*].networkName}", "a b\n"),
            ("{$[0].networkName}: {[0].policies[*]}{\"\\n\"}", "a: x y\n"),
            ("names {[*].networkName} end\n", "names a b end\n"),
            ("$[?@.pktTag > 1].networkName", "b\n"),
            ("$[?match(@.networkName, \"a|c\")].pktTag", "1\n"),
            ("$[0].policies", "[\"x\",\"y\"]\n"),
            ("{[0]['cfgd.tag']}", "t,{}\n"),
            ("{[?@['cfgd.tag'] == 't,{}'].pktTag}", "1\n"),
            ("$[1].gateway", ""),
            ("$[*].nothing", ""),
        ] {
            let rendered = template.parse::<Template>().unwrap().render(&networks());
            assert_eq!(rendered, expected, "{template}");
        }
    }

    #[test]
    fn columns_are_cells() {
        let columns: Columns =
            "NAME:.networkName,TAG:pktTag,P:.policies[*],ONE:$['policies'][0,1],X:['cfgd.tag']"
                .parse()
                .unwrap();
        assert_eq!(columns.cells(&networks()[0]), ["a", "1", "x,y", "x,y", "t,{}"]);
        assert_eq!(columns.cells(&networks()[1]), ["b", "2", "<none>", "<none>", "<none>"]);
    }

    #[test]
    fn comparisons_are_split_outside_of_queries() {
        for (text, query, value) in [
            (".a=b", "$.a", Some("b")),
            ("{.a}=b=c", "$.a", Some("b=c")),
            ("{$[?@.a == 'x}']}=", "$[?@.a == 'x}']", Some("")),
            ("{.a}", "$.a", None),
            (".a", "$.a", None),
        ] {
            let expected = (query.parse().unwrap(), value.map(str::to_owned));
            assert_eq!(comparison(text).unwrap(), expected, "{text}");
        }
        assert!(comparison("{.a}b").is_err() && comparison("{.a").is_err());
    }

    #[test]
    fn errors_name_the_query() {
        for (template, words) in [
            ("{.a", "no closing brace"),
            ("{range [*]}{.a}{end}", "{range} is not supported"),
            ("$[", "JSONPath $["),
            ("{\"x}", "no closing brace"),
        ] {
            let error = template.parse::<Template>().unwrap_err();
            assert!(error.contains(words), "{template}: {error}");
        }
        for columns in ["NAME", ":.x", "NAME:.a,B", "NAME:.a["] {
            assert!(columns.parse::<Columns>().is_err(), "{columns}");
        }
    }
}
