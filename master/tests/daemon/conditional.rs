//! Conditional requests and dry runs.

use std::net::SocketAddr;
use std::thread;

use serde_json::{Value, json};

use crate::client::{Answer, call, create_endpoint, delete, get, make_network, post};
use crate::master::Master;

const PATH: &str = "/api/v1/netprofiles/default:p/";

/// A burst of one kilobit is refused.
const KBIT: i64 = 10;

fn put(to: SocketAddr, burst: i64, headers: &[(&str, &str)]) -> Answer {
    let body = json!({"tenantName": "default", "profileName": "p", "burst": burst * KBIT});
    call(to, "POST", PATH, headers, &body.to_string()).unwrap()
}

fn tag(to: SocketAddr) -> String {
    get(to, PATH).unwrap().header("etag").unwrap().to_owned()
}

fn burst(answer: &Answer) -> i64 {
    answer.json()["burst"].as_i64().unwrap_or_default() / KBIT
}

#[test]
fn writes_can_require_a_version() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::embedded(store.path());
    let to = master.address;
    assert_eq!(put(to, 1, &[("If-Match", "*")]).status, 412, "it does not exist");
    assert_eq!(get(to, PATH).unwrap().status, 500);
    assert_eq!(put(to, 1, &[("If-None-Match", "*")]).status, 200);
    let again = put(to, 2, &[("If-None-Match", "*")]);
    assert_eq!(again.status, 412, "{again:?}");

    let first = tag(to);
    assert_eq!(put(to, 2, &[("If-Match", &first)]).status, 200);
    assert_ne!(tag(to), first);
    let stale = put(to, 3, &[("If-Match", &first)]);
    let why = format!("If-Match: netprofile default:p: its entity tag is {}; get it again\n", tag(to));
    assert_eq!((stale.status, stale.body.as_str()), (412, why.as_str()));
    let problem = put(to, 3, &[("If-Match", &first), ("Accept", "application/problem+json")]);
    assert_eq!((problem.status, problem.json()["status"].clone()), (412, json!(412)));
    assert_eq!(burst(&get(to, PATH).unwrap()), 2);
    assert_eq!(
        put(to, 3, &[("If-Match", "7")]).bad(),
        r#"if-match: "7" is neither * nor a list of quoted entity tags, as in ETag"#
    );

    let known = call(to, "GET", PATH, &[("If-None-Match", &tag(to))], "").unwrap();
    assert_eq!((known.status, known.body.as_str(), known.header("etag")), (304, "", Some(tag(to).as_str())));
    assert_eq!(call(to, "GET", PATH, &[("If-None-Match", &first)], "").unwrap().good()["burst"], 2 * KBIT);

    assert_eq!(call(to, "DELETE", PATH, &[("If-Match", &first)], "").unwrap().status, 412);
    assert_eq!(call(to, "DELETE", PATH, &[("If-Match", &tag(to))], "").unwrap().status, 200);
    assert_eq!(get(to, PATH).unwrap().status, 500);
}

#[test]
fn no_concurrent_update_is_lost() {
    const WRITERS: usize = 6;
    const UPDATES: i64 = 15;
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::embedded(store.path());
    let to = master.address;
    put(to, 0, &[]).good();
    thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                let mut left = UPDATES;
                while left > 0 {
                    let read = get(to, PATH).unwrap();
                    let answer = put(to, burst(&read) + 1, &[("If-Match", read.header("etag").unwrap())]);
                    assert!([200, 412].contains(&answer.status), "{answer:?}");
                    left -= i64::from(answer.status == 200);
                }
            });
        }
    });
    assert_eq!(burst(&get(to, PATH).unwrap()), WRITERS as i64 * UPDATES);
}

/// A deletion of an agent that found no record, and that netmaster carries out later.
#[test]
fn a_deletion_of_an_endpoint_can_require_a_revision() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::embedded(store.path());
    let to = master.address;
    make_network(to, "net", "10.1.0.0/24");
    create_endpoint(to, "net", "c1", "").unwrap().good();
    let delete = |revision: Value| {
        let body = json!({"TenantName": "default", "NetworkName": "net", "EndpointID": "c1",
            "ModRevision": revision});
        post(to, "/plugin/deleteEndpoint", &body).unwrap()
    };
    let refused = delete(json!(0));
    assert_eq!(refused.status, 412);
    let why = "ModRevision 0: endpoint net.default-c1: its record has revision ";
    assert!(refused.body.starts_with(why) && refused.body.ends_with("; read it again\n"), "{refused:?}");
    let text =
        "json: cannot unmarshal string into Go struct field DeleteEndpointRequest.ModRevision of type int";
    assert_eq!(delete(json!("0")).bad(), text);
    assert_eq!(delete(Value::Null).good()["EndpointConfig"]["endpointID"], "c1");
}

#[test]
fn dry_runs_answer_and_change_nothing() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::embedded(store.path());
    let to = master.address;
    make_network(to, "net", "10.1.0.0/24");
    let state = || ["networks", "tenants"].map(|types| get(to, &format!("/api/v1/{types}/")).unwrap().body);
    let before = state();

    let new = |subnet: &str| json!({"tenantName": "default", "networkName": "new", "encap": "vlan", "subnet": subnet});
    let path = "/api/v1/networks/default:new/";
    let dry: Value = post(to, &format!("{path}?dryRun=All"), &new("10.2.0.0/24")).unwrap().good();
    let refused = post(to, &format!("{path}?dryRun=All"), &new("10.2.0.0/33")).unwrap().bad();
    assert_eq!(refused, post(to, path, &new("10.2.0.0/33")).unwrap().bad());
    delete(to, "/api/v1/networks/default:net/?dryRun").unwrap().good();
    assert_eq!(before, state());
    assert_eq!(dry, post(to, path, &new("10.2.0.0/24")).unwrap().good());

    create_endpoint(to, "net", "c1", "").unwrap().good();
    let in_use = delete(to, "/api/v1/networks/default:net/").unwrap().bad();
    assert_eq!(delete(to, "/api/v1/networks/default:net/?dryRun=true").unwrap().bad(), in_use);

    // What cannot be tried is not carried out either.
    let why = "dryRun: only changes of objects below /api/v1/ have it";
    let call = json!({"TenantName": "default", "NetworkName": "net", "EndpointID": "c1"});
    assert_eq!(post(to, "/plugin/deleteEndpoint?dryRun=All", &call).unwrap().bad(), why);
    assert_eq!(
        post(to, &format!("{path}?dryRun=maybe"), &new("10.2.0.0/24")).unwrap().bad(),
        r#"dryRun: "maybe" is invalid; values are All, true, 1, false, 0"#
    );
    assert_eq!(get(to, "/api/v1/inspect/networks/default:net/").unwrap().good()["Oper"]["numEndpoints"], 1);
}
