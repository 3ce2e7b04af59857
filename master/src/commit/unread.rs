//! Reading the values of derived records that the cache does not have yet.

use std::time::Duration;

use contiv_store::{Error, Listing, Store};
use futures::stream::{self, Stream, StreamExt as _};
use tokio::time::sleep;

use crate::cache::{DerivedKeys, DerivedValues};
use crate::problem::one_line;

const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Lists that are read at a time.
const PARALLEL: usize = 8;

/// Reads the records, until the store answers.
pub fn read_derived(
    store: &Store,
    keys: impl IntoIterator<Item = DerivedKeys>,
) -> impl Stream<Item = DerivedValues> {
    stream::iter(keys).map(|keys| read(store, keys)).buffer_unordered(PARALLEL)
}

async fn read(store: &Store, keys: DerivedKeys) -> DerivedValues {
    loop {
        match try_read(store, &keys).await {
            Ok(listing) => return DerivedValues::decode(keys, &listing),
            Err(error) => {
                tracing::warn!(error = one_line(&error), ?keys, "read derived records; retrying");
                sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

async fn try_read(store: &Store, keys: &DerivedKeys) -> Result<Listing, Error> {
    match keys {
        DerivedKeys::Below(prefix) => store.list(prefix).await,
        DerivedKeys::One(key) => {
            let (kv, revision) = store.get_with_revision(key).await?;
            Ok(Listing { cluster: 0, revision, items: kv.into_iter().collect() })
        }
    }
}
