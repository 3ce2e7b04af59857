//! When nodes have registered.

use contiv_model::node;
use contiv_model::registry::ServiceInfo;
use contiv_store::KeyValue;

use super::ClusterCache;
use super::decoded::DecodedValue;
use super::record::Entry as _;

/// With more entries, those of nodes that are not marked as gone are dropped: their names come and go.
const MANY: usize = 1024;

impl ClusterCache {
    /// Revision of the node's last registration that the watch has reported, or 0. The registration may have expired
    /// since then.
    pub fn last_registration(&self, host: &str) -> i64 {
        self.registrations.get(host).copied().unwrap_or_default()
    }

    pub(super) fn set_registration(
        &mut self,
        id: &str,
        kv: Option<&KeyValue>,
        decoded: DecodedValue,
        revision: i64,
    ) {
        self.set_value::<ServiceInfo>(id, kv, decoded, revision);
        let known = self.table::<ServiceInfo>().get(id).filter(|known| known.revision == revision);
        let service = known.map(|known| known.value.clone()).filter(|service| service.is_of_node());
        if let Some(service) = service {
            if self.registrations.len() >= MANY {
                let gone = node::Gone::table(&self.tables);
                self.registrations.retain(|host, _| gone.contains_key(host));
            }
            let last = self.registrations.entry(service.hostname.clone()).or_default();
            *last = revision.max(*last);
        }
    }
}
