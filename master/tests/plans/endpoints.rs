//! Deletions of endpoints that are carried out late.

use netmaster::access::Scope;
use netmaster::plugin::{Call, CallKind};
use netmaster::problem::Kind;
use serde_json::{Value, json};

use crate::fixture::Fixture;

const RECORD: &str = "/contiv.io/state/eps/net.default-a";

fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.network("net", "10.1.0.0/24", json!({}));
    fixture.create("net", "a", "", "", "").unwrap();
    fixture
}

fn revision(fixture: &Fixture) -> i64 {
    fixture.stored(RECORD).mod_revision
}

fn deletion(revision: i64) -> Value {
    json!({"TenantName": "default", "NetworkName": "net", "EndpointID": "a", "ModRevision": revision})
}

/// Deletes the endpoint if its record has this revision.
fn delete(fixture: &mut Fixture, revision: i64) -> Result<(), Kind> {
    fixture.call("deleteEndpoint", &deletion(revision)).map(drop).map_err(|problem| problem.kind)
}

/// The agent has sent it before the next ADD of the container, and netmaster carries it out afterwards.
#[test]
fn a_deletion_from_before_the_last_creation_changes_nothing() {
    let mut fixture = fixture();
    let (before, record) = (revision(&fixture), fixture.stored(RECORD).value);
    // It is returned unchanged, and has another revision.
    assert_eq!(fixture.create("net", "a", "", "", "").unwrap().0, "10.1.0.1");
    assert_eq!(fixture.stored(RECORD).value, record);
    let refused = fixture.call("deleteEndpoint", &deletion(before)).unwrap_err();
    let (now, id) = (revision(&fixture), "net.default-a");
    let text = format!("ModRevision {before}: endpoint {id}: its record has revision {now}; read it again");
    assert_eq!((refused.kind, refused.text), (Kind::Precondition, text));
    // The agent had found no record.
    assert_eq!(delete(&mut fixture, 0), Err(Kind::Precondition));
    assert_eq!(fixture.loaded().content(), fixture.content());
    assert_eq!(delete(&mut fixture, now), Ok(()));
    for revision in [now, 0] {
        assert_eq!(delete(&mut fixture, revision), Err(Kind::NotFound));
    }
    assert_eq!(fixture.keys("/contiv.io/state/eps/"), [""; 0]);
    assert_eq!(fixture.create("net", "a", "", "", "").unwrap().0, "10.1.0.1");
    assert_eq!(delete(&mut fixture, now), Err(Kind::Precondition));
    // The agent of an earlier release sends no revision.
    fixture.remove("net", "a").unwrap();
}

/// The other node refuses to attach the pod.
#[test]
fn a_creation_by_another_node_does_not_change_the_record() {
    let mut fixture = fixture();
    let before = revision(&fixture);
    let config = json!({"Container": "a", "Host": "other"});
    let body = json!({"TenantName": "default", "NetworkName": "net", "ConfigEP": config});
    assert_eq!(fixture.call("createEndpoint", &body).unwrap()["EndpointConfig"]["homingHost"], "h");
    assert_eq!(revision(&fixture), before);
}

#[test]
fn a_deletion_after_a_creation_in_one_transaction_changes_nothing() {
    let mut fixture = fixture();
    let before = revision(&fixture);
    let config = json!({"Container": "a", "Host": "h"});
    let create = json!({"TenantName": "default", "NetworkName": "net", "ConfigEP": config});
    let call = |name: &str, body: &Value| {
        Call::decode(CallKind::by_name(name).unwrap(), body.to_string().as_bytes()).unwrap()
    };
    let (create, delete) = (call("createEndpoint", &create), call("deleteEndpoint", &deletion(before)));
    let planned = fixture.run(|staged| {
        create.plan(&Scope::All, staged)?;
        let refused = delete.plan(&Scope::All, staged).unwrap_err();
        Ok(refused.text.into_bytes())
    });
    assert_eq!(
        String::from_utf8(planned.unwrap()).unwrap(),
        format!("ModRevision {before}: endpoint net.default-a: another request changes it; read it again")
    );
    assert!(revision(&fixture) > before);
}

/// The cache has the last valid version of it, which the creation returns.
#[test]
fn a_creation_renews_an_invalid_record() {
    let mut fixture = fixture();
    fixture.edit(RECORD, Some(&json!("{")));
    let update = fixture.changes.last().unwrap().clone();
    fixture.cache.apply_update(&update);
    let before = revision(&fixture);
    for number in 1..3 {
        assert_eq!(fixture.create("net", "a", "", "", "").unwrap().0, "10.1.0.1");
        assert_eq!((fixture.value(RECORD), revision(&fixture)), (Some(json!("{")), before + number));
        assert_eq!(delete(&mut fixture, before), Err(Kind::Precondition));
    }
    // The watch reports it later.
    for update in fixture.changes.clone() {
        fixture.cache.apply_update(&update);
    }
    assert_eq!(delete(&mut fixture, before + 1), Err(Kind::Precondition));
    assert_eq!(delete(&mut fixture, before + 2), Ok(()));
    assert_eq!(fixture.keys("/contiv.io/state/eps/"), [""; 0]);
}

/// An agent of an earlier release sends the deletion without a revision.
#[test]
fn an_invalid_record_is_deleted_after_a_creation_in_one_transaction() {
    let mut fixture = fixture();
    let before = revision(&fixture);
    fixture.edit(RECORD, Some(&json!("{")));
    let update = fixture.changes.last().unwrap().clone();
    fixture.cache.apply_update(&update);
    let config = json!({"Container": "a", "Host": "h"});
    let create = json!({"TenantName": "default", "NetworkName": "net", "ConfigEP": config});
    let call = |name: &str, body: &Value| {
        Call::decode(CallKind::by_name(name).unwrap(), body.to_string().as_bytes()).unwrap()
    };
    let mut without = deletion(0);
    without.as_object_mut().unwrap().remove("ModRevision");
    let (create, conditional) = (call("createEndpoint", &create), call("deleteEndpoint", &deletion(before)));
    let delete = call("deleteEndpoint", &without);
    let planned = fixture.run(|staged| {
        create.plan(&Scope::All, staged)?;
        assert_eq!(conditional.plan(&Scope::All, staged).unwrap_err().kind, Kind::Precondition);
        delete.plan(&Scope::All, staged)
    });
    planned.unwrap();
    assert_eq!(fixture.keys("/contiv.io/state/eps/"), [""; 0]);
}

#[test]
fn an_invalid_record_of_the_given_revision_is_deleted() {
    let mut fixture = fixture();
    fixture.break_key(RECORD, Some(&json!("{")));
    let mut fixture = fixture.loaded();
    let now = revision(&fixture);
    assert_eq!(delete(&mut fixture, now - 1), Err(Kind::Precondition));
    assert_eq!(delete(&mut fixture, now), Ok(()));
    assert_eq!(fixture.keys("/contiv.io/state/eps/"), [""; 0]);
}
