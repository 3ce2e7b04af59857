//! A recorded conversation. What the original was recorded to answer is `cargo xtask replay`'s; this one holds what
//! clients rely on, and what differs on purpose.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::{call, get, make_network, post};
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
fn the_conversation_is_as_recorded() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::embedded(store.path());
    let mut wrong = Vec::new();
    for (n, line) in include_str!("../golden/conversation.jsonl").lines().enumerate() {
        let step: Step = serde_json::from_str(line).unwrap();
        let body = match &step.body {
            // A text is sent as it is: not every body is JSON.
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

#[test]
fn what_no_transaction_holds_is_refused_whole() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::embedded(store.path());
    let to = master.address;
    make_network(to, "n", "10.1.0.0/24");
    let body = json!({"tenantName": "default", "policyName": "p"});
    post(to, "/api/v1/policys/default:p/", &body).unwrap().good();
    for id in 0..63 {
        let body = json!({"tenantName": "default", "policyName": "p", "ruleId": id.to_string(),
            "direction": "in", "protocol": "udp", "port": 1 + id, "action": "allow"});
        post(to, &format!("/api/v1/rules/default:p:{id}/"), &body).unwrap().good();
    }
    let group = json!({"tenantName": "default", "groupName": "g", "networkName": "n", "policies": ["p"]});
    let refused = post(to, "/api/v1/endpointGroups/default:g/", &group).unwrap().bad();
    assert!(
        refused.starts_with("this changes 133 keys, and one transaction of the store has at most 127"),
        "{refused}"
    );
    assert_eq!(get(to, "/api/v1/endpointGroups/default:g/").unwrap().bad(), "endpointGroup not found");
    let policy = get(to, "/api/v1/policys/default:p/").unwrap().good();
    assert_eq!(policy["link-sets"]["EndpointGroups"], Value::Null);
}
