//! JSONPath queries (RFC 9535) of `-o jsonpath=...` and `-o custom-columns=...`, also in the notation of kubectl.

use std::str::FromStr;

use serde_json::Value;
use serde_json_path::JsonPath;

/// Largest depth of brackets and parentheses. The time that the parser takes may double with each.
const MAX_DEPTH: usize = 12;

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
        check(&path).map_err(|why| format!("JSONPath {path}: {why}"))?;
        JsonPath::parse(&path).map(Query).map_err(|error| format!("JSONPath {path}: {error}"))
    }
}

/// Refuses what the parser does not survive: it panics at the end of some incomplete texts, and recurses without a limit.
fn check(path: &str) -> Result<(), String> {
    let mut scanner = Scanner::default();
    for c in path.chars() {
        scanner.is_syntax(c);
        if scanner.depth > MAX_DEPTH {
            return Err(format!("brackets and parentheses are nested deeper than {MAX_DEPTH}"));
        }
    }
    match scanner.quote {
        Some(quote) => Err(format!("no closing {quote}")),
        None => Ok(()),
    }
}

/// Position in a text with quoted strings, brackets and parentheses.
#[derive(Default)]
struct Scanner {
    /// Quote that ends the string.
    quote: Option<char>,
    is_escaped: bool,
    depth: usize,
}

impl Scanner {
    /// Goes on by a character. Returns whether it is outside of quoted strings.
    fn is_syntax(&mut self, c: char) -> bool {
        let Some(quote) = self.quote else {
            match c {
                '"' | '\'' => self.quote = Some(c),
                '[' | '(' => self.depth += 1,
                ']' | ')' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            return self.quote.is_none();
        };
        if !self.is_escaped && c == quote {
            self.quote = None;
        }
        self.is_escaped = !self.is_escaped && c == '\\';
        false
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
    let mut scanner = Scanner::default();
    text.char_indices().find(|(_, c)| scanner.is_syntax(*c) && *c == '}').map(|(at, _)| at)
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
    /// The text for a value, which ends with a newline unless it is empty. `shown` gives the form in which the texts that
    /// queries select are shown; the text of the template is not changed.
    pub fn render(&self, value: &Value, shown: impl Fn(&str) -> String) -> String {
        let texts = |query: &Query| query.texts(value).iter().map(|text| shown(text)).collect::<Vec<_>>();
        let mut text = match self {
            Template::Query(query) => texts(query).join("\n"),
            Template::Parts(parts) => {
                let part = |part: &Part| match part {
                    Part::Text(text) => text.clone(),
                    Part::Query(query) => texts(query).join(" "),
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
    let mut scanner = Scanner::default();
    text.split(|c: char| scanner.is_syntax(c) && c == ',' && scanner.depth == 0).collect()
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
            let rendered = template.parse::<Template>().unwrap().render(&networks(), str::to_owned);
            assert_eq!(rendered, expected, "{template}");
        }
    }

    #[test]
    fn selected_texts_are_shown_in_another_form_than_the_text_of_the_template() {
        let template: Template = "{[0].networkName}{\"\\t\"}{[0].policies[*]}a".parse().unwrap();
        assert_eq!(template.render(&networks(), |text| text.to_uppercase()), "A\tX Ya\n");
        let query: Template = "$[*].networkName".parse().unwrap();
        assert_eq!(query.render(&networks(), |text| text.repeat(2)), "aa\nbb\n");
    }

    #[test]
    fn unicode_is_selected() {
        let value = json!({"日本": {"é": "ü"}, "a'b": "quote", "\u{1f600}": "smile"});
        for (query, expected) in [
            ("$.日本.é", "ü"),
            ("日本.é", "ü"),
            ("$['日本']['\\u00e9']", "ü"),
            ("$[\"\\uD83D\\uDE00\"]", "smile"),
            ("$['a\\'b']", "quote"),
            ("$[?@.é == 'ü'].é", "ü"),
        ] {
            assert_eq!(query.parse::<Query>().unwrap().texts(&value), [expected], "{query}");
        }
        let columns: Columns = "É:$['a\\'b'],B:.日本.é".parse().unwrap();
        assert_eq!(columns.cells(&value), ["quote", "ü"]);
    }

    #[test]
    fn malformed_queries_are_refused() {
        let whole = [
            "$['日本', \"\\u00e9\", 'a\\'b', -1, 1:2:-1, *]",
            "$[?(@.a == 'x' && !@.b) || match(@.c, \"[a-z]+\")]..d[?length(@.e) > 1.5e3]",
            "$[\"\\uD83D\\uDE00\"]",
        ];
        for query in whole {
            query.parse::<Query>().unwrap();
            // Cut off anywhere, the text is a query or is refused.
            for (at, _) in query.char_indices() {
                let _ = query[..at].parse::<Query>();
                let _ = format!("{{{}", &query[..at]).parse::<Template>();
                let _ = format!("A:{}", &query[..at]).parse::<Columns>();
            }
        }
        for query in [
            "$[\"\\u",
            "$['\\u",
            "$[\"\\uD",
            "$[\"\\uD83D\\u",
            "$[\"\\uD83D\\u\"]",
            "$[\"\\uD83D\"]",
            "$['\\x']",
            "$['a",
            "$['a\\']",
            "$[99999999999999999999]",
            "$[?@.a == 1e999]",
            "$[?unknown(@.a)]",
            "$[?length(@.a, 1) == 1]",
            "$[?@.a ==]",
            "$[",
            "$]",
            "$.",
            "$..",
            "$.a b",
            "@.a",
            "$[?(@.a]",
        ] {
            let error = query.parse::<Query>().unwrap_err();
            assert!(error.starts_with("JSONPath $"), "{query}: {error}");
        }
    }

    #[test]
    fn nesting_is_limited() {
        let nested = |open: &str, close: &str, depth: usize| {
            format!("$[?{}@.a{}]", open.repeat(depth), close.repeat(depth))
        };
        for (open, close) in [("(", ")"), ("@[?", "]"), ("count(@[?", "]) > 0")] {
            let levels = open.matches(['(', '[']).count();
            let most = (MAX_DEPTH - 1) / levels;
            nested(open, close, most).parse::<Query>().unwrap();
            for depth in [most + 1, 20_000] {
                let error = nested(open, close, depth).parse::<Query>().unwrap_err();
                assert!(error.ends_with("nested deeper than 12"), "{open} {depth}");
            }
            assert!(open.repeat(20_000).parse::<Query>().is_err());
        }
        let long = format!("$[?{}]", vec!["@.a == ')]'"; 1_000].join(" || "));
        long.parse::<Query>().unwrap();
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
