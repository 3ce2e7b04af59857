//! Roles of client certificates, also through a follower.

use std::sync::Arc;

use rustls::ClientConfig;
use serde_json::{Value, json};
use testkit::etcd::Etcd;
use testkit::{Authority, write_secret};

use crate::audit_log::entry;
use crate::client::Answer;
use crate::master::Master;
use crate::security::{client, secure, text};

#[test]
fn followers_forward_the_subject_of_their_clients() {
    testkit::needs!(binary("etcd"));
    let etcd = Etcd::start().unwrap();
    let authority = Authority::new().unwrap();
    let signed = |label, organization| {
        let files = authority.sign_in(label, &["127.0.0.1"], Some(organization)).unwrap();
        (client(&authority.ca, Some(&files)), files)
    };
    let (_, master) = signed("m1", "masters");
    let ((anna, _), (blue, _), (stranger, _)) =
        (signed("anna", "ops"), signed("blue-ci", "ci"), signed("guest", "guests"));
    let dir = testkit::scratch_dir("roles").unwrap();
    let roles = dir.path().join("roles");
    write_secret(&roles, "netmaster O=masters\nadmin O=ops\ntenant-operator:blue CN=blue-ci\n").unwrap();
    let log = dir.path().join("audit.log");
    let flags = |audit: &[&str]| {
        let flags = [
            "--etcd",
            &etcd.endpoint(),
            "--tls-cert",
            text(&master.certificate),
            "--tls-key",
            text(&master.key),
            "--client-ca",
            text(&authority.ca),
            "--role-file",
            text(&roles),
            "--lease-ttl",
            "2",
        ];
        flags.iter().chain(audit).map(|&flag| flag.to_owned()).collect::<Vec<_>>()
    };
    let leader = Master::wait_leading(flags(&["--audit-log", text(&log)]));
    let follower = Master::follow(flags(&[]));
    let ask =
        |to: &Master, config: &Arc<ClientConfig>, method, path: &str, headers: &[(&str, &str)]| -> Answer {
            let tenant = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
            let body = json!({"tenantName": tenant}).to_string();
            secure(config, to.address, method, path, headers, &body).unwrap().0
        };
    for tenant in ["red", "blue"] {
        ask(&follower, &anna, "POST", &format!("/api/v1/tenants/{tenant}/"), &[]).good();
    }
    for to in [&leader, &follower] {
        let tenants = ask(to, &blue, "GET", "/api/v1/tenants/", &[]).good();
        assert_eq!((tenants.as_array().unwrap().len(), &tenants[0]["key"]), (1, &json!("blue")), "{tenants}");
        assert_eq!(ask(to, &blue, "GET", "/api/v1/tenants/red/", &[]).status, 403);
        assert_eq!(ask(to, &blue, "DELETE", "/api/v1/tenants/red/", &[]).status, 403);
        // Only a netmaster may speak for others.
        let spoofed =
            ask(to, &blue, "GET", "/api/v1/tenants/", &[("Netmaster-Client-Subject", "CN=anna,O=ops")]);
        assert_eq!(spoofed.status, 403, "{spoofed:?}");
        let refused = ask(to, &stranger, "GET", "/api/v1/tenants/", &[]);
        assert!(
            refused.status == 403 && refused.body.contains("CN=guest,O=guests has no role"),
            "{refused:?}"
        );
        assert_eq!(ask(to, &stranger, "GET", "/version", &[]).status, 200);
    }
    assert_eq!(ask(&leader, &stranger, "GET", "/info", &[("X-Request-Id", "stranger")]).status, 403);
    let refused = entry(&log, "stranger");
    assert_eq!((&refused["who"], &refused["role"]), (&json!("CN=guest,O=guests"), &Value::Null));
}
