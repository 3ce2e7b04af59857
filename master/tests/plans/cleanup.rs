//! Cleanup of endpoints.

use netmaster::plugin::{Cleanup, clean_up};
use serde_json::json;

use crate::fixture::Fixture;

fn clean(fixture: &mut Fixture, tenant: &str, kind: &str, name: &str) -> Result<Vec<String>, String> {
    let found = Cleanup::read(tenant, kind, name).and_then(|cleanup| cleanup.find(&fixture.cache));
    let found = found.map_err(|problem| problem.text)?;
    fixture.run(|staged| clean_up(&found, staged)).unwrap();
    Ok(found)
}

#[test]
fn only_selected_endpoints_are_deleted_and_their_addresses_freed() {
    let mut fixture = Fixture::new();
    fixture.put("tenants", "t", &json!({"tenantName": "t"})).unwrap();
    fixture.network("net", "10.1.0.0/24", json!({}));
    fixture.network("net2", "10.2.0.0/24", json!({}));
    fixture.group("web", "net", "10.1.0.100-10.1.0.101");
    let fresh = (fixture.state("net"), fixture.group_state("web"));
    for (network, id, group) in
        [("net", "c1", ""), ("net", "c13", "web"), ("net", "c2", "web"), ("net2", "c1", "")]
    {
        fixture.create(network, id, group, "", "").unwrap();
    }
    fixture.create("net2", "", "", "", "").unwrap();
    let none = |what: &str, tenant: &str| Err(format!("no endpoint to clean up: {what} in tenant {tenant}"));
    assert_eq!(clean(&mut fixture, "default", "ep", "c"), none("Endpoint c", "default"));
    assert_eq!(clean(&mut fixture, "t", "ep", "c1"), none("Endpoint c1", "t"));
    assert_eq!(clean(&mut fixture, "t", "group", "web"), none("EPG web", "t"));
    assert_eq!(clean(&mut fixture, "default", "net", "ne"), none("Network ne", "default"));
    assert_eq!(
        clean(&mut fixture, "default", "all", "x"),
        Err("cannot clean up all; try net, group or ep".into())
    );
    let long = "x".repeat(300);
    let long = long.as_str();
    for (part, [tenant, kind, name]) in
        [("tenant", [long, "ep", "c1"]), ("kind", ["t", long, "c1"]), ("name", ["t", "ep", long])]
    {
        let refused = Err(format!("{part} has 300 bytes; the limit is 256"));
        assert_eq!(clean(&mut fixture, tenant, kind, name), refused);
    }

    let gone = ["net.default-c1", "net2.default-c1"].map(String::from);
    assert_eq!(clean(&mut fixture, "default", "ep", "c1"), Ok(gone.to_vec()));
    let gone = ["net.default-c13", "net.default-c2"].map(String::from);
    assert_eq!(clean(&mut fixture, "default", "group", "web"), Ok(gone.to_vec()));
    assert_eq!((fixture.state("net"), fixture.group_state("web")), fresh);
    fixture.create("net", "c4", "", "", "").unwrap();
    assert_eq!(clean(&mut fixture, "default", "net", "net"), Ok(vec!["net.default-c4".into()]));
    assert!(clean(&mut fixture, "default", "net", "net2").is_err(), "the node's own endpoint is kept");
    assert_eq!(clean(&mut fixture, "default", "ep", "h-native-intf"), Ok(vec!["h-native-intf".into()]));
    assert!(fixture.endpoints().is_empty());
    assert_eq!(fixture.loaded().content(), fixture.content());
}
