//! `netctl explain`.

use serde_json::json;

use crate::{
    run,
    server::{Reply, Request, Server},
};

/// Part of the document that netmaster serves.
fn answer(request: &Request) -> Reply {
    assert_eq!(request.line, "GET /api/v1/openapi.json");
    let body =
        json!({"content": {"application/json": {"schema": {"$ref": "#/components/schemas/NewNetprofile"}}}});
    Reply::json(&json!({
        "openapi": "3.1.0",
        "paths": {"/api/v1/netprofiles/{key}/": {"post": {"requestBody": body}}},
        "components": {"schemas": {"NewNetprofile": {
            "type": "object",
            "required": ["profileName"],
            "properties": {
                "profileName": {"type": "string", "maxLength": 64},
                "tenantName": {"type": "string", "pattern": "^a+$", "examples": ["aa"]},
                "bandwidth": {"type": ["string", "null"], "enum": ["1 mbps", "2 mbps", "", null], "default": "1 mbps"},
                "DSCP": {"type": ["integer", "null"], "minimum": 0, "maximum": 63},
                "burst": {"type": ["array", "null"], "items": {"type": "string"}, "maximum": 9},
            },
        }}},
    }))
}

#[test]
fn fields_are_explained_from_the_document_of_netmaster() {
    let server = Server::start(answer);
    let (stdout, stderr, code) = run(&server, &["explain", "netprofile"]);
    assert_eq!((stderr.as_str(), code), ("", 0));
    assert_eq!(
        stdout,
        "Kind: netprofile\nKey: tenantName:profileName\n\n\
         Field        Type             Required  Mutable  Default  Values\n\
         -----        ----             --------  -------  -------  ------\n\
         tenantName   string           yes       no                pattern ^a+$\n\
         profileName  string           yes       no                at most 64 characters\n\
         bandwidth    string           no        yes      1 mbps   1 mbps or 2 mbps\n\
         DSCP         integer          no        yes               0 to 63\n\
         burst        array of string  no        yes               at most 9\n"
    );
    let (stdout, ..) = run(&server, &["explain", "netprofiles.tenantName"]);
    assert_eq!(
        stdout,
        "Field: netprofile.tenantName\nType: string\nRequired: yes\nMutable: no: part of the key\n\
         Values: pattern ^a+$\nExample: aa\nFormat: a name of letters, digits, hyphens and dots\n\
         Reference: name of a tenant\n"
    );
    for (word, text, code) in [
        ("netprofile.nothing", "expected one of tenantName, profileName, bandwidth, DSCP, burst", 1),
        ("thing", "explain thing: expected global, aci-gw, tenant", 1),
        ("network", "no description of network objects", 3),
    ] {
        let (_, stderr, got) = run(&server, &["explain", word]);
        assert!(stderr.contains(text), "{stderr}");
        assert_eq!(got, code, "{word}");
    }
}
