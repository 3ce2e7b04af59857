use std::time::Duration;

use axum::http::{Method, StatusCode, Uri};
use contiv_store::election::{self, Timing};
use contiv_store::{Config, Store, embedded};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::aci::{FabricSync, Gateway};
use crate::cache::SharedCache;
use crate::commit::Committer;
use crate::leadership::{History, LinearizableRead, READ_LIMIT, Reads, WatchBacklogs};
use crate::metrics::Metrics;
use crate::objects::Cluster;

/// Waits for something that must not happen.
const A_MOMENT: Duration = Duration::from_millis(100);

/// A leader with an empty cache, which commits nothing.
async fn leader(store: &Store) -> Leader {
    let identity = Identity { address: "127.0.0.1:1".to_owned(), ip: "127.0.0.1".to_owned() };
    let timing = Timing { ttl: Duration::from_secs(30), staleness: Duration::from_secs(1) };
    let leadership = election::campaign(store, "lock", &identity.address, timing).await.unwrap();
    let cache = SharedCache::default();
    let (queue, _committer) = Committer::new(store.clone(), cache.clone(), Metrics::default());
    let (linearizable_read, _confirming) = LinearizableRead::new(leadership.read_index());
    let gateway = Gateway::new("http://127.0.0.1:1".into(), None).unwrap().0;
    let ended = CancellationToken::new();
    Leader {
        reads: Reads::new(cache.clone()),
        cache,
        queue,
        linearizable_read,
        fabric: FabricSync::new(gateway, leadership.read_index(), ended.clone()).into(),
        cluster: Cluster::default(),
        identity,
        store: store.clone(),
        history: History::default(),
        watch_permits: Semaphore::new(1).into(),
        watch_backlogs: WatchBacklogs::default(),
        ended,
    }
}

/// Status of the response to a GET.
async fn get(leader: &Leader, path: &'static str) -> StatusCode {
    let uri = Uri::from_static(path);
    let route = Route::of(&Method::GET, &uri);
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = uri;
    Routes(leader).answer(route, &Scope::All, request, ErrorFormat::ProblemDetails).await.status()
}

/// The threads that serve requests neither take nor encode them.
#[tokio::test]
async fn reads_of_the_cache_wait_for_their_turn() {
    const READS: [(&str, u16); 7] = [
        ("/api/v1/netprofiles/", 200),
        ("/api/v1/netprofiles/t:p/", 404),
        ("/api/v1/inspect/netprofiles/t:p/", 404),
        ("/api/v1/inspect/endpoints/e/", 404),
        ("/api/v1/inspect/nodes/", 200),
        ("/api/v1/inspect/nodes/h/", 404),
        ("/service/s:t", 200),
    ];
    let folder = tempfile::tempdir().unwrap();
    let server = embedded::Server::open(folder.path(), ([127, 0, 0, 1], 0).into()).await.unwrap();
    let store = Store::connect(&Config::new([server.endpoint()])).await.unwrap();
    let leader = leader(&store).await;
    let (ready, mut started) = mpsc::unbounded_channel();
    let mut ends = vec![];
    for _ in 0..READ_LIMIT {
        let (end, wait) = std::sync::mpsc::channel::<()>();
        ends.push(end);
        let (reads, ready) = (leader.reads.clone(), ready.clone());
        let report = move || {
            ready.send(()).unwrap();
            // Ends with an error when the sender is dropped.
            let _ended = wait.recv();
            Ok(())
        };
        tokio::spawn(async move { reads.read(|_| Box::new(report)).await });
        started.recv().await.unwrap();
    }
    for (path, _) in READS {
        assert!(timeout(A_MOMENT, get(&leader, path)).await.is_err(), "{path}");
    }
    drop(ends);
    for (path, status) in READS {
        assert_eq!(get(&leader, path).await, status, "{path}");
    }
}
