//! Lists are read page by page, and only what is shown is asked for.

use serde_json::{Value, json};

use crate::{
    run,
    server::{Reply, Request, Server},
};

fn network(tenant: &str, name: &str) -> Value {
    json!({"key": format!("{tenant}:{name}"), "tenantName": tenant, "networkName": name})
}

fn queries(server: &Server) -> Vec<String> {
    let lists = server.take().into_iter().filter(|request| request.line == "GET /api/v1/networks/");
    lists.map(|request| request.query).collect()
}

/// Answers requests for networks with pages, whose links are in this form.
fn paged(link: fn(&str) -> String) -> Server {
    Server::start(move |request: &Request| {
        if request.line != "GET /api/v1/networks/" {
            return Reply::json(&json!({"tenantName": "t"}));
        }
        let page = |name: &str| Reply::json(&json!([network("t", name)]));
        match request.query.rsplit_once("continue=").map(|(_, key)| key) {
            None => page("a").with("Link", link("limit=500&continue=t%3Aa")),
            Some("t%3Aa") => page("b").with("Link", link("limit=500&continue=t%3Ab")),
            Some(_) => page("c"),
        }
    })
}

#[test]
fn all_pages_are_read() {
    let links: [fn(&str) -> String; 4] = [
        |query| format!("</api/v1/networks/?{query}>; rel=\"next\""),
        |query| format!("</start>; rel=\"first\", </api/v1/networks/?{query}>; title=\"x\"; rel=next"),
        // netmaster behind a proxy with other paths; a link to another host.
        |query| format!("</contiv/api/v1/networks/?{query}>;rel=\"next\""),
        |query| format!("<http://192.0.2.1/api/v1/networks/?{query}>; rel=\"next\""),
    ];
    for link in links {
        let server = paged(link);
        for (words, names) in [
            (&["get", "net", "-a", "-o", "name"][..], "network/t:a\nnetwork/t:b\nnetwork/t:c\n"),
            (&["net", "ls", "-a", "-q"], "a\nb\nc\n"),
        ] {
            assert_eq!(run(&server, words), (names.to_owned(), String::new(), 0));
            let pages = ["limit=500", "limit=500&continue=t%3Aa", "limit=500&continue=t%3Ab"];
            assert_eq!(queries(&server), pages);
        }
    }
    let other: [fn(&str) -> String; 2] = [
        |query| format!("</api/v1/networks/?{query}>; rel=\"prev\""),
        |_| "</api/v1/networks/>; rel=next".into(),
    ];
    for link in other {
        assert_eq!(run(&paged(link), &["net", "ls", "-a", "-q"]).0, "a\n");
    }
}

#[test]
fn link_to_the_same_page_is_an_error() {
    let server = paged(|_| "</api/v1/networks/?limit=500&continue=t%3Aa>; rel=\"next\"".to_owned());
    let (stdout, stderr, code) = run(&server, &["net", "ls", "-a"]);
    assert!(stderr.contains("the link to the next page is to this one"), "{stderr}");
    assert_eq!((stdout.as_str(), code, server.take().len()), ("", 3, 2));
}

#[test]
fn failure_of_a_page_is_a_failure_of_the_list() {
    let server = Server::start(|request| match request.query.contains("continue") {
        false => Reply::json(&json!([network("t", "a")])).with("Link", "</?continue=a>; rel=\"next\""),
        true => Reply::refused("no leader"),
    });
    assert_eq!(run(&server, &["net", "ls", "-a"]), (String::new(), "netctl: no leader\n".into(), 3));
}

#[test]
fn objects_of_one_tenant_are_selected_by_netmaster() {
    let server = Server::start(|request| match request.line.as_str() {
        // A netmaster that does not know selectors answers with all objects.
        "GET /api/v1/networks/" => {
            Reply::json(&json!([network("t", "a"), network("u", "b"), network("a,key!=", "c")]))
        }
        _ => Reply::json(&json!({})),
    });
    for (words, query, names) in [
        (&["net", "ls", "-t", "t", "-q"][..], "limit=500&fieldSelector=tenantName=t", "a\n"),
        (
            &["get", "net", "-t", "u", "-o", "jsonpath=$[*].networkName"],
            "limit=500&fieldSelector=tenantName=u",
            "b\n",
        ),
        (&["net", "ls", "-a", "-q"], "limit=500", "c\na\nb\n"),
        // Not a name: it could select something else.
        (&["net", "ls", "-t", "a,key!=", "-q"], "limit=500", "c\n"),
    ] {
        assert_eq!(run(&server, words), (names.to_owned(), String::new(), 0), "{words:?}");
        assert_eq!(queries(&server), [query], "{words:?}");
    }
    let server = Server::start(|_| Reply::json(&json!([])));
    assert_eq!(run(&server, &["policy", "rule-ls", "-t", "t", "p", "-q"]).2, 0);
    let last = server.take().pop().unwrap();
    assert_eq!(last.query, "limit=500&fieldSelector=tenantName=t%2CpolicyName=p");
}

/// A tenant operator gets the objects of the own tenants, and must not read others.
#[test]
fn list_of_all_tenants_needs_none_of_them() {
    let server = Server::start(|request| match request.line.as_str() {
        "GET /api/v1/networks/" => Reply::json(&json!([network("t", "a")])),
        "GET /api/v1/inspect/networks/t:a/" => Reply::json(
            &json!({"Config": {}, "Oper": {"endpoints": [{"endpointID": "e", "network": "a.t"}]}}),
        ),
        _ => Reply::new(403, "", "not allowed"),
    });
    for (list, names) in [("net", "a\n"), ("ep", "e\n")] {
        let shown = run(&server, &[list, "ls", "-a", "-q"]);
        assert_eq!(shown, (names.to_owned(), String::new(), 0), "{list}");
        let refused = run(&server, &[list, "ls", "-q"]);
        assert_eq!(refused, (String::new(), "netctl: not allowed\n".to_owned(), 3), "{list}");
    }
}

/// A network that is deleted between the list and the look at its endpoints has none.
#[test]
fn networks_may_be_deleted_while_endpoints_are_listed() {
    let server = Server::start(|request| match request.line.as_str() {
        "GET /api/v1/networks/" => Reply::json(&json!([network("t", "a"), network("t", "b")])),
        "GET /api/v1/inspect/networks/t:a/" => Reply::refused("network not found"),
        "GET /api/v1/inspect/networks/t:b/" => Reply::json(
            &json!({"Config": {}, "Oper": {"endpoints": [{"endpointID": "e", "network": "b.t"}]}}),
        ),
        _ => Reply::json(&json!({})),
    });
    assert_eq!(run(&server, &["ep", "ls", "-t", "t", "-q"]), ("e\n".into(), String::new(), 0));
}
