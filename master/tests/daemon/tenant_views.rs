//! What the operator of a tenant sees of other tenants in pages, selections, conditional requests, dry
//! runs and watches.

use serde_json::{Value, json};
use testkit::write_secret;

use crate::authorization::{ADMIN, BLUE, Site};
use crate::client::{Answer, call};
use crate::watches::Events;

/// The keys of the other tenants are before and after those of `blue`.
fn site() -> Site {
    let site = Site::start(&[]);
    for (tenant, subnet, secret) in
        [("aqua", "10.1.0.0/24", "ruby"), ("blue", "10.2.0.0/24", "azure"), ("red", "10.3.0.0/24", "ruby")]
    {
        site.create_tenant(tenant, subnet, secret);
    }
    site
}

fn policy(tenant: &str, name: &str) -> Value {
    json!({"tenantName": tenant, "policyName": name})
}

fn keys(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|object| object["key"].as_str().unwrap().to_owned()).collect()
}

/// Keys on the page and on those that follow it.
fn pages(site: &Site, first: &str) -> Vec<Vec<String>> {
    let (mut pages, mut next) = (vec![], Some(first.to_owned()));
    while let Some(path) = next {
        let answer = site.get(BLUE, &path);
        let link = answer.header("link").map(str::to_owned);
        next = link
            .map(|link| link.strip_prefix('<').unwrap().strip_suffix(">; rel=\"next\"").unwrap().to_owned());
        pages.push(keys(&answer.good()));
    }
    pages
}

#[test]
fn pages_and_selections_have_the_own_objects_only() {
    let site = site();
    for name in ["p0", "p1", "p2"] {
        site.put(BLUE, &format!("policys/blue:{name}"), &policy("blue", name)).good();
    }
    let all = ["blue:p0", "blue:p1", "blue:p2", "blue:pol"].map(str::to_owned);
    for (query, sizes) in [
        ("", &[4][..]),
        ("limit=1", &[1, 1, 1, 1]),
        ("limit=3", &[3, 1]),
        // Other tenants' objects follow, and are no further page.
        ("limit=4", &[4]),
        ("limit=4&continue=aqua:pol", &[4]),
        ("fieldSelector=tenantName!=red", &[4]),
        ("limit=2&fieldSelector=tenantName=blue", &[2, 2]),
    ] {
        let pages = pages(&site, &format!("/api/v1/policys/?{query}"));
        assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), sizes, "{query}");
        assert_eq!(pages.concat(), all, "{query}");
    }
    for query in ["continue=blue:pol", "limit=1&continue=red:pol", "fieldSelector=tenantName=red"] {
        assert_eq!(pages(&site, &format!("/api/v1/policys/?{query}")), [vec![""; 0]], "{query}");
    }
}

#[test]
fn conditions_and_dry_runs_tell_nothing_of_other_tenants() {
    let site = site();
    let ask = |method: &str, key: &str, query: &str, headers: &[(&str, &str)]| -> Answer {
        let bearer = format!("Bearer {BLUE}");
        let headers = [&[("Authorization", bearer.as_str())], headers].concat();
        let (tenant, name) = key.split_once(':').unwrap();
        let path = format!("/api/v1/policys/{key}/{query}");
        call(site.master.address, method, &path, &headers, &policy(tenant, name).to_string()).unwrap()
    };
    let conditions: [&[(&str, &str)]; 4] =
        [&[], &[("If-Match", "*")], &[("If-None-Match", "*")], &[("If-Match", "\"1\"")]];
    for headers in conditions {
        for (method, query) in [("GET", ""), ("PUT", ""), ("PUT", "?dryRun=All"), ("DELETE", "?dryRun=All")] {
            let [known, unknown] = ["red:pol", "red:new"].map(|key| ask(method, key, query, headers));
            assert_eq!((known.status, unknown.status), (403, 403), "{method} {headers:?}: {known:?}");
            assert_eq!(known.body.replace("pol/", "new/"), unknown.body);
            assert!(known.header("etag").is_none() && unknown.header("etag").is_none());
        }
    }
    // The own objects have them.
    let own = ask("GET", "blue:pol", "", &[]);
    let tag = own.header("etag").unwrap();
    assert_eq!(ask("GET", "blue:pol", "", &[("If-None-Match", tag)]).status, 304);
    assert_eq!(ask("PUT", "blue:pol", "", &[("If-None-Match", "*")]).status, 412);
    assert_eq!(ask("PUT", "blue:new", "?dryRun=All", &[]).status, 200);
    assert_eq!(ask("GET", "blue:new", "", &[]).bad(), "policy not found");
}

/// A watch of the client with this token.
fn watch(site: &Site, token: &str, path: &str) -> Events {
    Events::open(site.master.address, path, &format!("Authorization: Bearer {token}\r\n"))
}

/// Names and keys of the events up to this one.
fn until(events: &mut Events, name: &str, key: &str) -> Vec<(String, String)> {
    let mut seen = vec![];
    loop {
        let event = events.next().unwrap();
        assert!(!event.data.to_string().contains("ruby"), "{event:?}");
        let last = event.name == name && event.key == key;
        seen.push((event.name, event.key));
        if last {
            return seen;
        }
    }
}

#[test]
fn a_watch_has_the_changes_of_the_own_tenant_only() {
    let site = site();
    let list = site.get(BLUE, "/api/v1/policys/");
    let revision = list.header("netmaster-revision").unwrap();
    let event = |name: &str, key: &str| (name.to_owned(), key.to_owned());
    let mut tenants = watch(&site, BLUE, "/api/v1/tenants/?watch=1");
    let mut policies = watch(&site, BLUE, "/api/v1/policys/?watch=1");
    let mut after = watch(&site, BLUE, &format!("/api/v1/policys/?watch=1&revision={revision}"));
    let mut selected = watch(&site, BLUE, "/api/v1/policys/?watch=1&fieldSelector=tenantName!=blue");
    assert_eq!(until(&mut tenants, "synced", ""), [event("put", "blue"), event("synced", "")]);
    assert_eq!(until(&mut policies, "synced", ""), [event("put", "blue:pol"), event("synced", "")]);
    assert_eq!(until(&mut selected, "synced", ""), [event("synced", "")]);

    // Each change also changes links: of the tenant, and of the policies of the group.
    for tenant in ["aqua", "red", "blue"] {
        let group = |policies: &[&str]| {
            let body =
                json!({"tenantName": tenant, "groupName": "grp", "networkName": "net", "policies": policies});
            site.put(ADMIN, &format!("endpointGroups/{tenant}:grp"), &body).good();
        };
        let path = format!("policys/{tenant}:new");
        site.put(ADMIN, &path, &policy(tenant, "new")).good();
        group(&["new"]);
        group(&["pol"]);
        site.ask(ADMIN, "DELETE", &format!("/api/v1/{path}/"), &Value::Null).good();
    }
    assert_eq!(until(&mut policies, "delete", "blue:new").last(), Some(&event("delete", "blue:new")));
    for events in [&mut after, &mut selected] {
        let seen = until(events, "delete", "blue:new");
        assert!(seen.iter().all(|(_, key)| key.starts_with("blue:")), "{seen:?}");
    }
    site.ask(ADMIN, "DELETE", "/api/v1/policys/red:other/", &Value::Null).bad();
    site.put(ADMIN, "tenants/green", &json!({"tenantName": "green"})).good();
    site.ask(ADMIN, "DELETE", "/api/v1/tenants/green/", &Value::Null).good();
    site.put(ADMIN, "policys/blue:last", &policy("blue", "last")).good();
    // Changes of links that come together may be one event.
    let mut linked = false;
    while !linked {
        let next = tenants.next().unwrap();
        assert_eq!((next.name.as_str(), next.key.as_str()), ("put", "blue"));
        linked = next.data["link-sets"].to_string().contains("blue:last");
    }
    assert_eq!(policies.seen(), event("put", "blue:last"));
}

#[test]
fn a_watch_ends_with_the_credentials_of_its_client() {
    let site = site();
    let mut watches = [BLUE, ADMIN].map(|token| watch(&site, token, "/api/v1/policys/?watch=1"));
    for events in &mut watches {
        while events.next().unwrap().name != "synced" {}
    }
    let [mut operator, mut admin] = watches;
    let tokens = format!("ops admin {ADMIN}\nblue-ci tenant-operator:green {BLUE}\n");
    write_secret(&site.dir.path().join("tokens"), &tokens).unwrap();
    assert_eq!(operator.next(), None);
    assert_eq!(keys(&site.get(BLUE, "/api/v1/policys/").good()), [""; 0]);
    // Those of others continue.
    site.put(ADMIN, "policys/blue:new", &policy("blue", "new")).good();
    assert_eq!(admin.seen(), ("put".to_owned(), "blue:new".to_owned()));
}
