//! A recorded conversation with everything that clients rely on, including intended differences
//! from the original. Recordings of the original are checked by `cargo xtask replay`.

use serde::Deserialize;
use serde_json::Value;

use crate::client::call;
use crate::master::Master;

#[derive(Deserialize)]
struct Step {
    method: String,
    path: String,
    #[serde(default)]
    body: Option<Value>,
    status: u16,
    answer: String,
}

#[test]
fn responses_match_the_recorded_conversation() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::embedded(store.path());
    let mut wrong = Vec::new();
    for (n, line) in include_str!("../golden/conversation.jsonl").lines().enumerate() {
        let step: Step = serde_json::from_str(line).unwrap();
        let body = match &step.body {
            // Text bodies are sent unchanged: not every body is JSON.
            Some(Value::String(text)) => text.clone(),
            Some(body) => body.to_string(),
            None => String::new(),
        };
        let headers = [("Content-Type", "application/json")];
        let answer = call(master.address, &step.method, &step.path, &headers, &body).unwrap();
        if (answer.status, answer.body.trim_end()) != (step.status, step.answer.as_str()) {
            wrong.push(format!(
                "line {}: {} {}: {} {}",
                n + 1,
                step.method,
                step.path,
                answer.status,
                answer.body
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
