//! Keys that exist as long as a lease: the leader's lock, and registrations.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};
use contiv_model::key::ROOT;
use etcd_client::{Client, ConnectOptions, GetOptions};

use super::topology::Topology;

/// `CONTIV_TEST_PATIENCE` multiplies it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Revisions of the creation of the keys. A key whose lease was lost is put again, with another revision.
#[derive(Debug)]
pub(super) struct Leased(BTreeMap<String, i64>);

impl Leased {
    pub(super) fn read(topology: &Topology) -> Result<Leased> {
        let endpoints = topology.endpoints();
        topology.hub.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(read(&endpoints)).context("read the keys with a lease")
        })
    }

    /// A line for each key that was deleted or put again until `later`.
    pub(super) fn lost(&self, later: &Leased) -> Vec<String> {
        let lost = self.0.iter().filter_map(|(key, revision)| match later.0.get(key) {
            Some(now) if now == revision => None,
            Some(_) => Some(format!("{key}: its lease was lost without need, and it was put again")),
            None => Some(format!("{key}: its lease was lost without need")),
        });
        lost.collect()
    }
}

async fn read(endpoints: &[String]) -> Result<Leased> {
    let limit = TIMEOUT * testkit::patience();
    let options = ConnectOptions::new().with_connect_timeout(limit).with_timeout(limit);
    let mut client = Client::connect(endpoints, Some(options)).await?;
    let all = client.get(ROOT, Some(GetOptions::new().with_prefix().with_keys_only())).await?;
    let leased = all.kvs().iter().filter(|kv| kv.lease() != 0);
    leased.map(|kv| Ok((kv.key_str()?.to_owned(), kv.create_revision()))).collect::<Result<_>>().map(Leased)
}

#[cfg(test)]
mod tests {
    use super::Leased;

    #[test]
    fn a_key_that_was_put_again_is_lost() {
        let keys =
            |keys: &[(&str, i64)]| Leased(keys.iter().map(|(key, at)| ((*key).to_owned(), *at)).collect());
        let before = keys(&[("lock", 5), ("service/a", 6), ("service/b", 7)]);
        let lost = |later: &Leased| before.lost(later).len();
        assert_eq!(lost(&keys(&[("lock", 5), ("service/a", 6), ("service/b", 7), ("service/c", 9)])), 0);
        assert_eq!(lost(&keys(&[("lock", 8), ("service/b", 7)])), 2);
    }
}
