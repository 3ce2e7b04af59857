//! The other netmasters, which forward requests.

use std::net::{IpAddr, SocketAddr};
use std::ops::Bound;

use contiv_model::registry::{NETMASTER, ServiceInfo};

use crate::cache::SharedCache;

/// Registrations of netmasters, as this one knows them.
#[derive(Clone)]
pub struct Netmasters {
    cache: SharedCache,
    /// Internal address of this netmaster.
    own: SocketAddr,
}

impl Netmasters {
    pub fn new(cache: SharedCache, own: SocketAddr) -> Netmasters {
        Netmasters { cache, own }
    }

    /// Whether another netmaster is registered with this address.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let cache = self.cache.read();
        let start = format!("{NETMASTER}/");
        let later = (Bound::Excluded(start.as_str()), Bound::Unbounded);
        let keys = cache.table::<ServiceInfo>().range::<str, _>(later).map(|(key, _)| key);
        keys.map_while(|key| key.strip_prefix(&start))
            .filter_map(registered)
            .any(|(ip, port)| ip == address && (ip, port) != (self.own.ip(), self.own.port()))
    }
}

/// Address and port in the last part of the key of a registration.
fn registered(text: &str) -> Option<(IpAddr, u16)> {
    let (ip, port) = text.rsplit_once(':')?;
    Some((ip.parse().ok()?, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use contiv_model::event::Event;
    use contiv_store::{KeyValue, Update};

    use super::*;

    #[test]
    fn other_netmasters_are_known_by_their_registrations() {
        let cache = SharedCache::default();
        for (revision, id) in (1..).zip([
            "netmaster/10.0.0.1:9999",
            "netmaster/10.0.0.2:9999",
            "netmaster/2001:db8::3:9999",
            "netmaster.rpc/10.0.0.4:9001",
            "netplugin/10.0.0.5:9002",
        ]) {
            let key = format!("/contiv.io/service/{id}");
            let kv = KeyValue {
                key: key.clone(),
                value: Bytes::from_static(b"{}"),
                create_revision: revision,
                mod_revision: revision,
                version: 1,
                lease: 0,
            };
            cache.write().apply_update(&Update { revision, event: Event::Apply(key, kv) });
        }
        let netmasters = Netmasters::new(cache, ([10, 0, 0, 1], 9999).into());
        for (address, known) in [
            ("10.0.0.1", false),
            ("10.0.0.2", true),
            ("::ffff:10.0.0.2", true),
            ("2001:db8::3", true),
            ("10.0.0.4", false),
            ("10.0.0.5", false),
            ("10.0.0.6", false),
        ] {
            assert_eq!(netmasters.has(address.parse().unwrap()), known, "{address}");
        }
    }
}
