//! The file of the embedded store, and the disk below it.

use crate::kv::Committed;
use crate::peer::{Kind, Peer};
use anyhow::{Context, Result, ensure};
use contiv_store::election::{Timing, campaign};
use contiv_store::{Config, Store, Txn, embedded::Server};
use etcd_client::{EventType, GetOptions, WatchOptions};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::scratch_dir;

/// Guards against hanging.
const HANG: Duration = Duration::from_secs(60);
/// There is no other candidate.
const TIMING: Timing = Timing { ttl: Duration::from_secs(60), staleness: Duration::from_secs(8) };
const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

async fn refused(dir: &Path, listen: SocketAddr) -> Result<String> {
    let error = Server::open(dir, listen).await.err().context("it opened")?;
    Ok(format!("{:#}", anyhow::Error::from(error)))
}

async fn connect(server: &Server) -> Result<Store> {
    Ok(Store::connect(&Config::new([server.endpoint()])).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_is_refused_with_the_reason() -> Result<()> {
    let (one, two) = (scratch_dir("store")?, scratch_dir("store")?);
    let server = Server::open(one.path(), ANY).await?;
    let busy = refused(one.path(), ANY).await?;
    ensure!(busy.contains("store.redb is in use by another process"), "{busy}");
    let taken = refused(two.path(), server.local_addr().context("it listens on TCP")?).await?;
    ensure!(
        taken.contains(server.endpoint().trim_start_matches("http://")) && taken.contains("in use"),
        "{taken}"
    );
    std::fs::write(two.path().join("file"), "")?;
    let no_dir = refused(&two.path().join("file/below"), ANY).await?;
    ensure!(no_dir.contains("make the directory"), "{no_dir}");
    server.shutdown().await?;
    Server::open(one.path(), ANY).await?.shutdown().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_ends_streams_and_answers() -> Result<()> {
    use futures::StreamExt;
    let dir = scratch_dir("store")?;
    let server = Server::open(dir.path(), ANY).await?;
    let store = connect(&server).await?;
    let kept = store.register("k", "v", Duration::from_secs(60)).await?;
    let mut watch = store.watch("k");
    for _ in 0..3 {
        watch.next().await.context("snapshot")?;
    }
    let mut client = etcd_client::Client::connect([server.endpoint()], None).await?;
    let mut stream = client.watch("k", None).await?;
    ensure!(stream.message().await?.context("the stream ended")?.created());
    tokio::time::timeout(HANG, server.shutdown()).await??;
    // The server ends the stream itself: a connection that is aborted has no such message.
    let ended = tokio::time::timeout(HANG, stream.message()).await?.err().context("the stream goes on")?;
    ensure!(ended.to_string().contains("embedded store: stopping"), "{ended}");
    drop(kept);
    ensure!(store.commit(Txn::new().put("k", "v")).await.is_err());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn old_revisions_do_not_fill_the_disk() -> Result<()> {
    let dir = scratch_dir("store")?;
    let mut server = Server::open(dir.path(), ANY).await?;
    // On a busy disk a commit of this size may take longer than requests usually may.
    let patient = Config { request_timeout: HANG, ..Config::new([server.endpoint()]) };
    let store = Store::connect(&patient).await?;
    // Like the bitmap of a large subnet: one large value, written often.
    let value = |i: u32| vec![i as u8; 1 << 20];
    for i in 0..200 {
        store.commit(Txn::new().put("/bitmap", value(i))).await?.committed()?;
    }
    let mut client = etcd_client::Client::connect([server.endpoint()], None).await?;
    let old =
        client.get("/bitmap", Some(GetOptions::new().with_revision(2))).await.err().context("still there")?;
    ensure!(old.to_string().contains("compacted"), "{old}");
    let size = std::fs::metadata(dir.path().join("store.redb"))?.len();
    ensure!(size < 200 << 20, "{size} bytes on disk");
    server.shutdown().await?;
    server = Server::open(dir.path(), ANY).await?;
    let kv = connect(&server).await?.get("/bitmap").await?.context("/bitmap")?;
    ensure!(kv.value == value(199) && kv.version == 200);
    server.shutdown().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_at_the_revision_of_a_compaction_is_reported_after_a_restart() -> Result<()> {
    let dir = scratch_dir("store")?;
    let server = Server::open(dir.path(), ANY).await?;
    let mut client = etcd_client::Client::connect([server.endpoint()], None).await?;
    client.put("k", "v", None).await?;
    let deleted = client.delete("k", None).await?.header().context("no header")?.revision();
    client.put("other", "v", None).await?;
    client.compact(deleted, None).await?;
    drop(client);
    server.shutdown().await?;

    let server = Server::open(dir.path(), ANY).await?;
    let mut client = etcd_client::Client::connect([server.endpoint()], None).await?;
    let options = WatchOptions::new().with_start_revision(deleted);
    let mut stream = client.watch("k", Some(options)).await?;
    let event = async {
        loop {
            let message = stream.message().await?.context("the stream ended")?;
            ensure!(!message.canceled(), "{message:?}");
            if let Some(event) = message.events().first() {
                return anyhow::Ok((event.event_type(), event.kv().context("no key")?.mod_revision()));
            }
        }
    };
    let event = tokio::time::timeout(HANG, event).await.context("the deletion is lost")??;
    ensure!(event == (EventType::Delete, deleted), "{event:?}");
    drop((client, stream));
    server.shutdown().await?;
    Ok(())
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program).args(arguments).output()?;
    ensure!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_writes_until_there_is_room() -> Result<()> {
    testkit::needs!(root(), binary("unshare"), binary("nsenter"));
    let mut peer = tokio::task::block_in_place(|| Peer::start_on_a_small_disk(6 << 20))?;
    ensure!(peer.kind() == Kind::Embedded);
    let store = peer.store().await?;
    let leadership = campaign(&store, "/lock", "me", TIMING).await?;
    let mut written = 0;
    let error = loop {
        match store.commit(Txn::new().put(format!("/k/{written}"), vec![b'v'; 100 << 10])).await {
            Ok(outcome) => drop(outcome.committed()?),
            Err(e) => {
                ensure!(!e.outcome_unknown(), "{e:?}");
                break format!("{:#}", anyhow::Error::from(e));
            }
        }
        written += 1;
        ensure!(written < 200, "20 MB on a disk of 6");
    };
    ensure!(error.contains("store.redb") && error.contains("No space left"), "{error}");
    // Acknowledged writes are kept, and reads are still served.
    ensure!(store.list("/k/").await?.items.len() == written);
    // The leader knows that its change was not written, without another write.
    let refused = leadership.commit(Txn::new().put("/large", vec![b'v'; 1 << 20])).await;
    let refused = refused.err().context("there is room")?;
    ensure!(!refused.outcome_unknown(), "{refused:?}");
    ensure!(tokio::time::timeout(HANG, leadership.resolve_pending()).await??, "the leadership is over");
    ensure!(store.get("/large").await?.is_none());
    let pid = peer.pid().to_string();
    let dir = peer.dir().context("an embedded store")?.display().to_string();
    run("nsenter", &["-t", &pid, "-m", "mount", "-o", "remount,size=40m", &dir])?;
    let start = Instant::now();
    while store.commit(Txn::new().put("/k/more", "v")).await.is_err() {
        ensure!(start.elapsed() < HANG, "does not recover");
    }
    ensure!(store.list("/k/").await?.items.len() == written + 1);
    leadership.commit(Txn::new().put("/large", vec![b'v'; 1 << 20])).await?.committed()?;
    Ok(())
}
