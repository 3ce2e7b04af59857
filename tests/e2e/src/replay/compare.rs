//! JSON by value, texts by their first line.

use serde_json::Value;

use super::recording::{Call, Response};
use crate::http::Answer;

/// What differs, in lines ready to print.
pub(super) fn compare(call: &Call, answer: &Result<Answer, String>) -> Result<(), String> {
    let (status, json, body) = match &call.response {
        Response::Dropped => (0, false, "(connection dropped)"),
        Response::Answered { status, json, body } => (*status, *json, body.as_str()),
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            return Err(format!("    want: {status} {}\n    have: no answer: {error}", body.trim()));
        }
    };
    let same = answer.status == status
        && if json { same_json(body, &answer.body) } else { same_text(body, &answer.body) };
    if same {
        return Ok(());
    }
    Err(format!(
        "    want: {status} {}\n    have: {} {}",
        body.trim_end(),
        answer.status,
        if json && answer.status == status { answer.body.trim_end() } else { answer.first_line() }
    ))
}

pub(super) fn same_text(want: &str, have: &str) -> bool {
    want.lines().next() == have.lines().next()
}

pub(super) fn same_json(want: &str, have: &str) -> bool {
    match (serde_json::from_str(want), serde_json::from_str(have)) {
        (Ok(want), Ok(have)) => normalized(want) == normalized(have),
        _ => false,
    }
}

/// The original lists objects in the random order of Go's maps, so lists of objects are compared as sets.
fn normalized(value: Value) -> Value {
    match value {
        Value::Array(items) => {
            let objects = items.iter().all(Value::is_object);
            let mut items: Vec<_> = items.into_iter().map(normalized).collect();
            if objects {
                items.sort_by_key(Value::to_string);
            }
            Value::Array(items)
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> =
                fields.into_iter().map(|(name, value)| (name, normalized(value))).collect();
            fields.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(fields.into_iter().collect())
        }
        value => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_compared_by_value_and_lists_of_objects_as_sets() {
        assert!(same_json(r#"[{"a":1,"b":[]},{"a":2}]"#, r#"[{"a":2},{"b":[],"a":1}]"#));
        assert!(!same_json(r#"{"ip":["10.0.0.1",""]}"#, r#"{"ip":["","10.0.0.1"]}"#));
        assert!(!same_json("{}", "{"));
        assert!(!same_json(r#"{"a":1}"#, r#"{"a":1,"b":null}"#));
    }

    #[test]
    fn texts_are_compared_by_their_first_line() {
        assert!(same_text("key not found\n", "key not found\ngithub.com/x [y.go 7]\n"));
        assert!(!same_text("EOF\n", "EOFs\n"));
    }
}
