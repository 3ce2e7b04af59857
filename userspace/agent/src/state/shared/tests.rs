use contiv_model::{endpoint::Endpoint, mac::Mac};

use super::*;

const EPS: &str = "eps";

fn endpoint(name: &str) -> (Key, Result<ClusterObject, Rejected>) {
    let endpoint = Endpoint {
        id: name.into(),
        network: "n.t".into(),
        group: None,
        group_number: None,
        ip: [10, 0, 0, 1].into(),
        ip6: None,
        mac: Mac([2, 2, 10, 0, 0, 1]),
        host: "h".into(),
        vtep: None,
    };
    (Key::Endpoint(name.into()), Ok(ClusterObject::Endpoint(endpoint)))
}

fn ids(reader: &Reader) -> Vec<String> {
    reader.with(|state| state.endpoints().map(|e| e.id.to_string()).collect())
}

#[test]
fn snapshot_replaces_the_state_atomically() {
    let (mut writer, _, reader, mut changes) = new([EPS]);
    let mut send = |revision, event| writer.apply(Update { source: EPS.into(), revision, event });
    let apply = |name| {
        let (key, object) = endpoint(name);
        Event::InitApply(key, object)
    };
    for event in [Event::Init, apply("a"), apply("b"), Event::InitDone] {
        send(5, event);
    }
    assert_eq!((ids(&reader), reader.revision()), (vec!["a".to_owned(), "b".to_owned()], 5));
    assert!(reader.awaited().is_empty());
    changes.take();
    send(9, Event::Init);
    send(9, apply("b"));
    assert_eq!(ids(&reader).len(), 2);
    send(9, Event::InitDone);
    assert_eq!(ids(&reader), ["b"]);
    let (dirty, revision) = changes.take();
    assert_eq!((dirty.endpoints, revision), ([EndpointId::from("a")].into(), 9));
}

#[test]
fn updates_of_a_transaction_are_one_step() {
    let (mut writer, _, reader, mut changes) = new([EPS]);
    let apply = |name| {
        let (key, object) = endpoint(name);
        Update { source: EPS.into(), revision: 2, event: Event::Apply(key, object) }
    };
    let delete =
        |name: &str| Update { source: EPS.into(), revision: 2, event: Event::Delete(endpoint(name).0) };
    writer.apply(apply("a"));
    changes.take();
    let generation = *changes.generation.borrow();
    // Another thread must be able to read an update only after all updates are applied.
    let between = reader.clone();
    let locked = move |update: Update| {
        assert!(between.0.inner.try_read().is_err(), "the state can be read within the transaction");
        update
    };
    writer.apply_all([delete("a"), apply("b"), apply("c")].into_iter().map(locked));
    assert_eq!(*changes.generation.borrow(), generation + 1);
    assert_eq!(ids(&reader), ["b", "c"]);
}

#[test]
fn invalid_object_keeps_the_last_valid_version() {
    let (mut writer, _, reader, _) = new([EPS]);
    let (key, object) = endpoint("a");
    let mut send = |event| writer.apply(Update { source: EPS.into(), revision: 1, event });
    send(Event::Apply(key.clone(), object));
    let rejected = Rejected { key: key.to_string(), why: "no JSON".into() };
    send(Event::Apply(key.clone(), Err(rejected.clone())));
    assert_eq!((ids(&reader), reader.rejected()), (vec!["a".to_owned()], vec![rejected]));
    send(Event::Delete(key));
    assert!(ids(&reader).is_empty() && reader.rejected().is_empty());
}

#[test]
fn deleted_invalid_object_is_forgotten() {
    let (mut writer, _, reader, _) = new([EPS]);
    let ((a, object), (b, _)) = (endpoint("a"), endpoint("b"));
    let rejected = |key: &Key| Err(Rejected { key: key.to_string(), why: "no JSON".into() });
    let mut snapshot = |objects: &[(&Key, Result<ClusterObject, Rejected>)]| {
        let mut send = |event| writer.apply(Update { source: EPS.into(), revision: 1, event });
        send(Event::Init);
        for (key, object) in objects {
            send(Event::InitApply((*key).clone(), object.clone()));
        }
        send(Event::InitDone);
    };
    snapshot(&[(&a, object), (&b, rejected(&b))]);
    snapshot(&[(&a, rejected(&a))]);
    assert_eq!((ids(&reader), reader.rejected_count()), (vec!["a".to_owned()], 1));
    snapshot(&[]);
    assert_eq!((ids(&reader).len(), reader.rejected_count()), (0, 0));
}

/// The record has the prefix of both networks, and does not identify its network.
#[test]
fn an_unreadable_endpoint_stays_until_no_watch_has_it() {
    let (mut writer, _, reader, mut changes) = new([EPS]);
    let (key, _) = endpoint("n.t-x-e");
    let sources = ["n.t", "n.t-x"].map(|network| Source::Endpoints(network.into()));
    for source in &sources {
        let rejected = Rejected { key: key.to_string(), why: "no JSON".into() };
        let event = Event::Apply(key.clone(), Err(rejected));
        writer.apply(Update { source: source.clone(), revision: 1, event });
    }
    let unreadable = || (reader.rejected_count(), reader.with(|state| state.is_unreadable(&key)));
    assert_eq!((unreadable(), changes.take().0.unreadable), ((1, true), true));
    writer.forget(&sources[0]);
    assert_eq!((unreadable(), changes.take().0.unreadable), ((1, true), false));
    let event = Event::Delete(key.clone());
    writer.apply(Update { source: sources[1].clone(), revision: 2, event });
    assert_eq!((unreadable(), changes.take().0.unreadable), ((0, false), true));
}

#[test]
fn an_id_belongs_to_the_network_that_has_it_last() {
    let (key, Ok(ClusterObject::Endpoint(first))) = endpoint("a.b-c-d") else { panic!("an endpoint") };
    let put = |network: &str, revision| {
        let endpoint = Endpoint { network: network.into(), ..first.clone() };
        let object = Ok(ClusterObject::Endpoint(endpoint));
        Update {
            source: Source::Endpoints(network.into()),
            revision,
            event: Event::Apply(key.clone(), object),
        }
    };
    let delete = |network: &str, revision| Update {
        source: Source::Endpoints(network.into()),
        revision,
        event: Event::Delete(key.clone()),
    };
    // Put on a.b, deleted, put on a.b-c, deleted, and put on a.b again. The updates of each network arrive in order.
    let older = [put("a.b", 1), delete("a.b", 2), put("a.b", 5)];
    let newer = [put("a.b-c", 3), delete("a.b-c", 4)];
    let owner = |updates: &[&Update]| {
        let (mut writer, _, reader, _) = new([EPS]);
        updates.iter().for_each(|update| writer.apply((*update).clone()));
        reader.with(|state| state.endpoint(&first.id).map(|endpoint| endpoint.network.to_string()))
    };
    let [older_1, older_2, older_5] = &older;
    let [newer_3, newer_4] = &newer;
    for updates in [[older_1, older_2, newer_3], [older_1, newer_3, older_2], [newer_3, older_1, older_2]] {
        assert_eq!(owner(&updates).as_deref(), Some("a.b-c"), "{updates:?}");
    }
    for updates in [
        [older_1, older_2, newer_3, newer_4],
        [older_1, newer_3, older_2, newer_4],
        [older_1, newer_3, newer_4, older_2],
        [newer_3, newer_4, older_1, older_2],
        [newer_3, older_1, newer_4, older_2],
    ] {
        assert_eq!(owner(&updates), None, "{updates:?}");
    }
    for updates in [
        [older_1, older_2, older_5, newer_3, newer_4],
        [older_1, newer_3, older_2, older_5, newer_4],
        [newer_3, older_1, older_2, newer_4, older_5],
        [newer_3, newer_4, older_1, older_2, older_5],
    ] {
        assert_eq!(owner(&updates).as_deref(), Some("a.b"), "{updates:?}");
    }
}

#[test]
fn unchanged_object_is_not_dirty() {
    let (mut writer, attacher, _, mut changes) = new([EPS]);
    let (key, object) = endpoint("a");
    writer.apply(Update {
        source: EPS.into(),
        revision: 1,
        event: Event::Apply(key.clone(), object.clone()),
    });
    assert!(!changes.take().0.is_empty());
    writer.apply(Update { source: EPS.into(), revision: 2, event: Event::Apply(key, object) });
    assert!(changes.take().0.is_empty());
    attacher.attach(&"a".into(), Attachment::of_pod("vvport1"));
    attacher.attach(&"a".into(), Attachment::of_pod("vvport1"));
    assert_eq!(changes.take().0.endpoints.len(), 1);
}

fn policy(id: &str, group: u32) -> (Key, Result<ClusterObject, Rejected>) {
    let policy =
        contiv_model::policy::Policy { id: id.into(), group: group.try_into().unwrap(), rules: vec![] };
    (Key::Policy(id.into()), Ok(ClusterObject::Policy(policy)))
}

fn list(
    writer: &mut Writer,
    source: &Source,
    revision: i64,
    objects: Vec<(Key, Result<ClusterObject, Rejected>)>,
) {
    let puts = objects.into_iter().map(|(key, object)| Event::InitApply(key, object));
    let events = [Event::Init].into_iter().chain(puts).chain([Event::InitDone]);
    writer.apply_all(events.map(|event| Update { source: source.clone(), revision, event }));
}

/// The revisions of the new store are smaller, and a part may now be watched together with others.
#[test]
fn what_an_accepted_store_has_replaces_what_another_source_had() {
    let (mut writer, _, reader, _) = new([POLICIES]);
    let of_group = Source::Policies("g:t".into());
    list(&mut writer, &of_group, 1000, vec![policy("t:g:t:p", 5)]);
    writer.restart();
    let all = Source::Prefix(POLICIES);
    list(&mut writer, &all, 7, vec![policy("t:g:t:p", 6)]);
    writer.forget(&of_group);
    let on = |number: u32| reader.with(|state| state.policies_on(number.try_into().unwrap()).count());
    assert_eq!((on(5), on(6)), (0, 1));
}

/// The record of a group may have another number than its endpoints.
#[test]
fn policies_affect_the_numbers_that_endpoints_have() {
    let (mut writer, _, _, mut changes) = new([EPS, POLICIES]);
    let (key, object) = endpoint("a");
    let Ok(ClusterObject::Endpoint(endpoint)) = object else { unreachable!() };
    let member =
        Endpoint { group: Some("g:t".into()), group_number: Some(5.try_into().unwrap()), ..endpoint };
    list(&mut writer, &EPS.into(), 1, vec![(key, Ok(ClusterObject::Endpoint(member)))]);
    let group = contiv_model::group::Group {
        key: "g:t".into(),
        number: 7.try_into().unwrap(),
        dscp: None,
        rate: None,
    };
    let group = (Key::Group("g:t".into()), Ok(ClusterObject::Group(group)));
    list(&mut writer, &"groups".into(), 2, vec![group]);
    changes.take();
    list(&mut writer, &Source::Policies("g:t".into()), 3, vec![]);
    assert_eq!(changes.take().0.groups, [5, 7].map(|number| number.try_into().unwrap()).into());
}
