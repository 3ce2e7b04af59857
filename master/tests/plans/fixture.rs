//! Cluster cache over a minimal store in memory.

use std::collections::BTreeMap;
use std::ops::Bound;

use contiv_model::event::Event;
use contiv_model::key::POLICY_RULES;
use contiv_model::policy::{DirectionalRuleState, PolicyState};
use contiv_model::{endpoint, group, network, service};
use contiv_store::{Guard, KeyValue, Listing, Op, Txn, Update, Without};
use netmaster::access::Scope;
use netmaster::cache::{
    AllocationChange, ClusterCache, DERIVED_KEYS, Derived, DerivedKeys, DerivedValues, StagedTxn,
};
use netmaster::domain::attachment::{delete_detached, groups_with_policies, restore_group};
use netmaster::objects::{Cluster, Defaults, Selection, Type};
use netmaster::plugin::{Call, CallKind};
use netmaster::problem::{Answer, Problem};
use netmaster::restore::restore;
use serde_json::{Value, json};

#[derive(Default)]
pub(crate) struct Fixture {
    pub(crate) cache: ClusterCache,
    store: BTreeMap<String, KeyValue>,
    revision: i64,
    /// Everything that was committed, as a watch reports it.
    pub(crate) changes: Vec<Update>,
}

impl Fixture {
    /// A cluster with default settings.
    pub(crate) fn new() -> Fixture {
        Fixture::at("default")
    }

    /// A cluster with this fabric type.
    pub(crate) fn at(infra: &str) -> Fixture {
        let mut fixture = Fixture::default();
        let defaults = Defaults { infra: infra.into(), fwd_mode: "bridge".into() };
        fixture.run(|staged| defaults.put(staged).map(|()| vec![])).unwrap();
        fixture
    }

    /// Runs the plan and commits its changes.
    pub(crate) fn run(&mut self, plan: impl Fn(&mut StagedTxn<'_>) -> Answer) -> Answer {
        let mut staged = StagedTxn::new(&self.cache);
        let answer = plan(&mut staged);
        let unread = staged.unread().clone();
        if !unread.is_empty() {
            unread.into_iter().for_each(|keys| self.read_derived(keys));
            return self.run(plan);
        }
        let (txn, change) = staged.finish().unwrap();
        if !txn.ops.is_empty() {
            assert!(answer.is_ok(), "a plan that fails must change nothing: {txn:?}");
            self.revision += 1;
            self.commit(txn);
            self.cache.commit(change, self.revision);
        }
        answer
    }

    /// Reads values of derived records.
    pub(crate) fn read_derived(&mut self, keys: DerivedKeys) {
        let items = match &keys {
            DerivedKeys::One(key) => self.store.get(key).cloned().into_iter().collect(),
            DerivedKeys::Below(prefix) => {
                let from = self.store.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
                from.take_while(|(key, _)| key.starts_with(prefix)).map(|(_, kv)| kv.clone()).collect()
            }
        };
        let listing = Listing { cluster: 1, revision: self.revision, items };
        self.cache.complete_derived(DerivedValues::decode(keys, &listing));
    }

    /// Restores all that a new leader restores. Returns the number of keys that it wrote and deleted.
    pub(crate) fn restore(&mut self) -> (usize, usize) {
        let mut counts = self.count(restore);
        for group in groups_with_policies(&self.cache) {
            counts.extend(self.count(|staged| restore_group(staged, &group)));
        }
        let directed = self.keys(POLICY_RULES);
        let directed =
            directed.into_iter().filter_map(|key| Some(key.strip_prefix(POLICY_RULES)?.to_owned())).collect();
        counts.extend(self.count(|staged| delete_detached(staged, &directed)));
        counts.into_iter().fold((0, 0), |(puts, deletions), (p, d)| (puts + p, deletions + d))
    }

    fn count(&mut self, plan: impl Fn(&mut StagedTxn<'_>)) -> Vec<(usize, usize)> {
        let answer = self.run(|staged| {
            plan(staged);
            Ok(serde_json::to_vec(&[staged.counts()]).unwrap())
        });
        serde_json::from_slice(&answer.unwrap()).unwrap()
    }

    fn commit(&mut self, txn: Txn) {
        for guard in &txn.guards {
            let Guard::ModRevision { key, revision } = guard else { continue };
            assert_eq!(self.store.get(key).map_or(0, |kv| kv.mod_revision), *revision, "{key}");
        }
        for op in txn.ops {
            let event = match op {
                Op::Put { key, value, .. } => {
                    let kv = KeyValue {
                        key: key.clone(),
                        value,
                        create_revision: 1,
                        mod_revision: self.revision,
                        version: 1,
                        lease: 0,
                    };
                    self.store.insert(key.clone(), kv.clone());
                    Event::Apply(key, kv)
                }
                Op::Delete { key } => {
                    self.store.remove(&key);
                    Event::Delete(key)
                }
            };
            self.changes.push(Update { revision: self.revision, event });
        }
    }

    /// Changes the store directly. The cache reads the change in [`Fixture::loaded`].
    pub(crate) fn edit(&mut self, key: &str, value: Option<&Value>) {
        self.revision += 1;
        let op = match value {
            Some(value) => Op::Put { key: key.into(), value: value.to_string().into(), lease: None },
            None => Op::Delete { key: key.into() },
        };
        self.commit(Txn { guards: vec![], ops: vec![op] });
    }

    /// Reads the key again from the store.
    pub(crate) fn reload(&mut self, key: &str) {
        self.cache.reload(key, self.store.get(key), self.revision);
    }

    pub(crate) fn stored(&self, key: &str) -> KeyValue {
        self.store[key].clone()
    }

    pub(crate) fn put(&mut self, types: &str, key: &str, body: &Value) -> Result<Value, Problem> {
        self.put_as(&Scope::All, &Cluster::default(), types, key, body)
    }

    pub(crate) fn put_as(
        &mut self,
        scope: &Scope,
        cluster: &Cluster,
        types: &str,
        key: &str,
        body: &Value,
    ) -> Result<Value, Problem> {
        let t = Type::by_plural(types).unwrap().operations;
        let request = (t.check)(key, body.to_string().as_bytes())?;
        self.run(|staged| (t.put)(&request, scope, cluster, staged)).map(read)
    }

    /// Like [`Fixture::put`], without the validation that limits sizes.
    pub(crate) fn put_unchecked(&mut self, types: &str, key: &str, body: &Value) -> Result<Value, Problem> {
        let t = Type::by_plural(types).unwrap().operations;
        let mut request = body.as_object().unwrap().clone();
        request.insert("key".into(), key.into());
        self.run(|staged| (t.put)(&request, &Scope::All, &Cluster::default(), staged)).map(read)
    }

    pub(crate) fn delete(&mut self, types: &str, key: &str) -> Result<Value, Problem> {
        let t = Type::by_plural(types).unwrap().operations;
        self.run(|staged| (t.delete)(key, &Scope::All, staged)).map(read)
    }

    pub(crate) fn inspect(&self, types: &str, key: &str) -> Result<Value, Problem> {
        let t = Type::by_plural(types).unwrap().operations;
        (t.inspect)(&self.cache, key, &Scope::All, &Cluster::default())().map(read)
    }

    pub(crate) fn call(&mut self, name: &str, body: &Value) -> Result<Value, Problem> {
        let call = Call::decode(CallKind::by_name(name).unwrap(), body.to_string().as_bytes())?;
        self.run(|staged| call.plan(&Scope::All, staged)).map(read)
    }

    pub(crate) fn network(&mut self, name: &str, subnet: &str, more: Value) {
        let mut body =
            json!({"tenantName": "default", "networkName": name, "encap": "vxlan", "subnet": subnet});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.put("networks", &format!("default:{name}"), &body).unwrap();
    }

    pub(crate) fn group(&mut self, name: &str, network: &str, pool: &str) {
        let body =
            json!({"tenantName": "default", "groupName": name, "networkName": network, "ipPool": pool});
        self.put("endpointGroups", &format!("default:{name}"), &body).unwrap();
    }

    /// Addresses of a new endpoint.
    pub(crate) fn create(
        &mut self,
        network: &str,
        id: &str,
        group: &str,
        ip: &str,
        ip6: &str,
    ) -> Result<(String, String), String> {
        let config =
            json!({"Container": id, "Host": "h", "ServiceName": group, "IPAddress": ip, "IPv6Address": ip6});
        let body = json!({"TenantName": "default", "NetworkName": network, "ConfigEP": config});
        let answer = self.call("createEndpoint", &body).map_err(|problem| problem.text)?;
        let text = |field: &str| answer["EndpointConfig"][field].as_str().unwrap().to_owned();
        Ok((text("ipAddress"), text("ipv6Address")))
    }

    pub(crate) fn remove(&mut self, network: &str, id: &str) -> Result<(), String> {
        let body = json!({"TenantName": "default", "NetworkName": network, "EndpointID": id});
        self.call("deleteEndpoint", &body).map(drop).map_err(|problem| problem.text)
    }

    pub(crate) fn alloc(&mut self, id: &str, pool: &str, preferred: &str) -> Result<String, String> {
        let body = json!({"NetworkID": id, "AddressPool": pool, "PreferredIPv4Address": preferred});
        let answer = self.call("allocAddress", &body).map_err(|problem| problem.text)?;
        Ok(answer["IPv4Address"].as_str().unwrap().to_owned())
    }

    pub(crate) fn release(&mut self, id: &str, address: &str) -> Result<(), String> {
        let body = json!({"NetworkID": id, "IPv4Address": address});
        self.call("releaseAddress", &body).map(drop).map_err(|problem| problem.text)
    }

    pub(crate) fn state(&self, network: &str) -> network::State {
        self.cache
            .allocation::<network::State>(&format!("{network}.default"))
            .unwrap()
            .full_record(&AllocationChange::default())
    }

    pub(crate) fn group_state(&self, group: &str) -> group::State {
        self.find_group(group).unwrap()
    }

    pub(crate) fn find_group(&self, group: &str) -> Option<group::State> {
        let record = self.cache.allocation::<group::State>(&format!("{group}:default"))?;
        Some(record.full_record(&AllocationChange::default()))
    }

    pub(crate) fn endpoints(&self) -> Vec<&endpoint::State> {
        self.cache.all::<endpoint::State>().collect()
    }

    /// Keys below a prefix.
    pub(crate) fn keys(&self, prefix: &str) -> Vec<&str> {
        self.store.keys().map(String::as_str).filter(|key| key.starts_with(prefix)).collect()
    }

    /// Value of a key.
    pub(crate) fn value(&self, key: &str) -> Option<Value> {
        self.store.get(key).map(|kv| serde_json::from_slice(&kv.value).unwrap())
    }

    /// Changes the store directly; `loaded` reads the change.
    pub(crate) fn break_key(&mut self, key: &str, value: Option<&Value>) {
        self.revision += 1;
        let Some(value) = value else { return drop(self.store.remove(key)) };
        let kv = KeyValue {
            key: key.to_owned(),
            value: value.to_string().into(),
            create_revision: 1,
            mod_revision: self.revision,
            version: 1,
            lease: 0,
        };
        self.store.insert(key.to_owned(), kv);
    }

    /// State of a netmaster that started some time ago.
    pub(crate) fn loaded(&self) -> Fixture {
        let mut fixture = self.starting();
        DERIVED_KEYS
            .iter()
            .for_each(|&(prefix, _)| fixture.read_derived(DerivedKeys::Below(prefix.to_owned())));
        fixture
    }

    /// State of a netmaster that starts now. It has not read the values of derived records, or nothing of them.
    pub(crate) fn starting(&self) -> Fixture {
        let mut cache = ClusterCache::default();
        let update = |event| Update { revision: self.revision, event };
        cache.apply_update(&update(Event::Init));
        for (key, kv) in &self.store {
            let mut kv = kv.clone();
            match DERIVED_KEYS.iter().find(|(prefix, _)| key.starts_with(prefix)) {
                Some((_, Without::Keys)) => continue,
                Some((_, Without::Values)) => kv.value = vec![].into(),
                None => {}
            }
            cache.apply_update(&update(Event::InitApply(key.clone(), kv)));
        }
        assert!(cache.apply_update(&update(Event::InitDone)));
        Fixture { cache, store: self.store.clone(), revision: self.revision, changes: self.changes.clone() }
    }

    /// State of a netmaster that has watched everything and leads now.
    pub(crate) fn follower(&self) -> Fixture {
        let mut cache = ClusterCache::default();
        for event in [Event::Init, Event::InitDone] {
            cache.apply_update(&Update { revision: 0, event });
        }
        for update in &self.changes {
            cache.apply_update(update);
        }
        let mut stale = cache.take_stale();
        stale.sort_by_key(|key| key.contains("/state/ipam/") && !key.contains("/state/ipam/chunks/"));
        for key in stale {
            cache.reload(&key, self.store.get(&key), self.revision);
        }
        Fixture { cache, store: self.store.clone(), revision: self.revision, changes: self.changes.clone() }
    }

    /// Complete content of the cache, for comparisons.
    pub(crate) fn content(&self) -> Value {
        let networks: Vec<_> = self
            .cache
            .allocations::<network::State>()
            .map(|l| l.full_record(&AllocationChange::default()))
            .collect();
        let groups: Vec<_> = self
            .cache
            .allocations::<group::State>()
            .map(|l| l.full_record(&AllocationChange::default()))
            .collect();
        let list = |types: &str| {
            let list = Type::by_plural(types).unwrap().operations.list;
            read(list(&self.cache, &Scope::All, Selection::default())().unwrap().body)
        };
        json!([
            networks,
            groups,
            self.endpoints(),
            list("networks"),
            list("endpointGroups"),
            list("tenants"),
            list("globals"),
            list("netprofiles"),
            list("policys"),
            list("rules"),
            list("appProfiles"),
            list("extContractsGroups"),
            list("aciGws"),
            list("serviceLBs"),
            self.cache.all::<service::State>().collect::<Vec<_>>(),
            self.cache.all::<service::Providers>().collect::<Vec<_>>(),
            self.derived::<PolicyState>(),
            self.derived::<DirectionalRuleState>()
        ])
    }

    /// Ids and digests. Those that were not read yet are as the store has them.
    fn derived<T: Derived>(&self) -> BTreeMap<String, String> {
        let mut known: BTreeMap<_, _> = self.cache.derived::<T>().collect();
        let stored = self.loaded().cache.derived::<T>().collect::<BTreeMap<_, _>>();
        known.extend(
            stored.into_iter().filter(|(id, _)| self.cache.has_unread(&DerivedKeys::One(T::path(id)))),
        );
        known.into_iter().map(|(id, content)| (id, format!("{content:?}"))).collect()
    }

    /// Merges all journals into their records.
    pub(crate) fn checkpoint(&mut self) {
        self.run(|staged| {
            for id in ["net.default", "big.default"] {
                if let Some((record, change)) = staged.allocation::<network::State>(id) {
                    change.checkpoint = record.is_journaled();
                }
            }
            Ok(vec![])
        })
        .unwrap();
    }
}

fn read(body: Vec<u8>) -> Value {
    serde_json::from_slice(&body).unwrap()
}
