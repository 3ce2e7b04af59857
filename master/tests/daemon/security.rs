//! Authentication, authorization and TLS.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use contiv_daemon::tls::{self, KeyPair};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::json;
use testkit::etcd::Etcd;
use testkit::{Authority, Certified, wait_until, write_secret};

use crate::client::{Answer, call, connect, exchange, make_network};
use crate::master::{Master, WAIT_TIMEOUT, loopback, program};

const READ: &str = "read-token-0123456789";
const WRITE: &str = "write-token-0123456789";

fn pair(files: &Certified) -> KeyPair {
    KeyPair { certificate: files.certificate.clone(), key: files.key.clone() }
}

/// Like `client::call` over HTTPS. Returns the server's certificate as well.
pub(crate) fn secure(
    config: &Arc<ClientConfig>,
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> std::io::Result<(Answer, Vec<u8>)> {
    let name = ServerName::from(to.ip());
    let session = ClientConnection::new(config.clone(), name).map_err(std::io::Error::other)?;
    let mut stream = StreamOwned::new(session, connect(to)?);
    let answer = exchange(&mut stream, to, method, path, headers, body)?;
    let shown = stream.conn.peer_certificates().unwrap_or_default();
    Ok((answer, shown.first().map(|c| c.to_vec()).unwrap_or_default()))
}

pub(crate) fn client(ca: &Path, own: Option<&Certified>) -> Arc<ClientConfig> {
    Arc::new(tls::client(ca, own.map(pair).as_ref()).unwrap())
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn client_certificates_are_required_and_new_certificates_are_loaded() {
    let (authority, strangers) = (Authority::new().unwrap(), Authority::new().unwrap());
    let server = authority.sign("server", &["127.0.0.1"]).unwrap();
    let known = authority.sign("client", &["client"]).unwrap();
    let stranger = strangers.sign("stranger", &["client"]).unwrap();
    let store = testkit::scratch_dir("store").unwrap();
    let flags = [
        "--tls-cert",
        text(&server.certificate),
        "--tls-key",
        text(&server.key),
        "--client-ca",
        text(&authority.ca),
    ];
    let master = Master::start_unprobed(store.path(), &flags);
    let version = |config: &_| secure(config, master.address, "GET", "/version", &[], "");

    let good = client(&authority.ca, Some(&known));
    let (answer, shown) = version(&good).unwrap();
    assert_eq!(answer.status, 200);
    assert!(version(&client(&authority.ca, None)).is_err(), "a client without a certificate is answered");
    assert!(version(&client(&authority.ca, Some(&stranger))).is_err(), "a client of another CA is answered");
    assert!(
        version(&client(&strangers.ca, Some(&known))).is_err(),
        "the server presents a certificate of another CA"
    );
    assert!(call(master.address, "GET", "/version", &[], "").is_err(), "plain http is answered");
    let mut old = (*good).clone();
    old.alpn_protocols = vec![b"http/1.1".to_vec()];
    assert_eq!(version(&Arc::new(old)).unwrap().0.status, 200);

    authority.sign("server", &["127.0.0.1"]).unwrap();
    let renewed = || Ok(version(&good).ok().filter(|(_, now)| *now != shown));
    wait_until(WAIT_TIMEOUT, "the new certificate", renewed).unwrap();
    // Certificate and key do not match: the last valid pair stays in use.
    fs::write(&server.key, "nothing").unwrap();
    let log = || Ok(master.process.log().contains("the last valid version stays").then_some(()));
    wait_until(WAIT_TIMEOUT, "log line about the key", log).unwrap();
    assert_eq!(version(&good).unwrap().0.status, 200);
}

#[test]
fn token_scopes_are_enforced() {
    let dir = testkit::scratch_dir("store").unwrap();
    let file = dir.path().join("tokens");
    write_secret(&file, &format!("ops write {WRITE}\nboard read {READ}\n")).unwrap();
    let master = Master::start_unprobed(dir.path(), &["--token-file", text(&file), "--log-level", "trace"]);
    let tenant = json!({"tenantName": "t"}).to_string();
    let ask = |method, path, token: Option<&str>, problem: bool| {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let mut headers: Vec<(&str, &str)> = bearer.iter().map(|b| ("Authorization", b.as_str())).collect();
        headers.extend(problem.then_some(("Accept", "application/problem+json")));
        call(master.address, method, path, &headers, &tenant).unwrap()
    };
    for path in ["/api/v1/tenants/", "/info", "/metrics", "/nowhere", "/api/v1/openapi.json"] {
        for token in [None, Some("wrong-token-0123456789")] {
            let refused = ask("GET", path, token, false);
            assert_eq!(
                (refused.status, refused.content_type.as_str()),
                (401, "text/plain; charset=utf-8"),
                "{path}"
            );
            assert!(
                refused.body.contains("X-Auth-Token") && refused.body.lines().count() == 1,
                "{refused:?}"
            );
        }
    }
    for path in ["/healthz", "/readyz", "/version"] {
        assert_eq!(ask("GET", path, None, false).status, 200, "{path}");
    }
    let refused = ask("GET", "/info", None, true);
    assert_eq!((refused.status, refused.content_type.as_str()), (401, "application/problem+json"));
    assert_eq!(refused.json()["status"], 401);

    assert_eq!(ask("GET", "/api/v1/tenants/", Some(READ), false).status, 200);
    for method in ["POST", "PUT", "DELETE"] {
        assert_eq!(ask(method, "/api/v1/tenants/t/", Some(READ), false).status, 403, "{method}");
    }
    assert_eq!(ask("POST", "/plugin/allocAddress", Some(READ), true).json()["status"], 403);
    assert_eq!(ask("POST", "/api/v1/tenants/t/", Some(WRITE), false).status, 200);
    let headers = [("X-Auth-Token", WRITE)];
    assert_eq!(call(master.address, "DELETE", "/api/v1/tenants/t/", &headers, "").unwrap().status, 200);

    write_secret(&file, "ops write another-token-0123456789\n").unwrap();
    let taken_up =
        || Ok((ask("GET", "/info", Some("another-token-0123456789"), false).status == 200).then_some(()));
    wait_until(WAIT_TIMEOUT, "the new token", taken_up).unwrap();
    assert_eq!(ask("GET", "/info", Some(WRITE), false).status, 401);
    write_secret(&file, "ops wr1te yet-another-token\n").unwrap();
    let log = || Ok(master.process.log().contains("the last valid version stays").then_some(()));
    wait_until(WAIT_TIMEOUT, "log line about the file", log).unwrap();
    assert_eq!(ask("GET", "/info", Some("another-token-0123456789"), false).status, 200);
    let log = master.process.log();
    assert!(!log.contains("token-0123456789") && !log.contains("yet-another"), "{log}");
}

#[test]
fn followers_forward_over_https_with_the_clients_token() {
    testkit::needs!(binary("etcd"));
    let etcd = Etcd::start().unwrap();
    let authority = Authority::new().unwrap();
    let files = authority.sign("master", &["127.0.0.1"]).unwrap();
    let dir = testkit::scratch_dir("tokens").unwrap();
    let tokens = dir.path().join("tokens");
    write_secret(&tokens, &format!("ops write {WRITE}\nboard read {READ}\n")).unwrap();
    let flags = || {
        let flags = [
            "--etcd",
            &etcd.endpoint(),
            "--tls-cert",
            text(&files.certificate),
            "--tls-key",
            text(&files.key),
            "--client-ca",
            text(&authority.ca),
            "--token-file",
            text(&tokens),
            "--lease-ttl",
            "2",
            // Idle timeout of a follower's connection to the leader.
            "--client-timeout",
            "1",
        ];
        flags.map(str::to_owned).to_vec()
    };
    let leader = Master::wait_leading(flags());
    let follower = Master::follow(flags());
    let config = client(&authority.ca, Some(&files));
    let body = json!({"tenantName": "t"}).to_string();
    let ask = |master: &Master, method, path, token| {
        secure(&config, master.address, method, path, &[("Authorization", token)], &body).unwrap().0
    };
    let (bearer, reader) = (format!("Bearer {WRITE}"), format!("Bearer {READ}"));
    assert_eq!(ask(&follower, "POST", "/api/v1/tenants/t/", &bearer).good()["tenantName"], "t");
    assert_eq!(ask(&leader, "GET", "/api/v1/tenants/t/", &bearer).good()["tenantName"], "t");
    let refused = ask(&follower, "DELETE", "/api/v1/tenants/t/", &reader);
    assert_eq!(refused.status, 403);
    let ready = ask(&follower, "GET", "/readyz", "");
    assert_eq!(ready.body, format!("following {}\n", leader.address));

    // Certificates of a new CA.
    let other = Authority::new().unwrap();
    let renewed = other.sign("master", &["127.0.0.1"]).unwrap();
    for (new, old) in
        [(&renewed.certificate, &files.certificate), (&renewed.key, &files.key), (&other.ca, &authority.ca)]
    {
        fs::copy(new, old).unwrap();
    }
    let config = client(&other.ca, Some(&renewed));
    let ask = |master: &Master| {
        let headers = [("Authorization", bearer.as_str())];
        anyhow::Ok(secure(&config, master.address, "GET", "/api/v1/tenants/t/", &headers, "").ok())
    };
    let good = |answer: Option<(Answer, _)>| answer.filter(|(answer, _)| answer.status == 200);
    wait_until(WAIT_TIMEOUT, "the leader's new certificate", || Ok(good(ask(&leader)?))).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    wait_until(WAIT_TIMEOUT, "response through the follower", || Ok(good(ask(&follower)?))).unwrap();
}

#[test]
fn invalid_files_fail_the_start_with_one_line() {
    let dir = testkit::scratch_dir("files").unwrap();
    let authority = Authority::new().unwrap();
    let (one, other) = (authority.sign("one", &["a"]).unwrap(), authority.sign("other", &["a"]).unwrap());
    let tokens = dir.path().join("tokens");
    fs::write(&tokens, format!("ops write {WRITE}\n")).unwrap();
    let store = format!("embedded:{}", dir.path().join("db").display());
    for (flags, code, parts) in [
        (vec!["--token-file", text(&tokens)], 1, vec!["--token-file", "chmod 600"]),
        (vec!["--token-file", "/nowhere"], 1, vec!["--token-file", "/nowhere", "No such file"]),
        (vec!["--tls-cert", text(&one.certificate)], 22, vec!["--tls-key"]),
        (vec!["--client-ca", text(&authority.ca)], 22, vec!["--tls-cert"]),
        (
            vec!["--tls-cert", text(&one.certificate), "--tls-key", text(&other.key)],
            1,
            vec!["one.pem", "other.key"],
        ),
        (
            vec!["--tls-cert", text(&one.key), "--tls-key", text(&one.key)],
            1,
            vec!["one.key", "no certificate"],
        ),
        (vec!["--max-connections", "0"], 22, vec!["--max-connections"]),
        (vec!["--client-timeout", "soon"], 22, vec!["--client-timeout", "seconds"]),
    ] {
        let mut command = Command::new(program());
        command.args(["--mode", "test", "--netmode", "vlan", "--fwdmode", "bridge", "--store", &store]);
        command.args([
            "--store-listen",
            &loopback().to_string(),
            "--external-address",
            &loopback().to_string(),
        ]);
        let output = command.args(&flags).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {said}");
        let line = said.lines().last().unwrap_or_default();
        assert!(parts.iter().all(|part| line.contains(part)), "{flags:?}: {said}");
        assert!(!said.contains(WRITE), "{said}");
    }
}

#[test]
fn etcd_client_certificates_and_passwords_are_supported() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let authority = Authority::new().unwrap();
    let (server, own) =
        (authority.sign("etcd", &["127.0.0.1"]).unwrap(), authority.sign("own", &["own"]).unwrap());
    let (plain, secured) = (loopback(), loopback());
    let argument = |flag: &str, value: &str| format!("--{flag}={value}");
    // The plain port is used for the setup.
    let etcd = Etcd::options()
        .client_port(plain.port())
        .argument(&argument("listen-client-urls", &format!("http://{plain},https://{secured}")))
        .argument(&argument("cert-file", text(&server.certificate)))
        .argument(&argument("key-file", text(&server.key)))
        .argument(&argument("trusted-ca-file", text(&authority.ca)))
        .argument("--client-cert-auth")
        .start()
        .unwrap();
    // netmaster needs no more than its prefix.
    let commands: [&[&str]; 7] = [
        &["user", "add", "root:root-secret"],
        &["user", "add", "contiv:s3cret-of-contiv"],
        &["role", "add", "root"],
        &["role", "add", "contiv-netmaster"],
        &["role", "grant-permission", "contiv-netmaster", "--prefix", "readwrite", "/contiv.io/"],
        &["user", "grant-role", "root", "root"],
        &["user", "grant-role", "contiv", "contiv-netmaster"],
    ];
    for command in commands.iter().chain([&["auth", "enable"][..]].iter()) {
        etcd.ctl(command).unwrap();
    }
    let dir = testkit::scratch_dir("etcd-access").unwrap();
    let password = dir.path().join("password");
    write_secret(&password, "s3cret-of-contiv\n").unwrap();
    let flags = || {
        let flags = [
            "--etcd",
            &format!("https://{secured}"),
            "--etcd-ca",
            text(&authority.ca),
            "--etcd-cert",
            text(&own.certificate),
            "--etcd-key",
            text(&own.key),
            "--etcd-user",
            "contiv",
            "--etcd-password-file",
            text(&password),
            "--lease-ttl",
            "2",
            "--log-level",
            "trace",
        ];
        flags.map(str::to_owned).to_vec()
    };
    let master = Master::wait_leading(flags());
    make_network(master.address, "net", "10.0.0.0/24");
    assert!(!master.process.log().contains("s3cret"), "{}", master.process.tail());

    let refused = |drop: &str, words: &str| {
        let mut flags = flags();
        let at = flags.iter().position(|flag| flag == drop).unwrap();
        flags.drain(at..at + 4);
        let mut command = Command::new(program());
        command.args(["--mode", "test", "--netmode", "vlan", "--fwdmode", "bridge"]).args(flags);
        command.args(["--external-address", &loopback().to_string(), "--store-wait", "1s"]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.lines().last().unwrap().contains(words), "{drop}: {said}");
    };
    // Without a password the user is the name in the certificate, which etcd does not know.
    refused("--etcd-user", "permission denied");
    refused("--etcd-cert", "connect to the store");
}
