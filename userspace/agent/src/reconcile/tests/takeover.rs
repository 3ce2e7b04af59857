//! A datapath that is built while another one forwards.

use super::*;
use crate::error::one_line;

/// A reconciler before its loop runs, with an endpoint of this node and one of another node.
fn reconciler(fake: Fake) -> Reconciler<Fake> {
    let (mut writer, attacher, reader, changes) = state::new([SOURCE]);
    attacher.attach(&"e1".into(), Attachment::of_pod("vvport1"));
    let objects = [network(), endpoint("e1", "h0", 1), endpoint("e2", "h1", 2)];
    let objects = objects.into_iter().map(|(key, object)| Event::InitApply(key, Ok(object)));
    for event in std::iter::once(Event::Init).chain(objects).chain([Event::InitDone]) {
        writer.apply(Update { source: SOURCE.into(), revision: 1, event });
    }
    let node = Node { host: "h0".into(), vtep: [192, 168, 0, 10].into() };
    let (reconciler, _) = Reconciler::new(fake, node, reader, changes, Duration::from_secs(3600));
    reconciler
}

#[tokio::test]
async fn a_datapath_that_is_not_possible_is_refused_and_removed() {
    type Fault = fn(&Switch);
    let faults: [(&str, Fault); 3] = [
        ("fake datapath: observe: injected fault", |switch| switch.fail_observe(1)),
        ("fake datapath: apply: injected fault", |switch| switch.fail_apply(1)),
        ("none of the 1 endpoints of this node can be set; first: fake datapath", |switch| {
            switch.fail_object(ObjectId::Local("e1".into()));
        }),
    ];
    for (cause, inject) in faults {
        let fake = Fake::new();
        let switch = fake.switch().clone();
        inject(&switch);
        let error = one_line(&reconciler(fake).stand_by().await.unwrap_err());
        assert!(error.contains(cause), "{error}");
        assert_eq!(installed(&switch), [""; 0], "{cause}");
    }
}

/// The object may need resources of the other datapath.
#[tokio::test]
async fn a_single_object_that_fails_is_no_reason_to_refuse() {
    for fails in [false, true] {
        let fake = Fake::new();
        let switch = fake.switch().clone();
        if fails {
            switch.fail_object(ObjectId::Remote("e2".into()));
        }
        assert_eq!(reconciler(fake).stand_by().await.unwrap(), !fails);
        assert_eq!(installed(&switch).len(), if fails { 3 } else { 4 });
    }
}
