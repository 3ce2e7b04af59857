use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use contiv_model::service::Providers;
use contiv_store::{Config, Outcome, embedded};

use super::*;
use crate::{source::prefixes, state};

const SERVICE: &str = "web:t";
/// Slices of the service; a transaction of netmaster can change all of them.
const SLICES: usize = 120;
const ADDRESS: &str = "10.1.1.2";

/// A transaction that leaves the address in one slice only.
fn move_to(slice: usize) -> Txn {
    (0..SLICES).fold(Txn::new(), |txn, number| {
        let id = if number == 0 { SERVICE.to_owned() } else { format!("{SERVICE}/{number}") };
        let providers = Providers {
            service_name: SERVICE.to_owned(),
            providers: (number == slice).then(|| vec![ADDRESS.to_owned()]),
            id: id.clone(),
        };
        txn.put(Key::Providers(id.as_str().into()).to_string(), serde_json::to_vec(&providers).unwrap())
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_of_one_transaction_change_in_one_step() {
    let directory = tempfile::tempdir().unwrap();
    let server = embedded::Server::open(directory.path(), ([127, 0, 0, 1], 0).into()).await.unwrap();
    let store = Store::connect(&Config::new([server.endpoint()])).await.unwrap();
    let commit = async |slice| match store.commit(move_to(slice)).await.unwrap() {
        Outcome::Committed { revision } => revision,
        Outcome::Conflict => panic!("a transaction without guards failed"),
    };
    commit(0).await;
    let (mut writer, _, reader, _) = state::new(prefixes());
    let memory = MemoryFile::beside(&directory.path().join("cni.sock"));
    let (mut guard, _continuity) = Guard::open(store.clone(), "h".into(), reader.clone(), memory).unwrap();
    let following = tokio::spawn(async move { guard.follow(&mut writer).await });
    reader.synced().await;

    let (done, watched) = (Arc::new(AtomicBool::default()), reader.clone());
    let seen_in_parts = {
        let done = done.clone();
        thread::spawn(move || {
            let count = || watched.with(|state| state.providers(&SERVICE.into()).len());
            while !done.load(Ordering::Relaxed) {
                if count() != 1 {
                    return true;
                }
            }
            false
        })
    };
    for round in 1..=60 {
        // From the first to the last slice and back.
        let revision = commit((round % 2) * (SLICES - 1)).await;
        reader.caught_up(&[(Key::Providers(SERVICE.into()), revision)], None).await;
    }
    done.store(true, Ordering::Relaxed);
    assert!(!seen_in_parts.join().unwrap(), "a reader saw a part of a transaction");
    following.abort();
}
