//! `cargo xtask demo` in all variants.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::{path::Path, process::Command};

use testkit::needs;

fn demo(arguments: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["demo", "--speed-seconds", "0.1"])
        .args(arguments)
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "demo {arguments:?}: {}\n{stdout}\n{stderr}", output.status);
    assert!(stdout.contains("allowed paths work"), "{stdout}");
}

macro_rules! shapes {
    ($($name:ident: $arguments:expr;)+) => {$(
        #[test]
        fn $name() {
            needs!(root(), binary("ovs-vswitchd"), binary("ethtool"), binary("ping"), binary("etcd"));
            let _machine = testkit::shared();
            demo(&$arguments);
        }
    )+};
}

shapes! {
    default_options: [];
    ovs_on_both: ["--datapath", "ovs"];
    ebpf_on_both: ["--datapath", "ebpf"];
    vlan: ["--encap", "vlan"];
    vlan_ebpf: ["--encap", "vlan", "--datapath", "ebpf"];
    vlan_ovs: ["--encap", "vlan", "--datapath", "ovs"];
    routing: ["--fwdmode", "routing"];
    state_in_etcd: ["--store", "etcd"];
}

#[test]
fn kept_demo_is_stopped_by_name_and_removes_all_resources() {
    needs!(root(), binary("ovs-vswitchd"), binary("ethtool"), binary("ping"));
    let _machine = testkit::shared();
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["demo", "--keep", "--pods", "1", "--speed-seconds", "0.1"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let name = text.trim().rsplit(' ').next().unwrap();
    let pid = name.strip_prefix("demo").unwrap();
    let namespaces = |pid: &str| {
        let entries = std::fs::read_dir("/run/netns").unwrap();
        let prefix = format!("ctvk{pid}-");
        entries
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(&prefix))
            .count()
    };
    assert!(namespaces(pid) >= 3 + 4);
    let stop = Command::new(env!("CARGO_BIN_EXE_lab")).args(["demo", "--stop", name]).output().unwrap();
    assert!(stop.status.success(), "{}", String::from_utf8_lossy(&stop.stderr));
    assert_eq!(namespaces(pid), 0);
    assert!(!Path::new("/run/contiv-demo").join(name).exists());
}
