//! Groups that flows of other programs use.

use openflow_rs::GroupKind;

use super::*;

#[test]
fn groups_of_other_programs_stay() {
    let none = Desired::default();
    let expected = || expected(&none, &BridgePorts::new(), BaseConfig::default(), ObjectNumbers::default());
    let (wanted, mut model) = (expected(), expected());
    let group = |id| openflow_rs::Group { id, kind: GroupKind::All, buckets: vec![] };
    let flows: Vec<_> = model.tables.vxlan.flows().cloned().collect();
    let groups: Vec<_> = model.tables.vxlan.groups().values().cloned().chain([group(7), group(77)]).collect();
    model.tables.vxlan = Tables::new(flows, groups).with_foreign_groups([7].into());

    assert_eq!(compare(&wanted, &model.tables, &none).orphans, 1);
    let mut batch = Batch::new(&mut model);
    batch.collect_garbage();
    batch.commit();
    assert_eq!(model.tables.vxlan.groups().keys().copied().collect::<Vec<_>>(), [peer_group(0), 7]);
    assert_eq!(compare(&wanted, &model.tables, &none).orphans, 0);
}
