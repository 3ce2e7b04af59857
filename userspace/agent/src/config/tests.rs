use super::*;

fn read(arguments: &str) -> Result<Command, Exit> {
    Command::read(std::iter::once("netplugin").chain(arguments.split_whitespace()).map(Into::into))
}

fn bad(arguments: &str) -> String {
    match read(arguments) {
        Err(Exit::Usage(line)) => line,
        other => panic!("{arguments}: {other:?}"),
    }
}

fn flags(arguments: &str) -> Flags {
    match read(arguments) {
        Ok(Command::Run(flags)) => *flags,
        other => panic!("{arguments}: {other:?}"),
    }
}

const GOOD: &str = "--mode cni --netmode vxlan --fwdmode bridge";

#[test]
fn flags_and_their_aliases() {
    let default = flags(GOOD);
    assert_eq!((default.datapath.datapath, default.vxlan_port), (Kind::Ovs, 4789));
    assert_eq!(default.cni_socket, Path::new("/run/contiv/contiv-cni.sock"));
    assert_eq!(default.rest_address.to_string(), "127.0.0.1:9090");
    assert_eq!(default.rest_socket(), Path::new("/run/contiv/contiv-cni.rest.sock"));
    assert_eq!(flags(&format!("{GOOD} --rest-socket /x/y")).rest_socket(), Path::new("/x/y"));
    assert_eq!(default.datapath.ovsdb, Path::new("/var/run/openvswitch/db.sock"));
    for alias in ["plugin-mode", "cluster-mode"] {
        flags(&format!("--{alias} test --netmode vxlan --fwdmode bridge"));
    }
    let full = flags(
        "--mode cni --netmode vlan --fwdmode bridge --vlan-uplinks eth1,eth2 --host a --ctrl-ip 10.0.0.1 \
         --etcd-endpoints http://a:1,http://b:2 --log-level WARNING",
    );
    assert_eq!(full.datapath.uplinks().collect::<Vec<_>>(), ["eth1", "eth2"]);
    let node = full.node().unwrap();
    assert_eq!((node.host.as_str(), node.vtep.to_string().as_str()), ("a", "10.0.0.1"));
    assert_eq!(full.store(), "http://a:1,http://b:2");
    // Frames of routed networks need no uplink, with either datapath.
    for datapath in ["ovs", "ebpf"] {
        assert!(
            flags(&format!("--mode cni --netmode vlan --fwdmode routing --datapath {datapath}"))
                .routes_vlans()
        );
    }
}

#[test]
fn conntrack_flags_become_options() {
    let vtep = IpAddr::from([10, 0, 0, 1]);
    let (ours, default) = (flags(GOOD).ebpf(vtep), ebpf::Options::default());
    assert_eq!((ours.flows, ours.timeouts), (default.flows, default.timeouts));
    let set = flags(&format!(
        "{GOOD} --conntrack-max 4096 --conntrack-timeout-tcp 2h --conntrack-timeout-other 5s"
    ));
    let options = set.ebpf(vtep);
    assert_eq!((options.flows, options.timeouts.tcp, options.timeouts.other), (4096, 7200, 5));
    let ovs = set.ovs(vtep);
    assert_eq!((ovs.connections, ovs.timeouts), (options.flows, options.timeouts));
}

#[test]
fn invalid_flags_are_reported_in_one_line() {
    for (arguments, parts) in [
        ("--netmode vlan --fwdmode bridge", &["--mode"][..]),
        ("--mode foo --netmode vlan --fwdmode bridge", &["--mode", "foo", "kubernetes"]),
        (
            "--mode kubernetes --netmode vxlan --fwdmode bridge",
            &["--mode kubernetes", "not built", "cni, test"],
        ),
        ("--mode cni --netmode vlan --fwdmode bridge", &["--vlan-uplinks"]),
        (&format!("{GOOD} --consul http://x"), &["--consul", "--etcd"]),
        (&format!("{GOOD} --etcd consul://x:1"), &["--etcd", "consul://x:1"]),
        (&format!("{GOOD} --datapath fake"), &["fake", "ovs, ebpf"]),
        (&format!("{GOOD} --datapath xdp"), &["--datapath", "xdp", "ovs, ebpf"]),
        (&format!("{GOOD} --ovsdb tcp:127.0.0.1:6640"), &["--ovsdb", "unix:/PATH"]),
        (&format!("{GOOD} --vtep-ip here"), &["--vtep-ip", "here"]),
        (&format!("{GOOD} --vxlan-port 0"), &["--vxlan-port"]),
        (&format!("{GOOD} --conntrack-max 1000"), &["--conntrack-max", "1000", "1024"]),
        (&format!("{GOOD} --conntrack-timeout-udp 0s"), &["--conntrack-timeout-udp", "0s", "1s to 30days"]),
        (&format!("{GOOD} --conntrack-timeout-tcp 2"), &["--conntrack-timeout-tcp", "2h"]),
        (&format!("{GOOD} --frobnicate"), &["--frobnicate"]),
        ("cleanup --mode cni", &["--mode"]),
    ] {
        let line = bad(arguments);
        assert!(!line.contains('\n'), "{line}");
        for part in parts {
            assert!(line.contains(part), "{arguments}: {line:?} lacks {part:?}");
        }
    }
}

#[test]
fn help_and_version_succeed() {
    assert!(matches!(read("--help"), Err(Exit::Output(text)) if text.contains("--datapath")));
    assert!(matches!(read("--version"), Err(Exit::Output(text)) if text.contains(env!("CARGO_PKG_VERSION"))));
    assert!(matches!(read("cleanup --help"), Err(Exit::Output(text)) if text.contains("--bpf-root")));
    assert!(matches!(read("cleanup --datapath ebpf"), Ok(Command::Cleanup(_))));
}

/// Also those in comments.
#[test]
fn variables_in_the_environment_files_exist() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/config");
    let command = <Flags as clap::CommandFactory>::command();
    let known: Vec<_> = command.get_arguments().filter_map(|arg| arg.get_env()?.to_str()).collect();
    for file in ["netmaster.env", "netplugin.env"] {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for name in words.filter(|word| word.starts_with("CONTIV_NETPLUGIN_") && !word.ends_with('_')) {
            assert!(known.contains(&name), "{file}: {name}");
        }
    }
}
