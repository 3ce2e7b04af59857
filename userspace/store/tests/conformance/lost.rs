//! Commits of the leader whose answers are lost.

use crate::kv::Committed;
use crate::peer::Peer;
use anyhow::{Context, Result, ensure};
use contiv_store::election::{Leadership, Timing, campaign};
use contiv_store::{Config, Error, Guard, MAX_LEADER_GUARDS, MAX_LEADER_OPS, Outcome, Store, Txn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use testkit::etcd::Etcd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const LOCK: &str = "/lock";
/// There is no other candidate.
const TIMING: Timing = Timing { ttl: Duration::from_secs(60), staleness: Duration::from_secs(8) };

/// What the proxy forwards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Passes {
    Everything,
    /// Requests arrive, answers do not.
    Requests,
    Nothing,
}

/// A proxy to the store that can drop data.
struct LossyProxy {
    address: String,
    passes: Arc<AtomicU8>,
}

impl LossyProxy {
    async fn to(endpoint: &str) -> Result<LossyProxy> {
        let to = endpoint.strip_prefix("http://").context("an endpoint")?.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, passes) = (listener.local_addr()?.to_string(), Arc::new(AtomicU8::new(0)));
        let state = passes.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(&to).await else { continue };
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                tokio::spawn(pass(near_in, far_out, state.clone(), Passes::Requests));
                tokio::spawn(pass(far_in, near_out, state.clone(), Passes::Everything));
            }
        });
        Ok(LossyProxy { address, passes })
    }

    fn set(&self, passes: Passes) {
        self.passes.store(passes as u8, Ordering::SeqCst);
    }
}

/// Forwards data while the proxy passes `up_to`; a connection that has lost data ends with the next data.
async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    state: Arc<AtomicU8>,
    up_to: Passes,
) {
    let (mut buffer, mut lost) = (vec![0; 64 << 10], false);
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let passes = state.load(Ordering::SeqCst) <= up_to as u8;
        if passes && (lost || to.write_all(&buffer[..read]).await.is_err()) {
            return;
        }
        lost |= !passes;
    }
}

/// A leader that connects through a proxy, and directly if the proxy fails.
async fn leader(peer: &Peer) -> Result<(LossyProxy, Store, Leadership)> {
    let proxy = LossyProxy::to(&peer.endpoint()).await?;
    let store = Store::connect(&Config::new([proxy.address.clone(), peer.endpoint()])).await?;
    let leadership = campaign(&store, LOCK, "me", TIMING).await?;
    Ok((proxy, store, leadership))
}

fn absent(key: &str) -> Txn {
    Txn::new().guard(Guard::absent(key))
}

pub(crate) async fn a_commit_whose_answer_is_lost_is_found(peer: &mut Peer) -> Result<()> {
    let (proxy, store, leadership) = leader(peer).await?;
    leadership.commit(absent("k").put("k", "1").put("l", "1")).await?.committed()?;
    let k = store.get("k").await?.context("k")?;
    proxy.set(Passes::Requests);
    let txn = Txn::new().guard(Guard::ModRevision { key: "k".into(), revision: k.mod_revision });
    let Outcome::Committed { revision } = leadership.commit(txn.put("k", "2").delete("l")).await? else {
        anyhow::bail!("it conflicts with itself");
    };
    let k = store.get("k").await?.context("k")?;
    ensure!(k.value == "2" && k.mod_revision == revision && k.version == 2, "{k:?}, found {revision}");
    ensure!(store.get("l").await?.is_none());
    ensure!(!leadership.is_lost() && leadership.read_index().confirm().await?);
    leadership.commit(absent("m").put("m", "1")).await?.committed()?;
    Ok(())
}

/// The largest one, too.
pub(crate) async fn a_large_commit_whose_answer_is_lost_is_found(peer: &mut Peer) -> Result<()> {
    let (proxy, store, leadership) = leader(peer).await?;
    proxy.set(Passes::Requests);
    let guarded =
        (0..MAX_LEADER_GUARDS).fold(Txn::new(), |txn, key| txn.guard(Guard::absent(format!("{key}"))));
    let txn = (0..MAX_LEADER_OPS).fold(guarded, |txn, key| txn.put(format!("{key}"), "1"));
    leadership.commit(txn.clone()).await?.committed()?;
    ensure!(store.get("0").await?.context("0")?.version == 1);
    let more = leadership.commit(txn.put("more", "1")).await.err().context("it is too large")?;
    ensure!(matches!(more, Error::TooManyOps { .. }), "{more}");
    Ok(())
}

pub(crate) async fn a_lost_commit_is_applied_once(peer: &mut Peer) -> Result<()> {
    let (proxy, store, leadership) = leader(peer).await?;
    let before = leadership.guard();
    proxy.set(Passes::Nothing);
    leadership.commit(absent("k").put("k", "1")).await?.committed()?;
    // What was held up all the time and arrives now comes too late, also when its other guards hold again.
    let k = store.get("k").await?.context("k")?;
    ensure!(k.version == 1, "{k:?}");
    let gone = Txn::new().guard(Guard::ModRevision { key: "k".into(), revision: k.mod_revision });
    leadership.commit(gone.delete("k")).await?.committed()?;
    ensure!(store.commit(absent("k").guard(before).put("k", "1")).await? == Outcome::Conflict);
    ensure!(store.get("k").await?.is_none());
    Ok(())
}

pub(crate) async fn a_conflict_whose_answer_is_late_is_a_conflict(peer: &mut Peer) -> Result<()> {
    let (proxy, store, leadership) = leader(peer).await?;
    store.commit(Txn::new().put("k", "theirs")).await?.committed()?;
    proxy.set(Passes::Requests);
    ensure!(leadership.commit(absent("k").put("k", "ours")).await? == Outcome::Conflict);
    ensure!(store.get("k").await?.context("k")?.value == "theirs");
    ensure!(leadership.resolve_pending().await?);
    leadership.commit(absent("l").put("l", "1")).await?.committed()?;
    Ok(())
}

/// No answer arrives for so long that the outcome is unknown.
pub(crate) async fn an_unknown_outcome_is_resolved_before_the_next_commit(peer: &mut Peer) -> Result<()> {
    let proxy = LossyProxy::to(&peer.endpoint()).await?;
    let config = Config { request_timeout: Duration::from_secs(2), ..Config::new([proxy.address.clone()]) };
    let store = Store::connect(&config).await?;
    let leadership = campaign(&store, LOCK, "me", TIMING).await?;
    let before = leadership.guard();
    proxy.set(Passes::Nothing);
    let error = leadership.commit(absent("k").put("k", "1")).await.err().context("it is not answered")?;
    ensure!(error.outcome_unknown(), "{error}");
    proxy.set(Passes::Everything);
    // The connection has lost bytes; it is made anew when that is found out.
    let settled = async {
        loop {
            if let Ok(settled) = leadership.resolve_pending().await {
                return settled;
            }
        }
    };
    ensure!(tokio::time::timeout(Duration::from_secs(60), settled).await?);
    let direct = peer.store().await?;
    ensure!(direct.commit(absent("k").guard(before).put("k", "1")).await? == Outcome::Conflict);
    leadership.commit(absent("l").put("l", "1")).await?.committed()?;
    Ok(())
}

/// The commit is applied, and its repetition, at another member, is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_of_the_repetition_leaves_the_outcome_unknown() -> Result<()> {
    testkit::needs!(binary("etcd"));
    let etcd = Etcd::start()?;
    let other = Etcd::options().argument("--max-request-bytes=16384").start()?;
    let proxy = LossyProxy::to(&etcd.endpoint()).await?;
    let store = Store::connect(&Config::new([proxy.address.clone(), other.endpoint()])).await?;
    let leadership = campaign(&store, LOCK, "me", TIMING).await?;
    proxy.set(Passes::Requests);
    // A larger request would wait for the other side to take its first 64 KB.
    let value = "v".repeat(32 << 10);
    let error = leadership.commit(absent("k").put("k", value)).await.err().context("it is not answered")?;
    ensure!(error.outcome_unknown(), "{error}");
    ensure!(Store::connect(&Config::new([etcd.endpoint()])).await?.get("k").await?.is_some());
    Ok(())
}
