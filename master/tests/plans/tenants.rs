//! Tenants and what belongs to them.

use contiv_store::Guard;
use netmaster::access::Scope;
use netmaster::cache::StagedTxn;
use netmaster::objects::{Cluster, Type};
use serde_json::{Value, json};

use crate::fixture::Fixture;

fn with_tenant() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.put("tenants", "blue", &json!({"tenantName": "blue"})).unwrap();
    fixture
}

fn contracts() -> Value {
    json!({"tenantName": "blue", "contractsGroupName": "c", "contractsType": "provided",
        "contracts": ["uni/tn-blue/brc-x"]})
}

/// A new tenant of the name would have the contracts.
#[test]
fn a_tenant_with_contracts_groups_is_not_deleted() {
    let mut fixture = with_tenant();
    fixture.put("extContractsGroups", "blue:c", &contracts()).unwrap();
    let has = "cannot delete blue has 1 external contracts groups";
    assert_eq!(fixture.delete("tenants", "blue").unwrap_err().text, has);
    fixture = fixture.loaded();
    assert_eq!(fixture.delete("tenants", "blue").unwrap_err().text, has);
    fixture.delete("extContractsGroups", "blue:c").unwrap();
    fixture.delete("tenants", "blue").unwrap();
    let refused = fixture.put("extContractsGroups", "blue:c", &contracts()).unwrap_err().text;
    assert_eq!(refused, "Tenant blue not found");
}

#[test]
fn contracts_groups_are_not_created_if_the_tenant_is_deleted_meanwhile() {
    let fixture = with_tenant();
    let operations = Type::by_plural("extContractsGroups").unwrap().operations;
    let request = (operations.check)("blue:c", contracts().to_string().as_bytes()).unwrap();
    let mut staged = StagedTxn::new(&fixture.cache);
    (operations.put)(&request, &Scope::All, &Cluster::default(), &mut staged).unwrap();
    let (txn, _) = staged.finish().unwrap();
    let key = "/contiv.io/obj/modeldb/tenant/blue";
    let revision = fixture.stored(key).mod_revision;
    assert!(txn.guards.contains(&Guard::ModRevision { key: key.to_owned(), revision }), "{:?}", txn.guards);
}
