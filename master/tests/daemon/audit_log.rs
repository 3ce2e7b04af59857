//! The audit log, and ids of requests.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testkit::etcd::Etcd;
use testkit::{wait_until, write_secret};

use crate::authorization::{ADMIN, BLUE, Site};
use crate::client::{call, exchange};
use crate::master::{Master, WAIT_TIMEOUT};

/// Waits for an entry with this request id.
pub(crate) fn entry(log: &Path, id: &str) -> Value {
    let find = || {
        // A renamed file is created again by the next entry.
        let text = fs::read_to_string(log).unwrap_or_default();
        let mut entries = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Ok(entries.find(|entry| entry["requestId"] == id))
    };
    wait_until(WAIT_TIMEOUT, "an entry of the audit log", find).unwrap()
}

#[test]
fn changes_and_refusals_are_logged() {
    let dir = testkit::scratch_dir("audit").unwrap();
    let log = dir.path().join("audit.log");
    let mut site = Site::start(&["--audit-log", log.to_str().unwrap()]);
    site.create_tenant("blue", "10.1.0.0/24", "azure");
    let to = site.master.address;
    let ask = |id: &str, method: &str, path: &str, token: Option<&str>, body: &str| {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let mut headers = vec![("X-Request-Id", id), ("Content-Type", "application/json")];
        headers.extend(bearer.iter().map(|bearer| ("Authorization", bearer.as_str())));
        call(to, method, path, &headers, body).unwrap().status
    };
    let endpoint =
        json!({"TenantName": "blue", "NetworkName": "net", "ConfigEP": {"Container": "c", "Host": "h"}});
    for (id, method, path, token, body, who, role, result) in [
        (
            "created",
            "POST",
            "/api/v1/tenants/t/",
            Some(ADMIN),
            r#"{"tenantName":"t"}"#,
            json!("ops"),
            json!("admin"),
            200,
        ),
        ("failed", "DELETE", "/api/v1/tenants/none/", Some(ADMIN), "", json!("ops"), json!("admin"), 500),
        (
            "refused",
            "GET",
            "/api/v1/globals/",
            Some(BLUE),
            "",
            json!("blue-ci"),
            json!("tenant-operator"),
            403,
        ),
        ("unknown", "GET", "/api/v1/networks/", None, "", Value::Null, Value::Null, 401),
        ("node", "DELETE", "/api/v1/nodes/none/", Some(ADMIN), "", json!("ops"), json!("admin"), 500),
        ("no-route", "PATCH", "/nowhere", Some(ADMIN), "", json!("ops"), json!("admin"), 404),
    ] {
        assert_eq!(ask(id, method, path, token, body), result, "{id}");
        let entry = entry(&log, id);
        let expected = json!({"who": who, "role": role, "method": method, "object": path, "result": result,
            "requestId": id, "forwarded": false});
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(entry[name], *value, "{name} of {entry}");
        }
        assert!(entry["remote"].as_str().unwrap().starts_with("127.0.0.1:"), "{entry}");
        assert!(entry["time"].as_str().unwrap().ends_with('Z'), "{entry}");
    }
    // The object of a plugin call is in its body.
    assert_eq!(ask("call", "POST", "/plugin/createEndpoint", Some(ADMIN), &endpoint.to_string()), 200);
    assert_eq!(entry(&log, "call")["object"], "/plugin/createEndpoint net.blue-c on h");
    let dry = "/api/v1/tenants/t/?dryRun=All";
    assert_eq!(ask("tried", "DELETE", dry, Some(ADMIN), ""), 200);
    let tried = entry(&log, "tried");
    assert_eq!((&tried["object"], &tried["dryRun"]), (&json!("/api/v1/tenants/t/"), &json!(true)));
    // Terminals would interpret the second character of the path.
    assert_eq!(ask("control", "GET", "/\u{9b}2J", None, ""), 401);
    assert_eq!(entry(&log, "control")["object"], "/\u{9b}2J");
    assert!(fs::read(&log).unwrap().is_ascii());
    // Reads are not logged.
    assert_eq!(ask("read", "GET", "/api/v1/tenants/", Some(BLUE), ""), 200);

    let old = dir.path().join("audit.log.1");
    fs::rename(&log, &old).unwrap();
    assert_eq!(ask("rotated", "DELETE", "/api/v1/tenants/t/", Some(ADMIN), ""), 200);
    entry(&log, "rotated");
    let last = ask("last", "DELETE", "/api/v1/tenants/t/", Some(ADMIN), "");
    site.master.stop();
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("\"last\"") && last == 500, "lines that wait are written at the end: {text}");
    let text = text + &fs::read_to_string(&old).unwrap();
    assert!(!text.contains("\"read\"") && !text.contains(ADMIN) && !text.contains(BLUE), "{text}");
    drop(site.dir);
}

#[test]
fn lost_entries_are_counted_and_logged() {
    let site = Site::start(&["--audit-log", "/dev/full"]);
    site.put(ADMIN, "tenants/t", &json!({"tenantName": "t"})).good();
    let counted = || {
        let metrics = site.get(ADMIN, "/metrics").body;
        Ok(metrics.lines().any(|line| line == "contiv_netmaster_audit_entries_lost_total 1").then_some(()))
    };
    wait_until(WAIT_TIMEOUT, "the counter", counted).unwrap();
    let log = site.master.process.log();
    assert!(log.contains("write the audit log: /dev/full") && log.contains("the entry is lost"), "{log}");
}

#[test]
fn the_id_of_a_request_is_returned_and_forwarded() {
    testkit::needs!(binary("etcd"));
    let etcd = Etcd::start().unwrap();
    let dir = testkit::scratch_dir("ids").unwrap();
    let tokens = dir.path().join("tokens");
    write_secret(&tokens, &format!("ops admin {ADMIN}\n")).unwrap();
    let flags = |log: &Path| {
        let flags = [
            "--etcd",
            &etcd.endpoint(),
            "--token-file",
            tokens.to_str().unwrap(),
            "--audit-log",
            log.to_str().unwrap(),
        ];
        flags.map(str::to_owned).to_vec()
    };
    let (first, second) = (dir.path().join("first.log"), dir.path().join("second.log"));
    let leader = Master::wait_leading(flags(&first));
    let follower = Master::follow(flags(&second));
    let bearer = format!("Bearer {ADMIN}");
    let headers = [("Authorization", bearer.as_str()), ("X-Request-Id", "one two")];
    let mut stream = IdReader::connect(&follower);
    exchange(&mut stream, follower.address, "POST", "/api/v1/tenants/t/", &headers, r#"{"tenantName":"t"}"#)
        .unwrap()
        .good();
    let id = stream.id();
    assert!(id.len() > 16 && !id.contains(' '), "a new id replaces the invalid one: {id}");
    let (through, at) = (entry(&second, &id), entry(&first, &id));
    assert_eq!((&through["forwarded"], &through["who"]), (&json!(false), &json!("ops")));
    assert_eq!((&at["forwarded"], &at["result"]), (&json!(true), &json!(200)));
    drop(leader);
}

/// A stream that keeps the response.
struct IdReader {
    stream: std::net::TcpStream,
    seen: Vec<u8>,
}

impl IdReader {
    fn connect(to: &Master) -> IdReader {
        IdReader { stream: crate::client::connect(to.address).unwrap(), seen: vec![] }
    }

    fn id(&self) -> String {
        let text = String::from_utf8_lossy(&self.seen).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("X-Request-Id: "));
        line.ok_or(&text).unwrap().to_owned()
    }
}

impl std::io::Read for IdReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let n = self.stream.read(buffer)?;
        self.seen.extend(buffer.get(..n).unwrap_or_default());
        Ok(n)
    }
}

impl std::io::Write for IdReader {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.stream.write(data)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}
