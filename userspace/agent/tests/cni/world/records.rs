//! Records in the store.

use contiv_model::{
    endpoint::{self, Oper},
    key::Key,
};
use contiv_store::{Store, Txn};

use super::{HOST, World};

impl World {
    pub(crate) async fn record(&self, endpoint: &str) -> Option<Oper> {
        let found = self.store.get(&Key::EndpointOper(endpoint.into()).to_string()).await.unwrap();
        found.map(|record| serde_json::from_slice(&record.value).unwrap())
    }

    /// Writes the record of an endpoint that another client created at netmaster. The agent has it if its node needs the network.
    pub(crate) async fn put_endpoint(&self, name: &str, host: &str, octet: u8) {
        let state = endpoint::State {
            id: format!("n.t-{name}"),
            net_id: "n.t".into(),
            endpoint_id: name.into(),
            ip_address: format!("10.9.0.{octet}"),
            mac_address: format!("02:02:0a:09:00:{octet:02x}"),
            homing_host: host.into(),
            ..endpoint::State::default()
        };
        put(&self.store, &Key::Endpoint(state.id.as_str().into()), &state).await;
    }

    /// Writes the record that an agent with this VTEP writes of its endpoint. Earlier versions do not write the network
    /// configuration.
    pub(crate) async fn put_record(&self, name: &str, port: &str, vtep: &str, configuration: Option<&str>) {
        let oper = Oper {
            net_id: "n.t".into(),
            cont_uuid: name.into(),
            port_name: port.into(),
            vtep_ip: vtep.into(),
            homing_host: HOST.into(),
            cni_configuration: configuration.map(str::to_owned),
            ..Oper::default()
        };
        put(&self.store, &Key::EndpointOper(format!("n.t-{name}").as_str().into()), &oper).await;
    }

    /// Key of the group of an endpoint in the store.
    pub(crate) async fn group_of(&self, endpoint: &str) -> String {
        let found = self.store.get(&Key::Endpoint(endpoint.into()).to_string()).await.unwrap().unwrap();
        serde_json::from_slice::<endpoint::State>(&found.value).unwrap().endpoint_group_key
    }

    /// Ids of the endpoints in the store.
    pub(crate) async fn endpoints(&self) -> Vec<String> {
        const PREFIX: &str = "/contiv.io/state/eps/";
        let items = self.store.list(PREFIX).await.unwrap().items;
        items.iter().map(|kv| kv.key.trim_start_matches(PREFIX).to_owned()).collect()
    }
}

/// Writes a record to the store.
pub(crate) async fn put(store: &Store, key: &Key, body: &impl serde::Serialize) {
    let txn = Txn::new().put(key.to_string(), serde_json::to_vec(body).unwrap());
    assert!(matches!(store.commit(txn).await.unwrap(), contiv_store::Outcome::Committed { .. }));
}
