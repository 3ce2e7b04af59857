//! Cleanup of endpoints.

use netmaster::plugin::{Cleanup, clean_up};
use serde_json::json;

use crate::lab::Lab;

fn clean(lab: &mut Lab, tenant: &str, kind: &str, name: &str) -> Result<Vec<String>, String> {
    let found = Cleanup::read(tenant, kind, name).and_then(|cleanup| cleanup.find(&lab.cache));
    let found = found.map_err(|problem| problem.text)?;
    lab.run(|staged| clean_up(&found, staged)).unwrap();
    Ok(found)
}

#[test]
fn only_selected_endpoints_are_deleted_and_their_addresses_freed() {
    let mut lab = Lab::new();
    lab.put("tenants", "t", &json!({"tenantName": "t"})).unwrap();
    lab.network("net", "10.1.0.0/24", json!({}));
    lab.network("net2", "10.2.0.0/24", json!({}));
    lab.group("web", "net", "10.1.0.100-10.1.0.101");
    let fresh = (lab.state("net"), lab.group_state("web"));
    for (network, id, group) in
        [("net", "c1", ""), ("net", "c13", "web"), ("net", "c2", "web"), ("net2", "c1", "")]
    {
        lab.create(network, id, group, "", "").unwrap();
    }
    lab.create("net2", "", "", "", "").unwrap();
    let none = |what: &str, tenant: &str| Err(format!("no endpoint to clean up: {what} in tenant {tenant}"));
    assert_eq!(clean(&mut lab, "default", "ep", "c"), none("Endpoint c", "default"));
    assert_eq!(clean(&mut lab, "t", "ep", "c1"), none("Endpoint c1", "t"));
    assert_eq!(clean(&mut lab, "t", "group", "web"), none("EPG web", "t"));
    assert_eq!(clean(&mut lab, "default", "net", "ne"), none("Network ne", "default"));
    assert_eq!(
        clean(&mut lab, "default", "all", "x"),
        Err("cannot clean up all; try net, group or ep".into())
    );

    let gone = ["net.default-c1", "net2.default-c1"].map(String::from);
    assert_eq!(clean(&mut lab, "default", "ep", "c1"), Ok(gone.to_vec()));
    let gone = ["net.default-c13", "net.default-c2"].map(String::from);
    assert_eq!(clean(&mut lab, "default", "group", "web"), Ok(gone.to_vec()));
    assert_eq!((lab.state("net"), lab.group_state("web")), fresh);
    lab.create("net", "c4", "", "", "").unwrap();
    assert_eq!(clean(&mut lab, "default", "net", "net"), Ok(vec!["net.default-c4".into()]));
    assert!(clean(&mut lab, "default", "net", "net2").is_err(), "the node's own stays");
    assert_eq!(clean(&mut lab, "default", "ep", "h-native-intf"), Ok(vec!["h-native-intf".into()]));
    assert!(lab.endpoints().is_empty());
    assert_eq!(lab.loaded().content(), lab.content());
}
