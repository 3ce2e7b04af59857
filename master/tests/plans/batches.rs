//! Plans that share a transaction.

use std::collections::BTreeMap;

use contiv_model::event::Event;
use netmaster::access::Scope;
use netmaster::plugin::{Call, CallKind};
use serde_json::json;

use crate::fixture::Fixture;

/// The labels of an endpoint may have 64 KiB, and etcd accepts 1.5 MB in one transaction.
#[test]
fn a_transaction_is_full_by_its_texts() {
    let mut fixture = Fixture::new();
    fixture.network("net", "10.1.0.0/24", json!({}));
    for n in 0..40 {
        fixture.create("net", &format!("e{n}"), "", "", "").unwrap();
    }
    let labels: BTreeMap<String, String> = (0..60).map(|n| (format!("{n:04}"), "v".repeat(1020))).collect();
    let from = fixture.changes.len();
    let planned = fixture.run(|staged| {
        let mut n = 0;
        while n < 40 && !staged.is_full() {
            let body = json!({"Event": "start", "Tenant": "default", "Network": "net", "EndpointID": format!("e{n}"),
                "ContainerID": format!("c{n}"), "Labels": labels});
            let kind = CallKind::by_name("updateEndpoint").unwrap();
            Call::decode(kind, body.to_string().as_bytes())?.plan(&Scope::All, staged)?;
            n += 1;
        }
        Ok(n.to_string().into_bytes())
    });
    let planned: usize = String::from_utf8(planned.unwrap()).unwrap().parse().unwrap();
    let values = fixture.changes[from..].iter().map(|update| match &update.event {
        Event::Apply(_, kv) => kv.value.len(),
        _ => 0,
    });
    let bytes: usize = values.sum();
    assert!((10..40).contains(&planned) && bytes < 1 << 20, "{planned} plans, {bytes} bytes");
}
