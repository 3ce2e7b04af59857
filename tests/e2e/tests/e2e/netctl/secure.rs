//! TLS, client certificates, tokens, login.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Output, Stdio},
    sync::Arc,
    time::Duration,
};

use e2e::binaries::Binary;
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use serde_json::{Value, json};
use testkit::{Authority, Process, free_port, scratch_dir};

use super::{Bench, command};

const START: Duration = Duration::from_secs(20);

/// A netmaster with TLS and an embedded store.
fn netmaster(folder: &Path, flags: &[&str]) -> (Process, String) {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap()));
    let store = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap()));
    let mut netmaster = Binary::Netmaster.command().unwrap();
    netmaster
        .args(["--mode", "test", "--netmode", "vlan", "--fwdmode", "bridge"])
        .args(["--external-address", &listen.to_string(), "--internal-address", &listen.to_string()])
        .args(["--store", &format!("embedded:{}", folder.join("state").display())])
        .args(["--store-listen", &store.to_string()])
        .args(flags);
    (Process::spawn("netmaster", netmaster).unwrap(), format!("https://{listen}"))
}

#[track_caller]
fn line(output: &Output) -> &str {
    let text = str::from_utf8(&output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text.trim_end()
}

#[test]
fn mutual_tls_and_tokens_are_required() {
    let _machine = testkit::shared();
    let folder = scratch_dir("netctl").unwrap();
    let authority = Authority::new().unwrap();
    let server = authority.sign("netmaster", &["127.0.0.1"]).unwrap();
    let own = authority.sign("netctl", &["netctl"]).unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (ca, cert, key) = (path(&authority.ca), path(&own.certificate), path(&own.key));
    let tokens = folder.path().join("tokens");
    testkit::write_secret(&tokens, "ops write 0123456789abcdef\nboard read fedcba9876543210\n").unwrap();
    let (mut master, url) = netmaster(
        folder.path(),
        &["--tls-cert", &path(&server.certificate), "--tls-key", &path(&server.key), "--client-ca", &ca]
            .into_iter()
            .chain(["--token-file", &path(&tokens)])
            .collect::<Vec<_>>(),
    );
    let token = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        path(&file)
    };
    let (ops, board) = (token("ops", "0123456789abcdef\n"), token("board", "fedcba9876543210"));
    let netctl = |args: &[&str]| command(&url, folder.path(), args).output().unwrap();
    let known = ["--cacert", &ca, "--cert", &cert, "--key", &key];
    let with =
        |more: &[&'static str], token: &str| netctl(&[&known[..], &["--token-file", token], more].concat());
    master
        .wait_ready(START, "netmaster leads", || {
            Ok(with(&["global", "info"], &ops).status.success().then_some(()))
        })
        .unwrap();

    assert!(with(&["tenant", "create", "blue"], &ops).status.success());
    let names = with(&["tenant", "ls", "-q"], &board);
    assert_eq!(names.stdout, b"blue\ndefault\n");
    // Only with environment variables.
    let mut plain = command(&url, folder.path(), &["tenant", "ls", "-q"]);
    plain
        .env("NETCTL_CACERT", &ca)
        .env("NETCTL_CERT", &cert)
        .env("NETCTL_KEY", &key)
        .env("NETCTL_TOKEN_FILE", &board);
    assert_eq!(plain.output().unwrap().stdout, names.stdout);
    // --insecure skips the verification of the server certificate.
    let insecure =
        netctl(&["--insecure", "--cert", &cert, "--key", &key, "--token-file", &ops, "tenant", "ls", "-q"]);
    assert_eq!(insecure.stdout, names.stdout);
    // The flag goes before the variable.
    let mut verified = command(&url, folder.path(), &["--insecure=false", "tenant", "ls"]);
    let verified = verified.env("INSECURE", "true").output().unwrap();

    for (output, code, words) in [
        (netctl(&["tenant", "ls"]), 3, "--cacert sets the CA bundle"),
        (verified, 3, "--cacert sets the CA bundle"),
        (netctl(&["--cacert", &ca, "tenant", "ls"]), 3, "--cert and --key set a client certificate"),
        (netctl(&[&known[..], &["tenant", "ls"]].concat()), 3, "token"),
        (with(&["tenant", "create", "red"], &board), 3, ""),
    ] {
        assert_eq!(output.status.code(), Some(code), "{}", line(&output));
        assert!(line(&output).contains(words), "{}", line(&output));
    }
}

/// Authentication proxy: issues tokens and forwards requests with a token to netmaster. Serves until the process ends.
fn proxy(bench: &Bench, authority: &Authority) -> String {
    let files = authority.sign("proxy", &["localhost"]).unwrap();
    let chain = vec![CertificateDer::from_pem_file(&files.certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&files.key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let master = bench.master.client().server();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(config.clone()).unwrap();
            // A client that does not trust the certificate aborts the handshake.
            let _ = exchange(StreamOwned::new(connection, stream.unwrap()), master);
        }
    });
    url
}

fn exchange(mut client: StreamOwned<ServerConnection, TcpStream>, master: SocketAddr) -> std::io::Result<()> {
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    let (head, body) = loop {
        let read = client.read(&mut buffer)?;
        request.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let header = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
        };
        if body.len() < header("content-length").map_or(0, |length| length.parse().unwrap()) {
            continue;
        }
        break (head.to_owned(), body.to_owned());
    };
    let answer = |status: &str, body: &str| {
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
    };
    let login = json!({"username": "ann", "password": "a secret"});
    let answer = if head.starts_with("POST /api/v1/auth_proxy/login/ ") {
        match serde_json::from_str::<Value>(&body).unwrap() == login {
            true => answer("200 OK", r#"{"token":"t0ken"}"#).into_bytes(),
            false => answer("401 Unauthorized", "wrong name or password\n").into_bytes(),
        }
    } else if head.to_ascii_lowercase().contains("x-auth-token: t0ken") {
        let mut upstream = TcpStream::connect(master)?;
        upstream.write_all(format!("{head}\r\nConnection: close\r\n\r\n{body}").as_bytes())?;
        let mut answer = vec![];
        upstream.read_to_end(&mut answer)?;
        answer
    } else {
        answer("401 Unauthorized", "no token: netctl login\n").into_bytes()
    };
    client.write_all(&answer)?;
    client.conn.send_close_notify();
    client.flush()
}

#[test]
fn login_stores_the_token_for_later_requests() {
    use std::os::unix::fs::PermissionsExt as _;

    let _machine = testkit::shared();
    let bench = Bench::new();
    let authority = Authority::new().unwrap();
    let url = proxy(&bench, &authority);
    let home = bench.folder.path();
    let ca = authority.ca.to_str().unwrap();
    let netctl = |args: &[&str], input: &str| {
        let mut command = command(&url, home, args);
        let mut child = command
            .env("NETCTL_CACERT", ca)
            .env_remove("XDG_CONFIG_HOME")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that does not read its input may close the pipe.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    };
    assert_eq!(line(&netctl(&["tenant", "ls"], "")), "netctl: no token: netctl login");
    let wrong = netctl(&["login"], "ann\nguess\n");
    assert_eq!((line(&wrong), wrong.status.code()), ("netctl: wrong name or password", Some(3)));
    let file = home.join(".netctl/config.json");
    assert!(!file.exists());

    let right = netctl(&["login"], "ann\na secret\n");
    assert_eq!(String::from_utf8(right.stderr).unwrap(), "");
    assert_eq!(String::from_utf8(right.stdout).unwrap(), "Username: Login successful\n");
    let stored: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(stored, json!({"token": "t0ken", "netmasters": [&url]}));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(netctl(&["tenant", "ls", "-q"], "").stdout, b"default\n");
    assert!(netctl(&["tenant", "create", "blue"], "").status.success());
    assert_eq!(bench.ok(&["tenant", "ls", "-q"]), "blue\ndefault\n");
    // --token-file takes precedence.
    let other = bench.file("token", "other\n");
    assert_eq!(netctl(&["--token-file", &other, "tenant", "ls"], "").status.code(), Some(3));

    // Another server does not get the token, alone or together with the first one.
    let elsewhere = proxy(&bench, &authority);
    for urls in [elsewhere.clone(), format!("{elsewhere},{url}")] {
        let refused = netctl(&["--netmaster", &urls, "tenant", "ls"], "");
        assert_eq!(line(&refused), "netctl: no token: netctl login", "{urls}");
    }
    let set = netctl(&["config", "set-context", "here", "--netmaster", &url, "--cacert", ca], "");
    assert!(set.status.success(), "{set:?}");
    let in_context = ["--context", "here", "tenant", "ls", "-q"];
    assert_eq!(netctl(&in_context, "").stdout, b"blue\ndefault\n");
    // The original does not store where a token is from, and has no contexts.
    std::fs::write(&file, "{\"token\":\"t0ken\"}\n").unwrap();
    assert_eq!(netctl(&["tenant", "ls", "-q"], "").stdout, b"blue\ndefault\n");
    assert_eq!(line(&netctl(&in_context, "")), "netctl: no token: netctl login");
}
