//! Faults of netmasters and etcd members under load.

use e2e::faults::{self, Options};
use testkit::needs;

#[test]
fn store_is_consistent_after_faults() {
    needs!(binary("etcd"), binary("etcdctl"), binary("ip"), binary("mkfs.ext4"), binary("fsfreeze"), root());
    let _machine = testkit::exclusive();
    let report = faults::run(&Options { seconds: 40, ..Options::default() }).unwrap();
    println!("{report}");
    report.verify().unwrap();
    // The test is meaningless without enough successful writes and faults.
    assert!(report.acknowledged > 500 && report.recoveries.len() > 3, "{report}");
    assert!(report.checked.operations > 100 && report.checked.large > 0, "{report}");
}
