//! Connecting: endpoints, credentials and certificates, and the errors about them.

use crate::kv::Committed;
use crate::peer::{Kind, Peer};
use anyhow::{Context, Result, ensure};
use contiv_model::event::Event;
use contiv_store::election::{Timing, campaign};
use contiv_store::{Auth, Config, Identity, KeyValue, Store, Tls, Txn};
use futures::StreamExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::etcd::Etcd;
use testkit::{Process, free_port, scratch_dir};

/// Guards against hanging.
const HANG: Duration = Duration::from_secs(60);

async fn refused(config: &Config) -> Result<String> {
    let error = Store::connect(config).await.err().context("it connected")?;
    Ok(format!("{:#}", anyhow::Error::from(error)))
}

#[tokio::test]
async fn an_unreachable_store_is_named() -> Result<()> {
    let endpoint = format!("http://127.0.0.1:{}", free_port()?);
    let error = tokio::time::timeout(HANG, refused(&Config::new([&endpoint]))).await??;
    let expected = format!("connect to the store: no connection; is etcd running at {endpoint}?");
    ensure!(error.starts_with(&expected) && error.contains("Connection refused"), "{error}");

    // It may be opened nevertheless.
    let config = Config::new([&endpoint]);
    let reached = tokio::time::timeout(HANG, Store::open(&config).await?.reach(&config)).await?;
    ensure!(reached.is_err_and(|error| error.is_transient()), "the error is of no listener");

    let (_listener, silent) = silent()?;
    let error = tokio::time::timeout(HANG, refused(&Config::new([&silent]))).await??;
    ensure!(error.contains("connect to the store") && error.contains(&silent), "{error}");
    Ok(())
}

#[tokio::test]
async fn one_of_several_endpoints_is_enough() -> Result<()> {
    let peer = Peer::start(Kind::Embedded)?;
    let dead = format!("127.0.0.1:{}", free_port()?);
    let store = Store::connect(&Config::new([dead, peer.endpoint()])).await?;
    for i in 0..50 {
        store.commit(Txn::new().put(format!("k/{i}"), "v")).await?.committed()?;
        ensure!(store.get(&format!("k/{i}")).await?.is_some());
    }
    ensure!(store.list("k/").await?.items.len() == 50);
    Ok(())
}

/// A listener that accepts connections and does not answer, and its endpoint.
fn silent() -> Result<(std::net::TcpListener, String)> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let endpoint = listener.local_addr()?.to_string();
    Ok((listener, endpoint))
}

#[tokio::test]
async fn the_last_member_is_enough_to_connect() -> Result<()> {
    let peer = Peer::start(Kind::Embedded)?;
    let (_first, first) = silent()?;
    let (_second, second) = silent()?;
    let config = Config::new([first, second, peer.endpoint()]);
    let store = tokio::time::timeout(HANG, Store::connect(&config)).await??;
    ensure!(store.get("k").await?.is_none());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_member_is_enough_to_log_in() -> Result<()> {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::start()?;
    let config = enable_authentication(&etcd)?;
    let (_first, first) = silent()?;
    let config = Config { endpoints: vec![first, etcd.endpoint()], ..config };
    let store = tokio::time::timeout(HANG, Store::connect(&config)).await??;
    ensure!(store.get("k").await?.is_none());
    Ok(())
}

/// The member accepts connections and does not answer, as one whose packets are lost.
#[tokio::test]
async fn a_silent_member_is_left_for_the_next() -> Result<()> {
    let mut first = Peer::start(Kind::Embedded)?;
    let second = Peer::start(Kind::Embedded)?;
    let store = Store::connect(&Config::new([first.endpoint(), second.endpoint()])).await?;
    let mut watch = store.watch("k/");
    for _ in 0..2 {
        watch.next().await.context("a snapshot")?;
    }
    store.commit(Txn::new().put("k/first", "v")).await?.committed()?;
    ensure!(watch.next().await.context("a change")?.event == applied(&store, "k/first").await?);
    first.freeze()?;
    // Two independent stores: a key that is not found shows which one answered.
    ensure!(store.get("k/first").await?.is_none());
    for i in 0..50 {
        store.commit(Txn::new().put(format!("k/{i}"), "v")).await?.committed()?;
    }
    let update = tokio::time::timeout(Duration::from_secs(20), watch.next()).await?;
    ensure!(update.is_some(), "the watch stays with the silent member");
    first.thaw()?;
    Ok(())
}

async fn applied(store: &Store, key: &str) -> Result<Event<String, KeyValue>> {
    Ok(Event::Apply(key.to_owned(), store.get(key).await?.context("it is there")?))
}

#[tokio::test(flavor = "multi_thread")]
async fn user_and_password() -> Result<()> {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::start()?;
    enable_authentication(&etcd)?;
    let with = |password: &str| Config {
        auth: Some(Auth { user: "root".into(), password: password.into() }),
        ..Config::new([etcd.endpoint()])
    };
    let store = Store::connect(&with("secret")).await?;
    store.commit(Txn::new().put("k", "v")).await?.committed()?;
    // Opened without a login.
    let opened = Store::open(&with("secret")).await?;
    ensure!(opened.get("k").await.is_err(), "requests need a login");
    opened.reach(&with("secret")).await?;
    ensure!(opened.get("k").await?.is_some(), "it is there");
    let unknown = Store::open(&with("wrong")).await?.reach(&with("wrong")).await;
    ensure!(unknown.is_err_and(|error| !error.is_transient()), "a wrong password is no outage");
    let anonymous = refused(&Config::new([etcd.endpoint()])).await?;
    ensure!(anonymous.contains("user name is empty"), "{anonymous}");
    let wrong = refused(&with("wrong")).await?;
    ensure!(wrong.contains("authentication failed") && !wrong.contains("wrong"), "{wrong}");
    Ok(())
}

/// Enables authentication, with user `root` and password `secret`.
pub(crate) fn enable_authentication(etcd: &Etcd) -> Result<Config> {
    tokio::task::block_in_place(|| {
        etcd.ctl(&["user", "add", "root:secret"])?;
        etcd.ctl(&["role", "add", "root"])?;
        etcd.ctl(&["user", "grant-role", "root", "root"])?;
        etcd.ctl(&["auth", "enable"])
    })?;
    let auth = Some(Auth { user: "root".into(), password: "secret".into() });
    Ok(Config { auth, ..Config::new([etcd.endpoint()]) })
}

/// A token expires when it was not used for a while. The one of the watches is used only when they are opened.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_login_is_renewed() -> Result<()> {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::options().argument("--auth-token-ttl=1").start()?;
    let store = Store::connect(&enable_authentication(&etcd)?).await?;
    store.commit(Txn::new().put("k/1", "v")).await?.committed()?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let mut watch = store.watch("k/");
    for _ in 0..3 {
        tokio::time::timeout(HANG, watch.next()).await?.context("a snapshot")?;
    }
    store.commit(Txn::new().put("k/2", "v")).await?.committed()?;
    let update = tokio::time::timeout(HANG, watch.next()).await.context("the watch is not opened")?;
    ensure!(update.context("the watch ended")?.event == applied(&store, "k/2").await?);
    Ok(())
}

/// Signed tokens are of the users and roles at the time of the login.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_users_is_followed_by_a_new_login() -> Result<()> {
    testkit::needs!(binary("etcd"), binary("etcdctl"), binary("openssl"));
    let dir = scratch_dir("jwt")?;
    tokio::task::block_in_place(|| {
        openssl(dir.path(), "genrsa -out private.pem 2048")?;
        openssl(dir.path(), "rsa -in private.pem -pubout -out public.pem")
    })?;
    let file = |name: &str| dir.path().join(name).display().to_string();
    let token = format!(
        "--auth-token=jwt,pub-key={},priv-key={},sign-method=RS256,ttl=10m",
        file("public.pem"),
        file("private.pem")
    );
    let etcd = Etcd::options().argument(&token).start()?;
    let store = Store::connect(&enable_authentication(&etcd)?).await?;
    store.commit(Txn::new().put("k/1", "v")).await?.committed()?;
    let add = |user: &str| {
        let user = format!("{user}:secret");
        tokio::task::block_in_place(|| etcd.ctl(&["--user=root:secret", "user", "add", &user]))
    };
    add("first")?;
    store.commit(Txn::new().put("k/2", "v")).await?.committed()?;
    add("second")?;
    ensure!(store.get("k/2").await?.is_some(), "it is there");
    add("third")?;
    let timing = Timing { ttl: Duration::from_secs(10), staleness: Duration::from_secs(2) };
    let leadership = tokio::time::timeout(HANG, campaign(&store, "lock", "a", timing)).await??;
    leadership.resign().await?;
    Ok(())
}

fn openssl(dir: &Path, arguments: &str) -> Result<()> {
    let output = Command::new("openssl").current_dir(dir).args(arguments.split_whitespace()).output()?;
    ensure!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// A CA, a server at 127.0.0.1 and a client.
fn certificates(dir: &Path) -> Result<()> {
    std::fs::write(dir.join("ext"), "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")?;
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(dir, &format!("req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=test-ca -days 2"))?;
    for name in ["server", "client"] {
        openssl(dir, &format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"))?;
        let sign = "-CA ca.pem -CAkey ca.key -CAcreateserial -extfile ext -days 2";
        openssl(dir, &format!("x509 -req -in {name}.csr -out {name}.pem {sign}"))?;
    }
    Ok(())
}

/// Endpoints for clients and for peers.
fn tls_addresses() -> Result<(String, String)> {
    Ok((format!("https://127.0.0.1:{}", free_port()?), format!("http://127.0.0.1:{}", free_port()?)))
}

/// An etcd with the certificates and the data in `dir`.
fn tls_etcd(dir: &Path, client: &str, peer: &str) -> Result<Process> {
    let file = |name: &str| dir.join(name);
    let mut command = Command::new("etcd");
    command
        .env_clear()
        .args(["--unsafe-no-fsync", "--logger=zap", "--log-level=error", "--client-cert-auth"])
        .args([
            format!("--data-dir={}", file("data").display()),
            format!("--cert-file={}", file("server.pem").display()),
            format!("--key-file={}", file("server.key").display()),
            format!("--trusted-ca-file={}", file("ca.pem").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
        ]);
    Process::spawn("etcd-tls", command)
}

fn client_files(dir: &Path) -> Tls {
    let identity = Identity { certificate: dir.join("client.pem"), key: dir.join("client.key") };
    Tls { ca: Some(dir.join("ca.pem")), identity: Some(identity), server_name: None }
}

/// All certificates are replaced, those of the authority too.
#[tokio::test(flavor = "multi_thread")]
async fn replaced_certificates_are_used() -> Result<()> {
    testkit::needs!(binary("etcd"), binary("openssl"));
    let dir = scratch_dir("tls")?;
    tokio::task::block_in_place(|| certificates(dir.path()))?;
    let (client, peer) = tls_addresses()?;
    let mut etcd = tls_etcd(dir.path(), &client, &peer)?;
    let config = Config { tls: Some(client_files(dir.path())), ..Config::new([client.as_str()]) };
    let start = Instant::now();
    let store = loop {
        match Store::connect(&config).await {
            Ok(store) => break store,
            Err(e) => ensure!(e.is_transient() && start.elapsed() < HANG, "{e:?}"),
        }
    };
    store.commit(Txn::new().put("k/1", "v")).await?.committed()?;
    let mut watch = store.watch("k/");
    for _ in 0..3 {
        watch.next().await.context("a snapshot")?;
    }
    etcd.kill()?;
    tokio::task::block_in_place(|| certificates(dir.path()))?;
    let _etcd = tls_etcd(dir.path(), &client, &peer)?;
    let start = Instant::now();
    while let Err(e) = store.get("k/1").await {
        ensure!(start.elapsed() < HANG, "{:#}", anyhow::Error::from(e));
    }
    store.commit(Txn::new().put("k/2", "v")).await?.committed()?;
    let update = tokio::time::timeout(HANG, watch.next()).await?.context("the watch ended")?;
    ensure!(update.event == applied(&store, "k/2").await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_both_ways() -> Result<()> {
    testkit::needs!(binary("etcd"), binary("openssl"));
    let dir = scratch_dir("tls")?;
    tokio::task::block_in_place(|| certificates(dir.path()))?;
    let file = |name: &str| dir.path().join(name);
    let (client, peer) = tls_addresses()?;
    let _etcd = tls_etcd(dir.path(), &client, &peer)?;
    let with = |tls: Tls| Config { tls: Some(tls), ..Config::new([client.as_str()]) };
    let tls = client_files(dir.path());
    let start = Instant::now();
    let store = loop {
        match Store::connect(&with(tls.clone())).await {
            Ok(store) => break store,
            Err(e) => ensure!(e.is_transient() && start.elapsed() < HANG, "{e:?}"),
        }
    };
    store.commit(Txn::new().put("k", "v")).await?.committed()?;

    let without = refused(&with(Tls { identity: None, ..tls.clone() })).await?;
    ensure!(without.contains("connect to the store"), "{without}");
    let other_ca = refused(&with(Tls { ca: Some(file("server.pem")), ..tls.clone() })).await?;
    ensure!(other_ca.contains("invalid peer certificate"), "{other_ca}");
    let missing = refused(&with(Tls { ca: Some(file("none.pem")), ..tls })).await?;
    ensure!(missing.contains("read CA certificate") && missing.contains("none.pem"), "{missing}");
    Ok(())
}
