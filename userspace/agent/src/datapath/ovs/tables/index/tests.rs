//! Two objects whose flows would have the same cookie.

use super::*;
use crate::datapath::{
    Desired,
    ovs::{
        bridge::PerBridge,
        desired::{
            batch::{Batch, NotSet},
            compare::compare,
            model::SwitchModel,
        },
        pipeline,
        tables::edit::Edit,
    },
};

fn network(name: &str, vlan: u16) -> Object {
    let id = NetworkId::new(&name.parse().unwrap(), &"blue".parse().unwrap());
    Object::Network(Network::new(id, Encap::Vlan(vlan.try_into().unwrap())))
}

#[test]
fn a_second_object_with_a_cookie_leaves_the_flows_of_the_first_one() {
    let (first, second) = (network("first", 100), network("second", 101));
    let cookie = Cookie::of(&second.id());
    let mut model = SwitchModel::default();
    let mut batch = Batch::new(&mut model);
    batch.set(first.clone(), None).unwrap();
    batch.commit();
    // A hash collision cannot be computed here. The test inserts the cookie that the first object would have.
    model.index.cookies.insert(cookie, first.id());
    Edit::new(&mut model.tables.vlan).set(cookie, [pipeline::drop_all()]);

    let mut batch = Batch::new(&mut model);
    let refused = batch.set(second.clone(), None).unwrap_err();
    assert_eq!(refused, NotSet::Cookie(first.id()));
    assert!(refused.to_string().contains("network first.blue"), "{refused}");
    batch.delete(&second.id());
    batch.commit();
    assert!(model.index.get(&second.id()).is_none());
    assert_eq!(model.tables.vlan.flows_of(cookie).len(), 1);
    // Missing flows of the first object do not count as missing flows of the second object.
    let desired: Desired = [first.clone(), second.clone()].into_iter().collect();
    let missing = compare(&model, &PerBridge::default(), &desired).out_of_sync;
    assert!(missing.contains(&first.id()) && !missing.contains(&second.id()), "{missing:?}");
}

#[test]
fn a_cookie_is_free_when_its_owner_is_gone() {
    let (first, second) = (network("first", 100), network("second", 101));
    let mut index = FlowIndex::default();
    index.insert(Installed { object: first.clone(), port: None });
    index.insert(Installed { object: second.clone(), port: None });
    assert_eq!([&first, &second].map(|object| index.other_owner(&object.id())), [None, None]);
    index.remove(&first.id());
    assert_eq!(index.cookies.into_values().collect::<Vec<_>>(), [second.id()]);
}
