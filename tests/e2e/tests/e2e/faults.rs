//! Masters and members of etcd are killed, stopped, frozen and cut off while clients work.

use e2e::faults::{self, Options};
use testkit::needs;

#[test]
fn nothing_is_lost_doubled_or_left_half_done() {
    needs!(binary("etcd"), binary("etcdctl"), binary("ip"), root());
    let _machine = testkit::exclusive();
    let report = faults::run(&Options { seconds: 60, ..Options::default() }).unwrap();
    println!("{report}");
    report.verify().unwrap();
    // Nothing is proven by those who could not work.
    assert!(report.acknowledged > 500 && report.recoveries.len() > 3, "{report}");
}
