use contiv_model::{event::Event, key::LEADER};
use contiv_store::Store;
use futures::StreamExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Watches the lock key and publishes the leader's address.
pub(super) async fn follow(
    store: Store,
    leader: watch::Sender<Option<String>>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut watch = store.watch(LEADER);
    loop {
        let update = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            update = watch.next() => update,
        };
        let Some(update) = update else { anyhow::bail!("watch of the leader key ended") };
        match update.event {
            Event::InitApply(key, value) | Event::Apply(key, value) if key == LEADER => {
                let address = String::from_utf8_lossy(&value.value).into_owned();
                tracing::info!(leader = address, "netmaster leader changed");
                leader.send_replace(Some(address));
            }
            Event::Delete(key) if key == LEADER => {
                tracing::info!("no netmaster leader");
                leader.send_replace(None);
            }
            _ => {}
        }
    }
}
