//! Invocations of the plugin against a scripted agent.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::{Read as _, Write as _},
    os::unix::{ffi::OsStringExt as _, net::UnixListener},
    path::Path,
    thread::{self, JoinHandle},
};

use contivk8s::{
    plugin::{self, Outcome},
    spec::Version,
    wire,
};
use tempfile::TempDir;

/// Answers one request and returns it.
struct Agent {
    directory: TempDir,
    asked: JoinHandle<(String, wire::Request)>,
}

impl Agent {
    fn answering(status: &'static str, body: String) -> Agent {
        let directory = tempfile::tempdir_in("/tmp").unwrap();
        let listener = UnixListener::bind(directory.path().join("agent.sock")).unwrap();
        let asked = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (head, request) = read_request(&mut stream);
            let answer = format!("HTTP/1.0 {status}\r\nContent-Type: application/json\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).unwrap();
            (head, serde_json::from_slice(&request).unwrap())
        });
        Agent { directory, asked }
    }

    fn socket(&self) -> String {
        self.directory.path().join("agent.sock").display().to_string()
    }

    fn asked(self) -> (String, wire::Request) {
        self.asked.join().unwrap()
    }
}

fn read_request(stream: &mut impl std::io::Read) -> (String, Vec<u8>) {
    let mut bytes = vec![];
    let mut next = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut next).unwrap();
        bytes.push(next[0]);
    }
    let head = String::from_utf8(bytes).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
    let mut body = vec![];
    stream.take(length.parse().unwrap()).read_to_end(&mut body).unwrap();
    (head, body)
}

/// The plugin only checks that it exists.
const NETNS: &str = "/dev/null";

fn call(command: &str, socket: &str, version: &str, extra: &[(&str, &str)]) -> Outcome {
    call_with("", command, socket, version, extra)
}

/// With more fields in the network configuration.
fn call_with(fields: &str, command: &str, socket: &str, version: &str, extra: &[(&str, &str)]) -> Outcome {
    let conf = format!(
        r#"{{{fields}"cniVersion":"{version}","name":"contiv-net","type":"contivk8s","dns":{{"domain":"x"}},
            "args":{{"cni":{{"labels":[{{"key":"io.contiv.network","value":"n1"}},
                                      {{"key":"io.contiv.tenant","value":"t0"}}]}}}}}}"#
    );
    let mut env: BTreeMap<&str, &str> = BTreeMap::from([
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", "cid-p1"),
        ("CNI_NETNS", NETNS),
        ("CNI_IFNAME", "eth0"),
        ("CNI_ARGS", "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p1;TENANT=t1"),
        (plugin::SOCKET_VARIABLE, socket),
    ]);
    env.extend(extra.iter().copied());
    plugin::run(|name| env.get(name).map(|value| (*value).to_owned()), conf.as_bytes())
}

fn reply() -> wire::Reply {
    wire::Reply {
        endpoint: "cid-p1".into(),
        ip: Some("20.1.1.1/24".parse().unwrap()),
        ip6: Some("2001:db8:4::1/64".parse().unwrap()),
        gateway: Some("20.1.1.254".parse().unwrap()),
        mac: "02:02:14:01:01:01".into(),
        port: "vvport3".into(),
        port_mac: "aa:bb:cc:dd:ee:ff".into(),
        mtu: 1450,
        ..wire::Reply::default()
    }
}

#[test]
fn results_are_those_of_the_configurations_version() {
    for version in Version::ALL {
        let agent = Agent::answering("200 OK", serde_json::to_string(&reply()).unwrap());
        let outcome = call("ADD", &agent.socket(), version.as_str(), &[]);
        assert_eq!(outcome.status, 0, "{outcome:?}");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/result-{version}.json"));
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, format!("{}\n", outcome.stdout)).unwrap();
        }
        assert_eq!(outcome.stdout, std::fs::read_to_string(&path).unwrap().trim_end(), "{version}");
        agent.asked();
    }
}

#[test]
fn results_contain_the_members_of_the_original() {
    let recorded = r#"{"cniVersion":"0.3.1","ips":[{"version":"4","address":"20.1.1.1/24"},
                       {"version":"6","address":"2001:db8:4::1/64"}],"dns":{"domain":"x"}}"#;
    let agent = Agent::answering("200 OK", serde_json::to_string(&reply()).unwrap());
    let outcome = call("ADD", &agent.socket(), "0.3.1", &[]);
    let ours: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_within(&serde_json::from_str(recorded).unwrap(), &ours);
}

/// Checks that every member of `part` is in `whole` with the same value.
fn assert_within(part: &serde_json::Value, whole: &serde_json::Value) {
    match (part, whole) {
        (serde_json::Value::Object(part), serde_json::Value::Object(_)) => {
            for (key, value) in part {
                assert_within(value, &whole[key]);
            }
        }
        (serde_json::Value::Array(part), serde_json::Value::Array(items)) => {
            assert_eq!(part.len(), items.len());
            for (a, b) in part.iter().zip(items) {
                assert_within(a, b);
            }
        }
        _ => assert_eq!(part, whole),
    }
}

#[test]
fn requests_have_the_form_of_the_original() {
    let agent = Agent::answering("200 OK", serde_json::to_string(&reply()).unwrap());
    let outcome = call("ADD", &agent.socket(), "0.3.1", &[]);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let (head, request) = agent.asked();
    assert!(head.starts_with("POST /ContivCNI.AddPod HTTP/1.0\r\n"), "{head}");
    assert!(head.contains("\r\nContent-Type: application/json\r\n"), "{head}");
    assert_eq!((request.pod_name.as_str(), request.pod_namespace.as_str()), ("p1", "default"));
    assert_eq!((request.container.as_str(), request.ifname.as_str()), ("cid-p1", "eth0"));
    assert_eq!(request.netns, Path::new(NETNS));
    // CNI_ARGS take precedence over the configuration.
    assert_eq!(request.label(wire::labels::TENANT, ""), "t1");
    assert_eq!(request.label(wire::labels::NETWORK, ""), "n1");
}

#[test]
fn errors_of_the_agent_have_the_form_of_the_specification() {
    let failed = wire::Reply {
        result: 1,
        error: "Error creating EP".into(),
        reason: "Err: key not found".into(),
        ..wire::Reply::default()
    };
    let agent = Agent::answering("500 Internal Server Error", serde_json::to_string(&failed).unwrap());
    let outcome = call("ADD", &agent.socket(), "0.3.1", &[]);
    assert_eq!(outcome.status, 1);
    assert_eq!(
        outcome.stdout,
        r#"{"cniVersion":"0.3.1","code":100,"msg":"Contiv:Error creating EP","details":"Err: key not found"}"#
    );
    let later = wire::Reply { code: 11, ..failed };
    let agent = Agent::answering("500 Internal Server Error", serde_json::to_string(&later).unwrap());
    assert_eq!(code(&call("DEL", &agent.socket(), "1.0.0", &[])), 11);
}

fn code(outcome: &Outcome) -> u64 {
    let body: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(outcome.status, 1, "{outcome:?}");
    body["code"].as_u64().unwrap()
}

#[test]
fn del_prints_nothing_and_needs_no_namespace() {
    let agent = Agent::answering("200 OK", "{}".into());
    let outcome = call("DEL", &agent.socket(), "1.0.0", &[("CNI_NETNS", "")]);
    assert_eq!(outcome, Outcome { stdout: String::new(), status: 0 });
    let (head, request) = agent.asked();
    assert!(head.starts_with("POST /ContivCNI.DelPod "), "{head}");
    assert_eq!(request.netns, Path::new(""));
}

#[test]
fn every_error_has_its_code_and_names_the_object() {
    let none = "/nonexistent/agent.sock";
    for (command, version, extra, expected, what) in [
        ("ADD", "1.1.0", ("X", ""), 11, "connect to the agent at /nonexistent/agent.sock"),
        ("DEL", "1.1.0", ("X", ""), 11, "check that netplugin runs on this node"),
        ("ADD", "1.1.0", ("CNI_NETNS", "/run/netns/none"), 4, "no network namespace at /run/netns/none"),
        ("ADD", "1.1.0", ("CNI_ARGS", "x"), 4, "CNI_ARGS"),
        ("ADD", "1.1.0", ("CNI_CONTAINERID", ""), 4, "CNI_CONTAINERID"),
        ("ADD", "1.2.0", ("X", ""), 1, "1.2.0"),
        ("FLY", "1.1.0", ("X", ""), 4, "FLY"),
        ("CHECK", "0.3.1", ("X", ""), 1, "CHECK needs cniVersion 0.4.0"),
        ("GC", "1.0.0", ("X", ""), 1, "GC needs cniVersion 1.1.0"),
        ("STATUS", "1.0.0", ("X", ""), 1, "STATUS needs cniVersion 1.1.0"),
        ("CHECK", "1.1.0", ("X", ""), 7, "no prevResult"),
        ("STATUS", "1.1.0", ("X", ""), 50, "check that netplugin runs on this node"),
        ("GC", "1.1.0", ("X", ""), 11, "check that netplugin runs on this node"),
    ] {
        let outcome = call(command, none, version, &[extra]);
        assert_eq!(code(&outcome), expected, "{command} {version}: {}", outcome.stdout);
        assert!(outcome.stdout.contains(what), "{command} {version}: {}", outcome.stdout);
        assert_eq!(outcome.stdout.lines().count(), 1);
    }
}

#[test]
fn check_compares_the_attachment_with_the_result_of_add() {
    for version in ["0.4.0", "1.0.0", "1.1.0"] {
        let answering = || Agent::answering("200 OK", serde_json::to_string(&reply()).unwrap());
        let agent = answering();
        let added = call("ADD", &agent.socket(), version, &[]).stdout;
        for (prev, status) in [(added.clone(), 0), (added.replace("20.1.1.1/24", "20.1.1.2/24"), 1)] {
            let agent = answering();
            let fields = format!(r#""prevResult":{prev},"#);
            let outcome = call_with(&fields, "CHECK", &agent.socket(), version, &[]);
            assert_eq!(outcome.status, status, "{outcome:?}");
            let (head, request) = agent.asked();
            assert!(head.starts_with("POST /ContivCNI.CheckPod "), "{head}");
            assert_eq!((request.container.as_str(), request.netns.as_path()), ("cid-p1", Path::new(NETNS)));
            let mtu = if version == "1.1.0" { 1450 } else { 0 };
            let listed = wire::ListedInterface { mac: "02:02:14:01:01:01".into(), mtu };
            assert_eq!(request.listed_interface, Some(listed));
        }
    }
}

#[test]
fn status_and_gc_need_no_container() {
    let none = [("CNI_CONTAINERID", ""), ("CNI_IFNAME", ""), ("CNI_NETNS", ""), ("CNI_ARGS", "")];
    let agent = Agent::answering("200 OK", "{}".into());
    let outcome = call("STATUS", &agent.socket(), "1.1.0", &none);
    assert_eq!(outcome, Outcome { stdout: String::new(), status: 0 });
    assert!(agent.asked().0.starts_with("POST /ContivCNI.Status "));

    let known = r#"[{"containerID":"c1","ifname":"eth0"},{"containerID":"c1","ifname":"net1"}]"#;
    let field = |name: &str, list: &str| format!(r#""cni.dev/{name}":{list},"#);
    for (fields, expected) in [
        (field("valid-attachments", known), &["c1", "c1-net1"][..]),
        (field("valid-attachments", "[]"), &[]),
        (field("valid-attachments", "null"), &[]),
        // libcni 1.2 has this name only, 1.3 both.
        (field("attachments", known), &["c1", "c1-net1"]),
        (field("valid-attachments", known) + &field("attachments", known), &["c1", "c1-net1"]),
        // `cnitool gc`: no attachment is valid.
        (String::new(), &[]),
    ] {
        let agent = Agent::answering("200 OK", "{}".into());
        let outcome = call_with(&fields, "GC", &agent.socket(), "1.1.0", &none);
        assert_eq!(outcome, Outcome { stdout: String::new(), status: 0 });
        let (head, request) = agent.asked();
        assert!(head.starts_with("POST /ContivCNI.CollectGarbage "), "{head}");
        let valid: Vec<_> = request.valid_attachments.iter().map(wire::ValidAttachment::endpoint).collect();
        assert_eq!(request.network_name, "contiv-net");
        assert_eq!(valid, expected);
    }
}

#[test]
fn result_of_a_chain_has_that_of_the_previous_plugin_first() {
    for (version, interfaces) in [("0.3.1", 3), ("1.0.0", 3), ("1.1.0", 3)] {
        let agent = Agent::answering("200 OK", serde_json::to_string(&reply()).unwrap());
        let fields = format!(r#""prevResult":{{"cniVersion":"{version}","interfaces":[{{"name":"br0"}}]}},"#);
        let outcome = call_with(&fields, "ADD", &agent.socket(), version, &[]);
        let result: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(result["interfaces"].as_array().unwrap().len(), interfaces);
        assert_eq!(result["interfaces"][0]["name"], "br0");
        assert_eq!(result["ips"][0]["interface"], 2);
        assert_eq!(result["cniVersion"], version);
    }
}

#[test]
fn malformed_previous_result_is_refused_before_the_agent_is_asked() {
    for prev in ["7", "[]", r#""x""#] {
        for command in ["ADD", "CHECK"] {
            let directory = tempfile::tempdir_in("/tmp").unwrap();
            let socket = directory.path().join("agent.sock");
            let listener = UnixListener::bind(&socket).unwrap();
            listener.set_nonblocking(true).unwrap();
            let fields = format!(r#""prevResult":{prev},"timeout":1,"#);
            let outcome = call_with(&fields, command, &socket.display().to_string(), "1.0.0", &[]);
            assert_eq!(code(&outcome), 6, "{command}: {}", outcome.stdout);
            assert!(outcome.stdout.contains("prevResult"), "{command}: {}", outcome.stdout);
            assert!(listener.accept().is_err(), "{command} reached the agent");
        }
    }
    // Versions without prevResult ignore it, and a DEL removes the attachment in any case.
    for (command, version) in [("ADD", "0.2.0"), ("DEL", "1.0.0")] {
        let agent = Agent::answering("200 OK", serde_json::to_string(&reply()).unwrap());
        let outcome = call_with(r#""prevResult":7,"#, command, &agent.socket(), version, &[]);
        assert_eq!(outcome.status, 0, "{command}: {outcome:?}");
        agent.asked();
    }
}

#[test]
fn result_has_no_route_that_another_interface_has() {
    for (version, path) in [("0.2.0", "/ip4/routes"), ("1.1.0", "/routes")] {
        for (other_route, count) in [(false, 1), (true, 0)] {
            let answer = wire::Reply { other_route, ..reply() };
            let agent = Agent::answering("200 OK", serde_json::to_string(&answer).unwrap());
            let outcome = call("ADD", &agent.socket(), version, &[("CNI_IFNAME", "net1")]);
            let result: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
            let routes = result.pointer(path).and_then(|routes| routes.as_array()).map_or(0, Vec::len);
            assert_eq!(routes, count, "{result}");
            agent.asked();
        }
    }
}

#[test]
fn version_lists_the_supported_versions() {
    let outcome = call("VERSION", "", "0.4.0", &[]);
    let body: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((outcome.status, body["cniVersion"].as_str()), (0, Some("0.4.0")));
    assert_eq!(body["supportedVersions"].as_array().unwrap().len(), 7);
}

#[test]
fn a_request_without_an_answer_times_out() {
    let directory = tempfile::tempdir_in("/tmp").unwrap();
    let socket = directory.path().join("agent.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    let conf = format!(r#"{{"cniVersion":"1.0.0","name":"n","timeout":1,"socket":"{}"}}"#, socket.display());
    let env = BTreeMap::from([("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "c"), ("CNI_IFNAME", "eth0")]);
    let outcome = plugin::run(|name| env.get(name).map(|value| (*value).to_owned()), conf.as_bytes());
    assert_eq!(code(&outcome), 11);
    assert!(outcome.stdout.contains("did not answer within 1s"), "{}", outcome.stdout);
}

#[test]
fn endless_input_is_refused() {
    let env = BTreeMap::from([("CNI_COMMAND", "ADD")]);
    let outcome = plugin::run(|name| env.get(name).map(|value| (*value).to_owned()), std::io::repeat(b' '));
    assert_eq!(code(&outcome), 7);
}

#[test]
fn a_variable_that_is_not_text_is_refused() {
    let get = |name: &str| -> Option<OsString> {
        match name {
            "CNI_COMMAND" => Some("ADD".into()),
            "CNI_CONTAINERID" => Some("c".into()),
            "CNI_IFNAME" => Some("eth0".into()),
            "CNI_NETNS" => Some(NETNS.into()),
            "CNI_ARGS" => Some(OsString::from_vec(b"TENANT=blue;X=\xff".into())),
            _ => None,
        }
    };
    let outcome = plugin::run(get, r#"{"cniVersion":"1.0.0","name":"n"}"#.as_bytes());
    assert_eq!(code(&outcome), 4);
    assert!(outcome.stdout.contains("CNI_ARGS is not UTF-8"), "{}", outcome.stdout);
}
