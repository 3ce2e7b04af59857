//! testkit against the real kernel, etcd and Open vSwitch.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::{
    collections::BTreeSet,
    env, fs,
    io::{self, BufRead as _, BufReader},
    net::{IpAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use testkit::{
    Netns, Pinger, Process, WindowedPinger,
    capture::Tap,
    etcd::Etcd,
    free_port, needs, ovs,
    packet::{Packet, ethertype, mac, verify},
    scratch_dir, skip, wait_until,
};

const TIMEOUT: Duration = Duration::from_secs(5);
const MAC_A: &str = "02:02:0a:4d:00:01";
const MAC_B: &str = "02:02:0a:4d:00:02";

fn two_hosts() -> (Netns, Netns) {
    let (a, b) = (Netns::new("a").unwrap(), Netns::new("b").unwrap());
    a.veth("eth0", &b, "eth0").unwrap();
    for (host, mac, number) in [(&a, MAC_A, 1), (&b, MAC_B, 2)] {
        host.mac("eth0", mac).unwrap();
        host.address("eth0", &format!("10.77.0.{number}/24")).unwrap();
        host.address("eth0", &format!("2001:db8::{number}/64")).unwrap();
        host.up("eth0").unwrap();
    }
    (a, b)
}

#[test]
fn namespaces_ping_each_other_and_are_removed() {
    needs!(root(), binary("ip"), binary("ping"));
    let (a, b) = two_hosts();
    for target in ["10.77.0.2", "2001:db8::2"] {
        let ping = a.ping(target.parse().unwrap(), 3, Duration::from_millis(10)).unwrap();
        assert_eq!((ping.sent, ping.received), (3, 3), "{target}");
    }
    let unanswered = a.ping("10.77.0.3".parse().unwrap(), 1, Duration::from_millis(10)).unwrap();
    assert_eq!((unanswered.lost(), unanswered.rtt), (1, None));

    let pinger = Pinger::start(&a, "10.77.0.2".parse().unwrap(), Duration::from_millis(10)).unwrap();
    wait_until(TIMEOUT, "20 answers", || Ok((pinger.answers() >= 20).then_some(()))).unwrap();
    let ping = pinger.finish(TIMEOUT).unwrap();
    assert!(ping.sent >= 20 && ping.lost() == 0, "{ping:?}");

    assert_eq!(a.links().unwrap(), ["eth0"]);
    let paths = [a.path().to_owned(), b.path().to_owned()];
    drop((a, b));
    assert!(paths.iter().all(|path| !path.exists()));
}

#[test]
fn few_requests_of_a_windowed_pinger_are_unanswered() {
    needs!(root());
    let (a, _b) = two_hosts();
    let start =
        |target: &str| WindowedPinger::start(&a, target.parse().unwrap(), Duration::from_millis(1)).unwrap();
    // No host has the address.
    let unanswered = start("10.77.0.3");
    for target in ["10.77.0.2", "2001:db8::2"] {
        let pinger = start(target);
        wait_until(TIMEOUT, "50 answers", || Ok((pinger.answers() >= 50).then_some(()))).unwrap();
        assert_eq!(pinger.target().to_string(), target);
        let ping = pinger.finish(TIMEOUT).unwrap();
        assert!(ping.sent >= 50 && ping.lost() == 0 && ping.rtt.is_some(), "{target}: {ping:?}");
    }
    assert_eq!(unanswered.answers(), 0);
    let ping = unanswered.finish(Duration::ZERO).unwrap();
    assert!(ping.sent <= 16 && ping.received == 0 && ping.rtt.is_none(), "{ping:?}");
}

#[test]
fn an_interface_has_what_was_set() {
    let (here, there) = (Netns::new("here").unwrap(), Netns::new("there").unwrap());
    here.veth("veth0", &there, "eth0").unwrap();
    here.mac("veth0", "02:00:00:00:00:0a").unwrap();
    here.mtu("veth0", 1400).unwrap();
    here.address("veth0", "10.0.0.1/24").unwrap();
    here.address("veth0", "fd00::1/64").unwrap();
    let found = here.interface("veth0").unwrap();
    assert_eq!(found.mac, "02:00:00:00:00:0a");
    assert_eq!((found.index, found.peer), (here.ifindex("veth0").unwrap(), there.ifindex("eth0").ok()));
    assert!(!found.carries);
    here.up("veth0").unwrap();
    there.up("eth0").unwrap();
    let carries = || Ok(here.interface("veth0")?.carries.then_some(()));
    wait_until(TIMEOUT, "veth0 to carry frames", carries).unwrap();
    // As another program sees it.
    let listing = here.ip("addr show dev veth0").unwrap();
    for word in [" mtu 1400 ", "inet 10.0.0.1/24 ", "inet6 fd00::1/64 scope global nodad"] {
        assert!(listing.contains(word), "{word}: {listing}");
    }
    here.all_down().unwrap();
    assert!(!here.interface("veth0").unwrap().carries);

    let refused = |result: anyhow::Result<()>| format!("{:#}", result.unwrap_err());
    let taken = refused(here.veth("veth0", &there, "eth1"));
    assert!(taken.starts_with("create veth0 in ") && taken.ends_with(": EEXIST: File exists"), "{taken}");
    assert!(refused(here.address("veth0", "10.0.0.300/24")).contains("address 10.0.0.300/24"));
    assert!(refused(here.mac("veth0", "02:xx")).contains("MAC address 02:xx"));
    assert!(refused(here.up("veth9")).contains("set veth9 up in "));
}

#[test]
fn namespace_is_removed_after_a_panic() {
    needs!(root(), binary("ip"));
    let mut path = PathBuf::new();
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let namespace = Netns::new("panics").unwrap();
        path = namespace.path().to_owned();
        namespace.run::<()>(|| panic!("on purpose")).unwrap();
    }));
    assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"on purpose"));
    assert!(path.starts_with("/run/netns") && !path.exists());
}

#[test]
fn frames_are_captured_unchanged() {
    needs!(root(), binary("ip"), binary("ping"));
    let (a, b) = two_hosts();
    let tap = Tap::open(&b, "eth0").unwrap();
    let sender = Tap::open(&a, "eth0").unwrap();

    let tagged = Packet::eth(mac(MAC_B), mac(MAC_A))
        .vlan(100)
        .ipv4([10, 77, 0, 1], [10, 77, 0, 2])
        .udp(4000, 53)
        .payload(b"query")
        .build();
    sender.send(&tagged).unwrap();
    tap.expect(TIMEOUT, "the tagged frame", |frame| (frame == tagged).then_some(())).unwrap();

    // Frames of the kernel pass `verify`, and its echo reply equals the built one.
    a.ping("10.77.0.2".parse().unwrap(), 1, Duration::from_millis(10)).unwrap();
    let ping = tap
        .expect(TIMEOUT, "an echo request of the kernel", |frame| {
            (frame[12..14] == ethertype::IPV4.to_be_bytes()).then(|| frame.to_vec())
        })
        .unwrap();
    verify(&ping).unwrap();
    let echo = Packet::eth(mac(MAC_B), mac(MAC_A))
        .ipv6(
            "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap(),
            "2001:db8::2".parse::<std::net::Ipv6Addr>().unwrap(),
        )
        .icmpv6_echo_request(7, 9)
        .payload(b"hello");
    sender.send(&echo.build()).unwrap();
    let reply = Packet::eth(mac(MAC_A), mac(MAC_B))
        .ipv6(
            "2001:db8::2".parse::<std::net::Ipv6Addr>().unwrap(),
            "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap(),
        )
        .icmpv6_echo_reply(7, 9)
        .payload(b"hello");
    // The kernel chooses the flow label in the first four bytes of the IP header; the rest must be equal.
    sender
        .expect(TIMEOUT, "the echo reply", |frame| {
            (frame.len() == reply.build().len() && frame[18..] == reply.build()[18..]).then_some(())
        })
        .unwrap();
    // The receiver captured the injected request, and `drain` empties the queue.
    let captured = tap.drain().unwrap();
    assert!(captured.iter().any(|frame| frame.bytes == echo.build() && !frame.outgoing), "{captured:?}");
    let left = tap.drain().unwrap();
    assert!(left.iter().all(|frame| frame.bytes != echo.build()), "{left:?}");
}

#[test]
fn process_runs_in_its_namespace_and_its_exit_is_detected() {
    needs!(root(), binary("ip"));
    let namespace = Netns::new("process").unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "readlink /proc/self/ns/net; exec sleep 1000"]);
    let mut process = Process::spawn_in(&namespace, "sleeper", command).unwrap();
    let line = wait_until(TIMEOUT, "the first line", || Ok(process.log().lines().next().map(str::to_owned)))
        .unwrap();
    let ours = fs::read_link("/proc/self/ns/net").unwrap();
    assert_ne!(line, ours.to_string_lossy());
    let pid = process.pid();
    assert!(process.ended().unwrap().is_none());
    drop(process);
    assert!(!PathBuf::from(format!("/proc/{pid}")).exists());

    let mut command = Command::new("sh");
    command.args(["-c", "echo broken; exit 3"]);
    let mut process = Process::spawn("broken", command).unwrap();
    let error = process.wait_ready::<()>(TIMEOUT, "readiness", || Ok(None)).unwrap_err().to_string();
    assert!(error.contains("exit status: 3") && error.ends_with("broken"), "{error}");
}

#[test]
fn etcd_keeps_its_data_after_sigkill() {
    needs!(binary("etcd"), binary("etcdctl"));
    let mut etcd = Etcd::start().unwrap();
    etcd.ctl(&["put", "/a", "1"]).unwrap();
    etcd.kill().unwrap();
    assert!(etcd.ctl(&["--command-timeout=1s", "get", "/a"]).is_err());
    etcd.restart().unwrap();
    assert_eq!(etcd.ctl(&["get", "/a"]).unwrap(), "/a\n1\n");
}

#[test]
fn etcd_serves_a_namespace() {
    needs!(root(), binary("etcd"), binary("etcdctl"));
    let namespace = Netns::new("etcd").unwrap();
    let etcd = Etcd::options()
        .in_netns(&namespace, std::net::Ipv4Addr::LOCALHOST)
        .client_port(2379)
        .start()
        .unwrap();
    assert_eq!(etcd.endpoint(), "http://127.0.0.1:2379");
    etcd.ctl(&["put", "/a", "1"]).unwrap();
}

#[test]
fn private_switch_forwards() {
    if let Some(reason) = ovs::missing() {
        skip!("{reason}");
    }
    let host = Netns::new("host").unwrap();
    let pods = [Netns::new("pod1").unwrap(), Netns::new("pod2").unwrap()];
    let mut switch = ovs::Switch::start(&host).unwrap();
    switch
        .vsctl(&[
            "add-br",
            "br0",
            "--",
            "set",
            "bridge",
            "br0",
            "datapath_type=netdev",
            "protocols=OpenFlow13",
        ])
        .unwrap();
    for (number, pod) in (1..).zip(&pods) {
        let port = format!("p{number}");
        host.veth(&port, pod, "eth0").unwrap();
        host.up(&port).unwrap();
        pod.address("eth0", &format!("10.1.0.{number}/24")).unwrap();
        pod.up("eth0").unwrap();
        pod.tx_checksum_off("eth0").unwrap();
        switch.vsctl(&["add-port", "br0", &port]).unwrap();
    }
    let peer: IpAddr = "10.1.0.2".parse().unwrap();
    let ping = pods[0].ping(peer, 3, Duration::from_millis(10)).unwrap();
    assert_eq!(ping.received, 3);
    assert!(switch.ofctl("dump-flows", "br0", &[]).unwrap().contains("NORMAL"));
    switch.kill_vswitchd().unwrap();
    assert!(switch.appctl(&["version"]).is_err());
    switch.start_vswitchd().unwrap();
    let ping = wait_until(TIMEOUT, "the switch forwards again", || {
        let ping = pods[0].ping(peer, 1, Duration::from_millis(10))?;
        Ok((ping.received == 1).then_some(ping))
    });
    assert!(ping.is_ok());
    let directory = switch.directory().to_owned();
    switch.stop().unwrap();
    assert!(!directory.exists());
    assert_eq!(host.links().unwrap(), ["p1", "p2"]);
}

#[test]
fn free_ports_are_distinct_and_bindable() {
    let ports = [free_port().unwrap(), free_port().unwrap()];
    assert_ne!(ports[0], ports[1]);
    let listener = TcpListener::bind(("127.0.0.1", ports[0])).unwrap();
    TcpStream::connect(listener.local_addr().unwrap()).unwrap();
}

/// Each gets other ports, though nothing listens on them.
#[test]
fn no_two_processes_get_the_same_port() {
    const COUNT: usize = 100;
    if env::var_os("TESTKIT_PORTS").is_some() {
        let ports: Vec<String> = (0..COUNT).map(|_| free_port().unwrap().to_string()).collect();
        println!("ports: {}", ports.join(" "));
        // All have theirs before one ends.
        io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }
    let spawn = |_| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "no_two_processes_get_the_same_port", "--nocapture"]);
        command.env("TESTKIT_PORTS", "").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut processes: Vec<Child> = (0..4).map(spawn).collect();
    let output =
        |process: &mut Child| BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut outputs: Vec<_> = processes.iter_mut().map(output).collect();
    let mut ports = BTreeSet::new();
    for lines in &mut outputs {
        let line = lines.find_map(|line| Some(line.split_once("ports: ")?.1.to_owned())).unwrap();
        ports.extend(line.split_whitespace().map(|port| port.parse::<u16>().unwrap()));
    }
    assert_eq!(ports.len(), 4 * COUNT);
    for process in &mut processes {
        drop(process.stdin.take());
        process.wait().unwrap();
    }
}

#[test]
fn resources_of_a_killed_test_are_removed() {
    needs!(root(), binary("ip"));
    // A child test process that is killed while it holds a namespace and a process.
    let directory = scratch_dir("victim").unwrap();
    let note = directory.path().join("note");
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "victim", "--nocapture"]).env("TESTKIT_VICTIM", &note);
    let mut victim = Process::spawn("victim", command).unwrap();
    let text = victim
        .wait_ready(TIMEOUT, "the victim is set up", || {
            Ok(fs::read_to_string(&note).ok().filter(|text| text.ends_with('\n')))
        })
        .unwrap();
    victim.kill().unwrap();
    let (namespace, pid) = text.trim().split_once(' ').unwrap();
    let sleeper = PathBuf::from(format!("/proc/{pid}"));
    assert!(PathBuf::from(namespace).exists() && sleeper.exists());

    // Any later test process removes them.
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "namespace_is_removed_after_a_panic"]);
    Process::spawn("sweeper", command).unwrap().wait(TIMEOUT).unwrap();
    wait_until(TIMEOUT, "the sweep", || Ok((!PathBuf::from(namespace).exists()).then_some(()))).unwrap();
    wait_until(TIMEOUT, "the exit of the sleeper", || Ok((!runs(&sleeper)).then_some(()))).unwrap();
}

/// Helper process of the test above.
#[test]
fn victim() {
    let Some(note) = env::var_os("TESTKIT_VICTIM") else { return };
    let namespace = Netns::new("victim").unwrap();
    let mut command = Command::new("sleep");
    command.arg("1000");
    let sleeper = Process::spawn("sleeper", command).unwrap();
    fs::write(note, format!("{} {}\n", namespace.path().display(), sleeper.pid())).unwrap();
    wait_until::<()>(Duration::from_secs(60), "the kill", || Ok(None)).unwrap();
}

/// Whether the process runs; a killed orphan may stay a zombie.
fn runs(process: &std::path::Path) -> bool {
    fs::read_to_string(process.join("stat")).is_ok_and(|stat| !stat.contains(") Z"))
}

#[test]
fn skip_is_logged_once_in_its_format() {
    let directory = scratch_dir("skip").unwrap();
    let log = directory.path().join("skips");
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "skipped"]).env("TESTKIT_SKIP", "1").env(skip::LOG_VARIABLE, &log);
    let status = Process::spawn("skipper", command).unwrap().wait(TIMEOUT).unwrap();
    assert!(status.success());
    assert_eq!(fs::read_to_string(log).unwrap(), "SKIP kit::skipped: no unicorn, 2 wanted\n");
}

/// Helper process of the test above.
#[test]
fn skipped() {
    if env::var_os("TESTKIT_SKIP").is_some() {
        skip!("no unicorn, {} wanted", 2);
    }
}

#[test]
fn pin_directory_is_removed_with_its_pins() {
    needs!(root());
    let directory = testkit::BpfDir::new("pins").unwrap();
    fs::create_dir(directory.path().join("node1")).unwrap();
    let path = directory.path().to_owned();
    drop(directory);
    assert!(!path.exists());
}
